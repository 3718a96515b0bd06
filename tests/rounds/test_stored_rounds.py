"""Rounds whose checkpoints lie in an object store: whatever fails there, the ledger holds."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.places import place_of
from distributed_privrl.data.stored_folders import opened_folder
from distributed_privrl.privacy.ledger import Ledger
from tests.worlds.bucket import Puts, machine, stand_in
from tests.worlds.toy_run import RUN_ID, ToyRun

URI = place_of("--out", "s3://clinic/runs/toy")
CHECKPOINTS, PUTS = 4, 5


@dataclass(frozen=True, kw_only=True)
class StoredRun(ToyRun):
    """A toy run in a folder of a store; its ledger lies where no machine's end takes it."""

    home: Path

    @property
    def ledger(self) -> Ledger:
        return Ledger(f"sqlite:///{self.home / 'ledger.sqlite'}")


def entry_of(run: StoredRun) -> tuple[int, int, int]:
    """Return the rounds that the ledger has committed, drawn and reserved."""
    entry = run.ledger.reserved(RUN_ID)
    assert entry is not None
    return entry.committed_rounds, entry.drawn_rounds, entry.reserved_rounds


@pytest.mark.parametrize(
    ("fails", "half"), [(1, True), (2, True), (2, False), (3, False), (4, True), (PUTS, False)]
)
def test_a_store_that_fails_at_any_write_costs_its_block_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, half: bool
) -> None:
    """Privacy: RoundServer: what is committed is in the store, wherever the run goes on."""
    stand_in(tmp_path, monkeypatch)
    run = StoredRun(folder=tmp_path, home=tmp_path)
    with (
        Puts(fails, half=half).counted(),
        pytest.raises(StorageError, match="does not answer"),
        opened_folder(URI) as folder,
    ):
        replace(run, folder=folder).train()
    machine(tmp_path / "another", monkeypatch)
    with Puts().counted() as puts, opened_folder(URI) as folder:
        again = replace(run, folder=folder)
        if fails > 1:
            committed, drawn, reserved = entry_of(run)
            assert committed == 5 * (fails - 2)
            assert committed <= drawn <= reserved <= committed + run.block
        again.train()
    committed, drawn, reserved = entry_of(run)
    assert committed == run.rounds
    assert committed <= drawn <= reserved <= run.rounds + run.block
    assert len(puts.names) == PUTS - fails + 1  # nothing that was stored is stored again


def test_a_run_that_changes_machines_ends_as_one_that_stayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = StoredRun(folder=tmp_path / "local", home=tmp_path / "local")
    local.folder.mkdir()
    expected = local.train()
    stand_in(tmp_path, monkeypatch)
    run = StoredRun(folder=tmp_path, home=tmp_path)
    for leg in range(CHECKPOINTS):
        machine(tmp_path / f"machine{leg}", monkeypatch)
        with opened_folder(URI) as folder, replace(run, folder=folder).server() as server:
            server.call("advance", {"rounds": run.block})
            found = replace(run, folder=folder).parameters()
    np.testing.assert_array_equal(found, expected)
    assert entry_of(run) == (run.rounds, run.rounds, run.rounds)
