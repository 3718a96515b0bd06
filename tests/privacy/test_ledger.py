import contextlib
import importlib.util
import json
import pickle
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy import text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError
from sqlalchemy.schema import CreateIndex, CreateTable

from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    MissingExtraError,
    RowsError,
    StorageError,
    UnsafeError,
)
from distributed_privrl.core.interrupts import interrupt
from distributed_privrl.privacy.ledger import Ledger, blocks, releases
from distributed_privrl.privacy.ledger.schema import METADATA
from distributed_privrl.privacy.ledger.storage import holds_password, ledger_url, shown_url
from distributed_privrl.privacy.units import Relation
from tests.worlds.ledgers import (
    DATASET,
    SPECIFICATION,
    account,
    open_run,
    release,
    set_budget,
    together,
    url_of,
)

# Budgets


def test_no_budget_is_refused_with_the_line_that_sets_one(tmp_path) -> None:
    ledger = Ledger(url_of(tmp_path))
    with pytest.raises(BudgetError) as refused:
        open_run(ledger, epsilon=2.5)
    line = f"privrl ledger budget {DATASET} --epsilon 2.5 --delta 1e-06 --unit trajectory"
    assert f"`{line}`" in str(refused.value)
    assert refused.value.exit_code == 3
    assert ledger.accounts() == []
    assert ledger.entries() == []


def test_the_whole_cost_is_held_before_the_run_and_refused_beyond_the_budget(ledger) -> None:
    open_run(ledger, "one")
    open_run(ledger, "two")
    assert account(ledger).spent_epsilon == 8.0
    assert account(ledger).remaining_epsilon == 2.0
    with pytest.raises(BudgetError) as refused:
        open_run(ledger, "three", epsilon=2.1234567)
    assert "epsilon 2 of 10" in str(refused.value)
    line = f"privrl ledger budget {DATASET} --epsilon 10.1235 --delta 1e-05 --unit trajectory"
    assert f"`{line}`" in str(refused.value)
    with pytest.raises(BudgetError, match=r"--delta 1\.1e-05 "):
        open_run(ledger, "three", epsilon=0.0, delta=9e-6)
    assert [entry.id for entry in ledger.entries()] == ["one", "two"]
    assert open_run(ledger, "three", epsilon=2.0, delta=8e-6).epsilon == 2.0


def test_the_proposed_line_makes_room(ledger) -> None:
    open_run(ledger, "one", epsilon=1 / 3)
    with pytest.raises(BudgetError) as refused:
        open_run(ledger, "two", epsilon=29 / 3 + 1e-5, delta=9.0000004e-6)
    words = str(refused.value).split("`")[1].split()
    set_budget(ledger, epsilon=float(words[5]), delta=float(words[7]))
    open_run(ledger, "two", epsilon=29 / 3 + 1e-5, delta=9.0000004e-6)


def test_float_sums_of_the_whole_budget_fit(ledger) -> None:
    for run in range(10):
        open_run(ledger, str(run), epsilon=1.0 + 1e-12, delta=1e-6)
    with pytest.raises(BudgetError):
        open_run(ledger, "more", epsilon=1e-6, delta=0.0)


def test_a_budget_may_rise_and_fall_but_not_below_what_is_spent(ledger) -> None:
    first = account(ledger)
    open_run(ledger)
    assert set_budget(ledger, epsilon=20.0).epsilon == 20.0
    assert set_budget(ledger, epsilon=4.0, delta=1e-6).remaining_epsilon == 0.0
    for less in ({"epsilon": 3.9}, {"delta": 1e-7}):
        with pytest.raises(BudgetError, match="cannot go below"):
            set_budget(ledger, **less)
    assert account(ledger).id == first.id
    assert (account(ledger).epsilon, account(ledger).delta) == (4.0, 1e-6)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"unit": "transition"}, UnsafeError, "a dataset has one"),
        ({"relation": Relation.REPLACE_ONE}, UnsafeError, "a dataset has one"),
        ({"fingerprint": "f2"}, RowsError, "have changed"),
        ({"dataset": "clinic/copy-v0"}, RowsError, f"already have a budget as {DATASET}"),
    ],
)
def test_a_dataset_has_one_account(ledger, changed, error, message) -> None:
    open_run(ledger)
    with pytest.raises(error, match=message):
        set_budget(ledger, **changed)
    assert len(ledger.accounts()) == 1


