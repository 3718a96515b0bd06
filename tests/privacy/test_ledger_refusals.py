"""What the ledger refuses beyond the size of a budget: races, foreign nonces, summed deltas."""

import sqlite3
import warnings

import pytest

from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds.ledgers import account, open_run, release, set_budget, url_of


@pytest.fixture
def ledger(tmp_path):
    ledger = Ledger(url_of(tmp_path))
    set_budget(ledger, delta=1e-3)
    return ledger


def test_rounds_reserved_after_they_were_priced_cannot_be_left_out(ledger):
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=10, nonce="a")
    ledger.reserve_rounds("run", rounds=5, nonce="b")
    with pytest.raises(UnsafeError, match="rounds were reserved meanwhile"):
        ledger.settle("run", reserved_rounds=10, epsilon=1.0, delta=1e-6)
    assert account(ledger).spent_epsilon == 4.0
    for _ in range(2):
        ledger.settle("run", reserved_rounds=15, epsilon=1.5, delta=1e-6)
    with pytest.raises(UnsafeError, match="meanwhile"):
        ledger.settle("run", reserved_rounds=10, epsilon=1.5, delta=1e-6)
    assert account(ledger).spent_epsilon == 1.5


def test_a_nonce_of_another_run_is_refused(ledger):
    open_run(ledger, "mine")
    open_run(ledger, "other")
    ledger.reserve_rounds("other", rounds=5, nonce="a")
    with pytest.raises(UnsafeError, match="belongs to run 'other', not to 'mine'"):
        ledger.commit_rounds("a", drawn=5, run_id="mine")
    assert ledger.reserved("other").drawn_rounds == 0
    ledger.commit_rounds("a", drawn=5, run_id="other")
    assert ledger.reserved("other").committed_rounds == 5


def test_deltas_of_an_account_stay_below_one_over_units(ledger):
    for run in range(4):
        assert open_run(ledger, str(run), epsilon=1.0, delta=2e-4, units=1000).units == 1000
    with pytest.raises(BudgetError, match="not below 1/units"):
        open_run(ledger, "4", epsilon=1.0, delta=2e-4, units=1000)
    with pytest.raises(BudgetError, match="not below 1/units"):
        release(ledger, "4", lambda: 1, delta=2e-4, units=1000)
    assert account(ledger).spent_delta == pytest.approx(8e-4)
    open_run(ledger, "4", epsilon=1.0, delta=1.9e-4, units=1000)
    with pytest.raises(ConfigError, match="units"):
        open_run(ledger, "5", units=0)


def test_a_large_delta_is_warned_about(ledger):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_budget(ledger, delta=1e-3)
    with pytest.warns(UserWarning, match="far below 1/units"):
        set_budget(ledger, delta=2e-3)


def test_an_entry_is_certified_once_and_only_when_it_is_settled(ledger):
    open_run(ledger)
    with pytest.raises(UnsafeError, match="settle it"):
        ledger.certify("run", "1" * 64)
    ledger.settle("run", reserved_rounds=0, epsilon=0.0, delta=0.0)
    assert ledger.reserved("run").certificate_digest is None
    for _ in range(2):
        ledger.certify("run", "1" * 64)
    with pytest.raises(UnsafeError, match="another certificate"):
        ledger.certify("run", "2" * 64)
    assert ledger.reserved("run").certificate_digest == "1" * 64
    with pytest.raises(UnsafeError, match="never opened"):
        ledger.certify("?", "1" * 64)


def test_a_dataset_beside_has_one_certificate_of_its_own(ledger):
    """It neither takes the place of the run's certificate nor is replaced by another."""
    open_run(ledger)
    with pytest.raises(UnsafeError, match="settle it"):
        ledger.certify("run", "2" * 64, output="a/b-v0")
    ledger.settle("run", reserved_rounds=0, epsilon=0.0, delta=0.0)
    ledger.certify("run", "1" * 64)
    for _ in range(2):
        ledger.certify("run", "2" * 64, output="a/b-v0")
    ledger.certify("run", "3" * 64, output="a/c-v0")
    with pytest.raises(UnsafeError, match="another certificate for a/b-v0 already"):
        ledger.certify("run", "1" * 64, output="a/b-v0")
    entry = ledger.reserved("run")
    assert (entry.certificate_digest, entry.beside_digests) == ("1" * 64, ("2" * 64, "3" * 64))


def test_a_ledger_of_an_older_format_is_refused_in_one_line(tmp_path):
    Ledger(url_of(tmp_path)).close()
    with sqlite3.connect(tmp_path / "ledger.sqlite") as connection:
        connection.execute("UPDATE schema_versions SET version = 1")
    with pytest.raises(StorageError, match="format 1"):
        Ledger(url_of(tmp_path))


def test_what_rounding_leaves_is_called_nothing(ledger):
    for run in range(10):
        open_run(ledger, str(run), epsilon=1.0 - 1e-13, delta=1e-5)
    assert account(ledger).remaining_epsilon == 0.0
    with pytest.raises(BudgetError, match=r"has nothing of epsilon 10 and delta 0\.0009 of 0\.001"):
        open_run(ledger, "more", epsilon=1e-6, delta=1e-5)
    set_budget(ledger, epsilon=10.001, delta=1e-3)
    assert account(ledger).remaining_epsilon == pytest.approx(0.001)
