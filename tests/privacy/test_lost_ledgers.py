"""A ledger in a file that is deleted, emptied or of the version before."""

import pickle
import sqlite3
import stat
from pathlib import Path

import pytest

from distributed_privrl.core.errors import StorageError
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.schema import VERSION
from tests.worlds.ledgers import open_run, set_budget, url_of


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(url_of(tmp_path))
    ledger.register.key()
    set_budget(ledger)
    open_run(ledger)
    return ledger


@pytest.mark.parametrize("emptied", [False, True])
def test_a_ledger_that_is_gone_is_not_made_again(
    ledger: Ledger, tmp_path: Path, *, emptied: bool
) -> None:
    path = tmp_path / "ledger.sqlite"
    travelling, content = pickle.dumps(ledger), path.read_bytes()

    def gone() -> bool:
        return path.stat().st_size == 0 if emptied else not path.exists()

    if emptied:
        path.write_bytes(b"")
    else:
        path.unlink()
    for use in (
        lambda: ledger.reserve_rounds("run", rounds=1, nonce="a"),
        lambda: pickle.loads(travelling),
        lambda: Ledger(url_of(tmp_path)),
    ):
        with pytest.raises(StorageError, match="bring it back") as refused:
            use()
        assert refused.value.exit_code == 7
        assert gone()
    path.write_bytes(content)
    assert ledger.reserve_rounds("run", rounds=1, nonce="a").first_round == 0


def test_a_new_ledger_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    Ledger(url_of(tmp_path))
    assert stat.S_IMODE((tmp_path / "ledger.sqlite").stat().st_mode) == 0o600


def test_a_file_of_the_version_before_is_brought_forward(ledger: Ledger, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.sqlite") as before:
        for table in ("entries", "holds"):
            before.execute(f"ALTER TABLE {table} DROP COLUMN made_by")
        before.execute(f"UPDATE schema_versions SET version = {VERSION - 1}")
    (entry,) = Ledger(url_of(tmp_path)).entries()
    assert (entry.id, entry.made_by) == ("run", None)
    open_run(ledger, "new", epsilon=1.0)
    assert ledger.reserved("new").made_by is not None