@pytest.mark.parametrize("changed", [{"unit": "patient"}, {"relation": Relation.REPLACE_ONE}])
def test_a_budget_that_is_not_spent_may_change_what_it_protects(ledger, changed) -> None:
    account = set_budget(ledger, **changed)
    assert {name: getattr(account, name) for name in changed} == changed
    assert len(ledger.accounts()) == 1
    with pytest.raises(UnsafeError, match="the budget of"):
        open_run(ledger)


def test_a_budget_that_was_never_charged_is_withdrawn_and_one_that_was_stays(ledger) -> None:
    with pytest.raises(BudgetError, match="no budget is set for clinic/other-v0"):
        ledger.withdraw("clinic/other-v0")
    assert ledger.withdraw(DATASET).dataset == DATASET
    assert ledger.accounts() == []
    set_budget(ledger, fingerprint="f2", unit="patient")  # the same people in another form
    assert ledger.withdraw(DATASET).unit == "patient"
    set_budget(ledger)
    open_run(ledger)
    ledger.settle("run", reserved_rounds=0, epsilon=0.0, delta=0.0)
    with pytest.raises(UnsafeError, match="something was charged of the budget"):
        ledger.withdraw(DATASET)
    assert len(ledger.accounts()) == 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"unit": "transition"}, "protects each trajectory, this run each transition"),
        ({"unit": "patient_id"}, "protects each trajectory"),
        ({"relation": Relation.REPLACE_ONE}, "relation replace_with_null"),
        ({"fingerprint": "f2"}, "have changed"),
        ({"dataset": "clinic/copy-v0"}, "use that id"),
    ],
)
def test_a_run_that_the_account_does_not_cover_is_refused(ledger, changed, message) -> None:
    with pytest.raises(UnsafeError, match=message) as refused:
        open_run(ledger, **changed)
    assert refused.value.exit_code == 4
    assert ledger.entries() == []


def test_a_coarser_run_may_be_charged_and_two_datasets_do_not_share(tmp_path) -> None:
    ledger = Ledger(url_of(tmp_path))
    set_budget(ledger, unit="transition", relation=Relation.REPLACE_ONE)
    set_budget(ledger, dataset="other-v0", fingerprint="f9", relation=Relation.REPLACE_ONE)
    assert open_run(ledger, relation=Relation.REPLACE_ONE).unit == "trajectory"
    assert [each.spent_epsilon for each in ledger.accounts()] == [4.0, 0.0]
    assert ledger.entries("other-v0") == []
    with pytest.raises(BudgetError, match="--relation replace_one`"):
        open_run(
            ledger,
            "b",
            dataset="other-v0",
            fingerprint="f9",
            relation=Relation.REPLACE_ONE,
            epsilon=11.0,
        )


@pytest.mark.parametrize(
    "changed",
    [
        {"epsilon": -1.0},
        {"epsilon": float("nan")},
        {"epsilon": float("inf")},
        {"delta": -1e-9},
        {"delta": 1.0},
        {"max_rounds": 0},
        {"event": {"a": object()}},
    ],
)
def test_wrong_charges_are_refused_by_name(ledger, changed) -> None:
    with pytest.raises(ConfigError, match=next(iter(changed))):
        open_run(ledger, **changed)


# Runs


