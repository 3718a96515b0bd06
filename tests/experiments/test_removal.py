"""A dataset is removed whole and at once; what was spent of its budget is not."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core import files
from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError, UnsafeError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.splitting import split
from distributed_privrl.experiments.accounts import check_public
from distributed_privrl.experiments.removal import needed_by, remove_dataset
from tests.worlds.certified import certify
from tests.worlds.ledgers import holding, release
from tests.worlds.ward import NAME, STAYS, Ward, stays


@pytest.fixture
def ward(tmp_path: Path) -> Ward:
    made = Ward(tmp_path)
    made.write(NAME, stays())
    return made


def written(ward: Ward) -> tuple[Any, ...]:
    """Return all that the ledger says."""
    ledger = ward.ledger
    return ledger.accounts(), ledger.entries(), ledger.holds(), ledger.register.sketches()


def whose(ward: Ward, name: str) -> dict[str, Any]:
    """Return what the ledger knows a dataset by: what its rows are, and whose."""
    found = inspect(ward.store, name, unit="patient").identity
    return {"dataset": name, "fingerprint": found, "unit": "patient"}


def spend(ward: Ward, name: str, epsilon: float, run: str) -> None:
    """Charge a release to a dataset's account."""
    release(ward.ledger, f"{run}/count", lambda: 1, **whose(ward, name), epsilon=epsilon)


def test_rows_that_come_back_have_spent_what_they_had(ward: Ward) -> None:
    ward.budget(NAME)
    spend(ward, NAME, 3.0, "first")
    before = written(ward)
    account = remove_dataset(ward.store, ward.ledger, NAME, anyway=True)
    assert account is not None
    assert account.remaining_epsilon == 2.0
    assert not ward.store.ids()
    assert not list(ward.store.root.rglob("*.parquet"))
    assert written(ward) == before, "the ledger stays as it is"

    shuffled = stays().select(np.random.default_rng(0).permutation(STAYS))
    for rows in (stays(), shuffled):
        ward.write(NAME, rows)
        with pytest.raises(BudgetError, match=r"2 of 5"):
            spend(ward, NAME, 3.0, "second")
        ward.budget(NAME)  # set again, and nothing is free
        assert ward.ledger.accounts() == before[0]
        ward.store.remove(NAME)
    half, others = stays().select(np.arange(STAYS // 2)), stays(seed=2)
    renamed = replace(stays(), unit_ids=np.arange(STAYS, dtype=np.uint64))
    for rows, message in (
        (stays(), "already have a budget as ward/stays-v0"),
        (renamed, "already have a budget as ward/stays-v0"),
        (half, "of the rows of ward/stays-v0"),
    ):
        ward.write("ward/again-v0", rows)
        with pytest.raises(UnsafeError, match=message):
            ward.budget("ward/again-v0")
        ward.store.update_metadata("ward/again-v0", {PUBLIC_KEY: True})
        with pytest.raises(UnsafeError, match="cannot be public"):
            check_public(ward.store, ward.ledger, ["ward/again-v0"])
        ward.store.remove("ward/again-v0")
    ward.write(NAME, others)
    with pytest.raises(UnsafeError, match="have changed since its budget was set"):
        ward.budget(NAME)


def test_a_side_of_a_split_takes_its_account_with_nobody(ward: Ward) -> None:
    """Whole and sides go; the whole comes back without a mark of its sides."""
    training, held_out = split(ward.store, NAME, held_out_share=0.5, seed=1)
    ward.budget(training.id)
    spend(ward, training.id, 3.0, "run")
    for name in (NAME, held_out.id):
        with pytest.raises(ConfigError, match=f"it and {training.id}, which has a budget"):
            remove_dataset(ward.store, ward.ledger, name)
    for name in (NAME, training.id, held_out.id):
        remove_dataset(ward.store, ward.ledger, name, anyway=True)
    ward.write("ward/whole-v0", stays())
    with pytest.raises(UnsafeError, match=f"{training.id}, which has a budget"):
        ward.budget("ward/whole-v0")


def test_what_is_needed_is_not_removed(ward: Ward) -> None:
    def reasons() -> list[str]:
        with pytest.raises(ConfigError, match="--anyway removes it all the same") as refused:
            remove_dataset(ward.store, ward.ledger, NAME)
        assert "\n" not in str(refused.value)
        assert ward.store.holds(NAME)
        return list(needed_by(ward.store, ward.ledger, NAME))

    assert not list(needed_by(ward.store, ward.ledger, NAME))
    ward.budget(NAME)
    assert not list(needed_by(ward.store, ward.ledger, NAME)), "a budget alone needs no rows"
    ward.ledger.open_hold(holding("stays-1", epsilon=1.0, **whose(ward, NAME)))
    (held,) = reasons()
    assert "`privrl ledger settle stays-1` gives it up" in held
    ward.ledger.give_up("stays-1")
    spend(ward, NAME, 1.0, "stays-2")
    (charged,) = reasons()
    assert "charged as stays-2/count" in charged
    metadata = ward.store.metadata_file(NAME)
    text = metadata.read_text()
    metadata.write_text(text[:-9])
    assert "metadata cannot be read" in reasons()[-1]
    metadata.write_text(text)
    certify(ward.store, NAME, method="privorl_j")
    assert "release of a run" in reasons()[-1]


def test_a_removal_that_fails_leaves_the_dataset_whole(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(files.os, "rename", full)
        with pytest.raises(StorageError, match="no space left"):
            remove_dataset(ward.store, ward.ledger, NAME)
    assert len(ward.store.read_trajectories(NAME)) == STAYS
    remove_dataset(ward.store, ward.ledger, NAME)
    assert not [path for path in ward.store.root.rglob("*") if path.is_file()]
    with pytest.raises(ConfigError, match="no dataset 'ward/stays-v0'"):
        remove_dataset(ward.store, ward.ledger, NAME, anyway=True)
