"""Bugs in whose budget is spent are planted, and the gate on accounts sees each."""

from pathlib import Path

import pytest

from tests.gates.accounts import gate_one_account
from tests.planted import account_bugs
from tests.planted.round_bugs import Plant

CASES: dict[str, tuple[Plant, str]] = {
    "spaces in the fingerprint": (
        account_bugs.spaces_in_the_fingerprint,
        "the same rows, declared otherwise",
    ),
    "partition not compared": (account_bugs.partition_not_compared, "as other people's"),
    "partition not made": (account_bugs.partition_not_made, "as other people's"),
    "partition compared by budgets alone": (
        account_bugs.partition_compared_by_budgets_alone,
        "a run on the rows as other people's",
    ),
    "no search for overlap": (account_bugs.no_search_for_overlap, "half of the rows: not refused"),
    "one side of the overlap": (
        account_bugs.one_side_of_the_overlap,
        "half of the rows among others",
    ),
    "names not compared": (
        account_bugs.names_not_compared,
        "the same people under other numbers: not refused",
    ),
    "rewards in the sketch": (account_bugs.rewards_in_the_sketch, "half of the rows: not refused"),
}


def test_rows_and_people_have_one_account(tmp_path: Path) -> None:
    gate_one_account(tmp_path)


@pytest.mark.parametrize("bug", CASES)
def test_the_gate_sees_the_bug(bug: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, what_it_says = CASES[bug]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=what_it_says):
            gate_one_account(tmp_path)