def test_a_run_is_reserved_drawn_committed_and_settled(ledger) -> None:
    opened = open_run(ledger)
    assert (opened.status, opened.kind, opened.event) == ("open", "rounds", SPECIFICATION)
    block = ledger.reserve_rounds("run", rounds=60, nonce="a")
    assert (block.first_round, block.rounds, block.repeated) == (0, 60, False)
    ledger.commit_rounds("a", drawn=10)
    ledger.commit_rounds("a", drawn=60)
    ledger.commit_rounds("a", drawn=60)
    assert ledger.reserve_rounds("run", rounds=30, nonce="b").first_round == 60
    ledger.commit_rounds("b", drawn=20)
    entry = ledger.reserved("run")
    assert entry is not None
    counts = (entry.committed_rounds, entry.drawn_rounds, entry.reserved_rounds, entry.max_rounds)
    assert counts == (80, 80, 90, 100)
    ledger.settle("run", reserved_rounds=90, epsilon=3.5, delta=9e-7)
    ledger.settle("run", reserved_rounds=90, epsilon=3.5, delta=9e-7)
    entry = ledger.reserved("run")
    assert entry is not None
    assert (entry.status, entry.epsilon, entry.delta) == ("settled", 3.5, 9e-7)
    assert account(ledger).spent_epsilon == 3.5
    with pytest.raises(UnsafeError, match="settled at another cost"):
        ledger.settle("run", reserved_rounds=90, epsilon=3.0, delta=9e-7)
    with pytest.raises(UnsafeError, match="is settled"):
        ledger.reserve_rounds("run", rounds=1, nonce="c")
    with pytest.raises(UnsafeError, match="closed"):
        ledger.commit_rounds("b", drawn=21)


def test_settling_never_raises_a_charge(ledger) -> None:
    open_run(ledger)
    for epsilon, delta in ((4.1, 1e-6), (4.0, 2e-6), (-1.0, 0.0), (float("nan"), 0.0)):
        with pytest.raises(UnsafeError, match="cannot be settled"):
            ledger.settle("run", reserved_rounds=0, epsilon=epsilon, delta=delta)
    assert account(ledger).spent_epsilon == 4.0


def test_rounds_beyond_the_paid_ones_are_refused(ledger) -> None:
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=99, nonce="a")
    with pytest.raises(BudgetError, match="1 of 100 rounds left, not 2"):
        ledger.reserve_rounds("run", rounds=2, nonce="b")
    ledger.reserve_rounds("run", rounds=1, nonce="b")
    with pytest.raises(ConfigError, match="rounds"):
        ledger.reserve_rounds("run", rounds=0, nonce="c")


def test_a_repeated_nonce_reserves_once(ledger) -> None:
    open_run(ledger)
    open_run(ledger, "other")
    first = ledger.reserve_rounds("run", rounds=50, nonce="a")
    again = ledger.reserve_rounds("run", rounds=50, nonce="a")
    assert (first.repeated, again.repeated) == (False, True)
    assert (again.first_round, again.rounds) == (0, 50)
    entry = ledger.reserved("run")
    assert entry is not None
    assert entry.reserved_rounds == 50
    for run, rounds in (("run", 49), ("other", 50)):
        with pytest.raises(UnsafeError, match="nonce of its own"):
            ledger.reserve_rounds(run, rounds=rounds, nonce="a")


def test_what_was_drawn_is_never_taken_back_nor_beyond_the_block(ledger) -> None:
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=50, nonce="a")
    ledger.commit_rounds("a", drawn=20)
    for drawn in (19, 51, -1):
        with pytest.raises(UnsafeError, match="must lie between"):
            ledger.commit_rounds("a", drawn=drawn)
    for unknown in (
        lambda: ledger.commit_rounds("?", drawn=1),
        lambda: ledger.reserve_rounds("?", rounds=1, nonce="b"),
        lambda: ledger.settle("?", reserved_rounds=0, epsilon=0, delta=0),
        lambda: ledger.abandon_uncommitted("?"),
    ):
        with pytest.raises(UnsafeError, match="never"):
            unknown()
    assert ledger.reserved("?") is None


