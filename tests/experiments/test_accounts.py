"""One account for the same data, and none for public rows."""

import shutil
from pathlib import Path

import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.splitting import split
from distributed_privrl.experiments.accounts import (
    check_public,
    check_sensitive,
    check_splittable,
)
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.worlds.clinic import SIDES, STAYS, Clinic


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


def test_a_half_of_sensitive_data_is_no_public_dataset(clinic: Clinic) -> None:
    training, held_out = SIDES
    clinic.budget(training)
    with pytest.raises(UnsafeError, match=r"held-out-v0 cannot be public: it is a side of clinic"):
        clinic.run(sensitive=training, public=[held_out])
    assert clinic.ledger.entries() == []
    assert not (clinic.folder / "run").exists()


def test_rows_with_a_budget_are_no_public_dataset(clinic: Clinic) -> None:
    clinic.budget(SIDES[0])
    rows = clinic.store.read_transitions(SIDES[0], unit="transition")
    clinic.write("clinic/copy-v0", rows, metadata={"declared_public": True})
    clinic.make("clinic/others-v0", seed=5)
    clinic.budget("clinic/others-v0")
    with pytest.raises(UnsafeError, match=r"copy-v0 cannot be public: .* clinic/stays-training-v0"):
        clinic.run(sensitive="clinic/others-v0", public=["clinic/public-v0", "clinic/copy-v0"])
    assert clinic.ledger.entries() == []
    check_public(clinic.store, clinic.ledger, ["clinic/public-v0"])


@pytest.mark.parametrize("spaces", [1.0, 2.0])
def test_a_copy_in_another_order_or_with_other_spaces_is_found(
    clinic: Clinic, spaces: float
) -> None:
    clinic.budget(SIDES[0])
    rows = clinic.store.read_transitions(SIDES[0], unit="transition")
    turned = rows.select(slice(None, None, -1))
    clinic.write("clinic/turned-v0", turned, spaces, metadata={"declared_public": True})
    with pytest.raises(UnsafeError, match=r"its id or its rows have a privacy budget as"):
        check_public(clinic.store, clinic.ledger, ["clinic/turned-v0"])


@pytest.mark.parametrize("status", ["non_private", "invalid"])
def test_rows_made_without_a_guarantee_are_no_public_dataset(clinic: Clinic, status: str) -> None:
    clinic.store.update_metadata("clinic/public-v0", {"privacy_certificate": {"status": status}})
    clinic.budget(SIDES[0])
    with pytest.raises(UnsafeError, match=f"public-v0 cannot be public: .* {status}"):
        clinic.run(sensitive=SIDES[0], public=["clinic/public-v0"])
    assert clinic.ledger.entries() == []


@pytest.mark.parametrize("first", [STAYS, *SIDES])
@pytest.mark.parametrize("second", [STAYS, *SIDES, "clinic/stays-training-training-v0"])
def test_a_dataset_and_its_sides_share_one_account(clinic: Clinic, first: str, second: str) -> None:
    split(clinic.store, SIDES[0], held_out_share=0.5, seed=1)
    clinic.budget(first)
    if first == second:
        clinic.budget(second)  # raised, say
        return
    with pytest.raises(UnsafeError, match=f"parts of the same data, and {first} has a budget"):
        clinic.budget(second)
    assert [account.dataset for account in clinic.ledger.accounts()] == [first]


@pytest.mark.parametrize("gone", [(SIDES[0],), (SIDES[0], STAYS)])
def test_a_side_that_was_deleted_still_counts(clinic: Clinic, gone: tuple[str, ...]) -> None:
    clinic.budget(SIDES[0])
    for dataset in gone:
        shutil.rmtree(clinic.store.root / dataset)
    for other in {STAYS, SIDES[1]} - set(gone):
        with pytest.raises(UnsafeError, match=f"parts of the same data, and {SIDES[0]} has"):
            clinic.budget(other)


def test_a_side_of_a_side_that_was_deleted_still_counts(clinic: Clinic) -> None:
    split(clinic.store, SIDES[0], held_out_share=0.5, seed=1)
    inner = "clinic/stays-training-training-v0"
    clinic.budget(inner)
    for dataset in (inner, SIDES[0]):
        shutil.rmtree(clinic.store.root / dataset)
    for other in (STAYS, SIDES[1]):
        with pytest.raises(UnsafeError, match=f"parts of the same data, and {inner} has"):
            clinic.budget(other)


def test_the_whole_of_a_side_with_a_budget_is_not_public(clinic: Clinic) -> None:
    clinic.make("clinic/others-v0", seed=5)
    clinic.budget("clinic/others-v0")
    clinic.budget(SIDES[0])
    with pytest.raises(
        UnsafeError, match=f"{STAYS} cannot be public: some of its rows .*{SIDES[0]}"
    ):
        clinic.run(sensitive="clinic/others-v0", public=[STAYS])
    assert clinic.ledger.entries() == []


def test_a_run_refuses_what_has_two_accounts_already(clinic: Clinic) -> None:
    for dataset in SIDES:  # as a ledger of an earlier version may hold them
        clinic.ledger.set_budget(
            dataset=dataset,
            fingerprint=inspect(clinic.store, dataset, unit="transition").identity,
            budget=PrivacyBudget(epsilon=5.0, delta=1e-5, unit="transition"),
        )
    with pytest.raises(UnsafeError, match="parts of the same data"):
        clinic.run(sensitive=SIDES[0])
    assert clinic.ledger.entries() == []


def test_what_has_a_budget_is_not_split(clinic: Clinic) -> None:
    check_splittable(clinic.store, clinic.ledger, STAYS)
    clinic.budget(STAYS)
    with pytest.raises(UnsafeError, match="split before a budget is set"):
        check_splittable(clinic.store, clinic.ledger, STAYS)


def test_sides_by_position_know_no_removal(clinic: Clinic) -> None:
    with pytest.raises(UnsafeError, match="split by position"):
        clinic.budget(SIDES[0], relation=Relation.ADD_OR_REMOVE)
    clinic.budget(SIDES[0])
    with pytest.raises(UnsafeError, match="split by position"):
        clinic.run(
            sensitive=SIDES[0],
            privacy={"epsilon": 5.0, "delta": 1e-5, "relation": "add_or_remove"},
        )
    assert clinic.ledger.entries() == []
    clinic.make("clinic/named-v0", seed=7, unit_column="person")
    split(clinic.store, "clinic/named-v0", held_out_share=0.5, seed=0)
    check_sensitive(
        clinic.store,
        clinic.ledger,
        "clinic/named-training-v0",
        relation=Relation.ADD_OR_REMOVE,
    )


def test_public_rows_are_not_sensitive(clinic: Clinic) -> None:
    with pytest.raises(UnsafeError, match="was declared public"):
        clinic.budget("clinic/public-v0")
    with pytest.raises(UnsafeError, match="was declared public"):
        clinic.run(sensitive="clinic/public-v0")
    assert clinic.ledger.accounts() == []