def test_abandoned_rounds_count_as_drawn_and_stay_charged(ledger) -> None:
    open_run(ledger)
    for nonce, committed in (("a", 30), ("b", 10), ("c", 0)):
        ledger.reserve_rounds("run", rounds=30, nonce=nonce)
        ledger.commit_rounds(nonce, drawn=committed)
    assert ledger.abandon_uncommitted("run") == 20 + 30
    assert ledger.abandon_uncommitted("run") == 0
    entry = ledger.reserved("run")
    assert entry is not None
    assert (entry.committed_rounds, entry.drawn_rounds, entry.reserved_rounds) == (40, 90, 90)
    assert entry.epsilon == 4.0
    with pytest.raises(UnsafeError, match="closed"):
        ledger.commit_rounds("b", drawn=30)
    assert ledger.reserve_rounds("run", rounds=30, nonce="c").abandoned
    assert ledger.reserve_rounds("run", rounds=10, nonce="d").first_round == 90


def test_a_run_is_resumed_with_the_same_values_only(ledger) -> None:
    opened = open_run(ledger)
    ledger.reserve_rounds("run", rounds=7, nonce="a")
    resumed = open_run(pickle.loads(pickle.dumps(ledger)))
    assert resumed.reserved_rounds == 7
    assert resumed.created == opened.created
    assert account(ledger).spent_epsilon == 4.0
    for changed in (
        {"epsilon": 3.0},
        {"delta": 2e-6},
        {"max_rounds": 101},
        {"units": 1000},
        {"event": {**SPECIFICATION, "noise_multiplier": 1.4}},
    ):
        with pytest.raises(UnsafeError, match="resume with the same configuration"):
            open_run(ledger, **changed)
    with pytest.raises(UnsafeError, match="another kind"):
        release(ledger, "run", lambda: 1)
    ledger.settle("run", reserved_rounds=7, epsilon=1.0, delta=0.0)
    assert open_run(ledger).status == "settled"


# Releases


def test_a_release_is_charged_before_it_is_drawn_and_drawn_once(ledger) -> None:
    seen = []

    def draw() -> dict[str, float]:
        with contextlib.closing(pickle.loads(pickle.dumps(ledger))) as other:
            seen.append(other.accounts()[0].spent_epsilon)
        return {"count": 12.5}

    answer, entry = release(ledger, "count", draw)
    again, same = release(ledger, "count", draw)
    assert answer == again == {"count": 12.5}
    assert seen == [1.0]
    assert entry == same == ledger.reserved("count")
    assert (entry.kind, entry.status, entry.committed_rounds) == ("release", "settled", 1)
    assert account(ledger).spent_epsilon == 1.0
    with pytest.raises(UnsafeError, match="another held_epsilon"):
        release(ledger, "count", draw, epsilon=0.5)
    with pytest.raises(UnsafeError, match="never gets lower"):
        ledger.settle("count", reserved_rounds=1, epsilon=0.0, delta=0.0)
    with pytest.raises(UnsafeError, match="not a run"):
        ledger.reserve_rounds("count", rounds=1, nonce="b")
    with pytest.raises(BudgetError):
        release(ledger, "more", draw, epsilon=9.5)
    assert len(seen) == 1


@pytest.mark.parametrize("crash", [KeyboardInterrupt, ValueError])
def test_a_release_that_crashes_while_drawing_is_spent(ledger, crash) -> None:
    def draw() -> None:
        raise crash

    with pytest.raises(crash):
        release(ledger, "count", draw)
    assert account(ledger).spent_epsilon == 1.0
    with pytest.raises(UnsafeError, match="it is spent"):
        release(ledger, "count", lambda: pytest.fail("drawn again"))
    with pytest.raises(ConfigError, match="JSON"):
        release(ledger, "other", object)
    assert account(ledger).spent_epsilon == 2.0


@pytest.mark.parametrize("what", ["release", "block"])
def test_an_interruption_while_the_ledger_is_waited_for_pays_for_nothing(
    ledger, monkeypatch, what
) -> None:
    """It is held back until the transaction ends, which is too late for what it would pay for."""
    open_run(ledger)
    module = releases if what == "release" else blocks
    name = "charge" if what == "release" else "reserve"
    done = getattr(module, name)

    def interrupted(*arguments):
        interrupt()
        return done(*arguments)

    def ask():
        if what == "release":
            return release(ledger, "count", lambda: 7)
        return ledger.reserve_rounds("run", rounds=3, nonce="a")

    with monkeypatch.context() as patch:
        patch.setattr(module, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask()
    assert [entry.id for entry in ledger.entries()] == ["run"]
    assert ledger.reserved("run").reserved_rounds == 0
    ask()
    assert len(ledger.entries()) == (2 if what == "release" else 1)


def test_a_block_nonce_is_no_release_nonce(ledger) -> None:
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=1, nonce="a")
    with pytest.raises(UnsafeError, match="nonce of its own"):
        release(ledger, "a", lambda: 1)
    assert account(ledger).spent_epsilon == 4.0


# Durability and concurrency


_KILLED = """
import os, signal, sys
from distributed_privrl.core.interrupts import interrupt
from distributed_privrl.privacy.ledger import Ledger, blocks, releases
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import Relation
ledger = Ledger(sys.argv[1])
common = dict(dataset="clinic/stays-v0", fingerprint="f1", unit="trajectory",
              relation=Relation.REPLACE_WITH_NULL, event={}, entry_id="killed")
def die():
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "release":
    ledger.release_once(Charge(kind="release", epsilon=1.0, delta=0.0, **common), draw=die)
run = Charge(kind="rounds", epsilon=4.0, delta=1e-6, max_rounds=100, **common)
ledger.open_together([run])
ledger.reserve_rounds("killed", rounds=40, nonce="a")
ledger.commit_rounds("a", drawn=15)
die()
"""


@pytest.mark.parametrize(("kind", "charged"), [("rounds", 4.0), ("release", 1.0)])
def test_a_killed_process_keeps_its_charge(ledger, tmp_path, kind, charged) -> None:
    command = [sys.executable, "-c", _KILLED, url_of(tmp_path), kind]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert account(ledger).spent_epsilon == charged
    if kind == "rounds":
        assert open_run(ledger, "killed", event={}).reserved_rounds == 40
        assert ledger.abandon_uncommitted("killed") == 25
    else:
        with pytest.raises(UnsafeError, match="it is spent"):
            release(ledger, "killed", lambda: 1, event={})


_SPEND = together(
    """
from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import Relation

common = dict(dataset="clinic/stays-v0", fingerprint="f1", unit="trajectory",
              relation=Relation.REPLACE_WITH_NULL, event={})

def one(worker):
    ledger, runs, rounds = Ledger(sys.argv[1]), 0, 0
    for attempt in range(6):
        with contextlib.suppress(BudgetError):
            cost = dict(epsilon=0.5, delta=1e-7, kind="rounds")
            ledger.open_together([Charge(entry_id=f"{worker}-{attempt}", **cost, **common)])
            runs += 1
        with contextlib.suppress(BudgetError):
            ledger.reserve_rounds("shared", rounds=7, nonce=f"{worker}/{attempt}")
            rounds += 7
        with contextlib.suppress(BudgetError, UnsafeError):
            cost = dict(epsilon=0.25, delta=0.0, kind="release")
            same = Charge(entry_id=f"same-{attempt}", **cost, **common)
            ledger.release_once(same, draw=lambda: 1)
    print(f"{runs} {rounds}\\n", end="")
""",
    8,
)


def test_eight_processes_never_overspend(ledger, tmp_path) -> None:
    open_run(ledger, "shared", epsilon=1.0, max_rounds=100)
    command = [sys.executable, "-c", _SPEND, url_of(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(results) == 8
    spent = account(ledger)
    releases = [entry for entry in ledger.entries() if entry.kind == "release"]
    assert spent.spent_epsilon <= spent.epsilon
    runs = sum(charged for charged, _ in results)
    assert spent.spent_epsilon == 1.0 + 0.5 * runs + 0.25 * len(releases)
    assert spent.remaining_epsilon < 0.5
    assert len({entry.id for entry in releases}) == len(releases)
    shared = ledger.reserved("shared")
    assert shared is not None
    assert shared.reserved_rounds == sum(rounds for _, rounds in results) == 98


class RoundCounts(RuleBasedStateMachine):
    """committed <= drawn <= reserved <= max whatever happens, reopening at any time."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.ledger = Ledger(url_of(Path(self.folder.name)))
        set_budget(self.ledger)
        open_run(self.ledger)
        self.blocks: dict[str, list[int]] = {}  # nonce -> [rounds, drawn, committed, open]

    @rule(rounds=st.integers(1, 60), name=st.integers(0, 5))
    def reserve(self, rounds: int, name: int) -> None:
        nonce = str(name)
        known = self.blocks.get(nonce)
        taken = sum(block[0] for block in self.blocks.values())
        try:
            self.ledger.reserve_rounds("run", rounds=rounds, nonce=nonce)
        except BudgetError:
            assert known is None
            assert taken + rounds > 100
        except UnsafeError:
            assert known is not None
            assert known[0] != rounds
        else:
            assert taken + rounds <= 100 or known is not None
            self.blocks.setdefault(nonce, [rounds, 0, 0, 1])

    @rule(name=st.integers(0, 5), drawn=st.integers(0, 61))
    def commit(self, name: int, drawn: int) -> None:
        block = self.blocks.get(str(name))
        try:
            self.ledger.commit_rounds(str(name), drawn=drawn)
        except UnsafeError:
            assert block is None or not block[3] or not block[1] <= drawn <= block[0]
        else:
            assert block is not None
            block[1] = block[2] = drawn

    @rule()
    def crash(self) -> None:
        self.ledger = pickle.loads(pickle.dumps(self.ledger))
        lost = self.ledger.abandon_uncommitted("run")
        expected = 0
        for block in self.blocks.values():
            if block[3] and block[2] < block[0]:
                expected += block[0] - block[2]
                block[1], block[3] = block[0], 0
        assert lost == expected

    @invariant()
    def counts_are_ordered_and_as_recorded(self) -> None:
        if not hasattr(self, "ledger"):
            return
        entry = self.ledger.reserved("run")
        assert entry is not None
        counts = entry.committed_rounds, entry.drawn_rounds, entry.reserved_rounds
        assert list(counts) == sorted(counts)
        assert entry.reserved_rounds <= entry.max_rounds
        blocks = self.blocks.values()
        assert counts == tuple(sum(block[column] for block in blocks) for column in (2, 1, 0))
        assert entry.epsilon == 4.0

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.ledger.close()
            self.folder.cleanup()


TestRoundCounts = RoundCounts.TestCase
TestRoundCounts.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE blocks SET drawn = rounds + 1",
        "UPDATE blocks SET committed = drawn + 1",
        "UPDATE entries SET committed_rounds = drawn_rounds + 1",
        "UPDATE entries SET drawn_rounds = reserved_rounds + 1",
        "UPDATE entries SET reserved_rounds = max_rounds + 1",
        "UPDATE entries SET epsilon = held_epsilon + 1",
        "UPDATE entries SET status = 'free'",
        "UPDATE accounts SET epsilon = 0",
        "DELETE FROM entries",
        "DELETE FROM accounts",
    ],
)
def test_the_database_itself_refuses_wrong_counts(ledger, statement) -> None:
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=10, nonce="a")
    with (
        pytest.raises(StorageError) as refused,
        ledger._storage.transaction() as connection,
    ):
        connection.execute(text(statement))
    assert isinstance(refused.value.__cause__, IntegrityError)


# Storage


@pytest.mark.power_cut
def test_commits_outlive_a_power_cut_and_the_file_is_private(ledger, tmp_path) -> None:
    with ledger._storage.transaction() as connection:
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 3  # EXTRA
        assert connection.execute(text("PRAGMA foreign_keys")).scalar() == 1
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "delete"
    assert stat.S_IMODE((tmp_path / "ledger.sqlite").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["ledger.sqlite"]


def test_the_ledger_is_found_by_environment_or_in_the_users_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PRIVRL_LEDGER", url_of(tmp_path / "a"))
    set_budget(Ledger())
    assert len(Ledger(url_of(tmp_path / "a")).accounts()) == 1
    monkeypatch.delenv("PRIVRL_LEDGER")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "b"))
    Ledger()
    assert (tmp_path / "b" / "privrl" / "ledger.sqlite").is_file()
    monkeypatch.chdir(tmp_path)
    relative = Ledger("sqlite:///c.sqlite")
    monkeypatch.chdir("/")
    assert pickle.loads(pickle.dumps(relative)).accounts() == []
    assert (tmp_path / "c.sqlite").is_file()


@pytest.mark.parametrize(
    "url", ["ledger.sqlite", "mysql://host/db", "sqlite://", "sqlite:///:memory:", "://", "x:y:z//"]
)
def test_malformed_urls_are_configuration_errors(url) -> None:
    with pytest.raises(ConfigError, match="ledger") as refused:
        Ledger(url)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bad", ["ledger.sqlite", "mysql://host/db", "sqlite://", "file:a", "x:y"])
def test_a_bad_value_is_told_with_what_it_came_from(bad, monkeypatch, tmp_path) -> None:
    examples = r"give e\.g\. (sqlite:////data/ledger.sqlite or|file:/secrets/ledger)"
    with pytest.raises(ConfigError, match=rf"^--ledger .*{examples}"):
        Ledger(bad)
    monkeypatch.setenv("PRIVRL_LEDGER", bad)
    with pytest.raises(ConfigError, match=rf"^PRIVRL_LEDGER .*{examples}"):
        Ledger()
    secret = tmp_path / "secret"
    secret.write_text("hush")
    secret.chmod(0o600)
    monkeypatch.setenv("PRIVRL_LEDGER", f"file:{secret}")
    with pytest.raises(
        ConfigError, match=f"what {secret} holds, which PRIVRL_LEDGER names"
    ) as told:
        Ledger()
    assert "hush" not in str(told.value)


def test_a_place_that_cannot_be_used_is_told_with_what_named_it(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "corrupt.sqlite").write_bytes(b"no database at all" * 100)
    for url in (f"sqlite:///{tmp_path}/file/ledger.sqlite", f"sqlite:///{tmp_path}/corrupt.sqlite"):
        assert "(from --ledger)" in one_storage_line(url)
        monkeypatch.setenv("PRIVRL_LEDGER", url)
        said = one_storage_line(None)
        assert "(from PRIVRL_LEDGER)" in said
        assert "give e.g. sqlite:////data/ledger.sqlite" in said
    good = f"sqlite:///{tmp_path}/ledger.sqlite"
    monkeypatch.setenv("PRIVRL_LEDGER", good)
    travelling = pickle.dumps(Ledger())
    (tmp_path / "ledger.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(StorageError, match=r"\(from PRIVRL_LEDGER\)"):
        pickle.loads(travelling)


def one_storage_line(url: str | None) -> str:
    with pytest.raises(StorageError) as refused:
        Ledger(url).accounts()
    message = str(refused.value)
    assert "\n" not in message
    assert refused.value.exit_code == 7
    return message


def test_storage_trouble_is_one_line(tmp_path, monkeypatch) -> None:
    (tmp_path / "corrupt.sqlite").write_bytes(b"no database at all" * 100)
    assert "not a database" in one_storage_line(f"sqlite:///{tmp_path}/corrupt.sqlite")
    assert "open the ledger" in one_storage_line(f"sqlite:///{tmp_path}/corrupt.sqlite/x")
    assert "open the ledger" in one_storage_line(f"sqlite:///{tmp_path}")
    set_budget(Ledger(url_of(tmp_path)))
    monkeypatch.setattr("distributed_privrl.privacy.ledger.attempts.BUSY_SECONDS", 0.05)
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as holder:
        holder.isolation_level = None
        holder.execute("BEGIN IMMEDIATE")
        assert "another process holds it" in one_storage_line(url_of(tmp_path))
        holder.execute("ROLLBACK")
        holder.execute("UPDATE schema_versions SET version = 99")
    assert "format 99" in one_storage_line(url_of(tmp_path))


def test_a_full_disk_refuses_and_charges_nothing(ledger) -> None:
    @sqlalchemy_event.listens_for(ledger._storage.engine, "connect")
    def fill(connection: Any, _record: Any) -> None:
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(StorageError, match="free some space"):
        open_run(ledger, event={"text": "x" * 100_000})
    assert account(ledger).spent_epsilon == 0.0
    assert ledger.entries() == []


def test_nothing_is_sqlite_only(ledger) -> None:
    dialect = postgresql.dialect()
    for table in METADATA.sorted_tables:
        ddl = str(CreateTable(table).compile(dialect=dialect))
        assert "CHECK" in ddl or table.name in ("schema_versions", "sketches")
        for index in table.indexes:
            CreateIndex(index).compile(dialect=dialect)
    assert "DOUBLE PRECISION" in str(
        CreateTable(METADATA.tables["accounts"]).compile(dialect=dialect)
    )
    statements = []

    @sqlalchemy_event.listens_for(ledger._storage.engine, "before_execute")
    def note(_connection: Any, statement: Any, *_: Any) -> None:
        statements.append(str(statement.compile(dialect=dialect)))

    set_budget(ledger, epsilon=11.0)
    open_run(ledger)
    ledger.reserve_rounds("run", rounds=10, nonce="a")
    ledger.commit_rounds("a", drawn=5)
    ledger.abandon_uncommitted("run")
    ledger.settle("run", reserved_rounds=10, epsilon=1.0, delta=0.0)
    ledger.certify("run", "0" * 64)
    release(ledger, "count", lambda: 1)
    ledger.entries(DATASET)
    assert len(statements) > 20
    # what serialises writers there: the account's row for charges, the entry's for rounds
    assert any("FROM accounts" in each and each.endswith("FOR UPDATE") for each in statements)
    assert any(each.endswith("FOR UPDATE OF entries") for each in statements)


def test_postgresql_needs_its_driver_and_hides_the_password(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[postgres\]"):
        Ledger("postgresql://user:secret@127.0.0.1:1/ledger")
    url = ledger_url("postgresql://user:secret@127.0.0.1:1/ledger")
    assert url.drivername == "postgresql+psycopg"
    assert "secret" not in str(url)


def test_no_message_shows_a_password_that_is_an_option(monkeypatch) -> None:
    url = ledger_url("postgresql://user@127.0.0.1:1/ledger?password=secret&sslpassword=secret")
    assert holds_password(url)
    assert shown_url(url) == "postgresql+psycopg://user@127.0.0.1:1/ledger"
    assert not holds_password(ledger_url("postgresql://user@127.0.0.1/ledger?sslmode=require"))
    if importlib.util.find_spec("psycopg") is not None:
        monkeypatch.setattr("distributed_privrl.privacy.ledger.attempts.FIRST_SECONDS", 0)
        with pytest.raises(StorageError) as refused:
            Ledger(url.render_as_string(hide_password=False))
        assert "secret" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        ledger_url("sqlite://secret")  # what a file holds that should hold a URL
    assert "secret" not in str(refused.value)


def test_entries_and_accounts_are_plain_values(ledger) -> None:
    entry = open_run(ledger)
    assert json.loads(json.dumps(entry.event)) == SPECIFICATION
    assert isinstance(entry.relation, Relation)
    assert ledger.entries(DATASET) == ledger.entries() == [entry]
    ledger.close()
