"""Bugs in affording a run and in the order of its draws: planted, and the gate sees each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import ledger as gates
from tests.gates.filter import gate_no_trajectory_is_filtered_twice
from tests.planted import ledger_bugs

Plant = Callable[[pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Plant, Callable[[Path], None], str]] = {
    "checked, charged later": (
        ledger_bugs.checked_and_charged_later,
        gates.gate_rounds_are_paid_for,
        "refused after it drew",
    ),
    "holds are not spent": (
        ledger_bugs.holds_are_not_spent,
        gates.gate_rounds_are_paid_for,
        "'other'",
    ),
    "holds are never used up": (
        ledger_bugs.holds_are_never_used_up,
        gates.gate_no_more_than_was_held,
        r"charged 7\.2 of the 6",
    ),
    "draws counted by the run": (
        ledger_bugs.draws_are_counted_by_the_run,
        gate_no_trajectory_is_filtered_twice,
        "filtered twice",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_seen(tmp_path: Path, name: str) -> None:
    plant, gate, message = CASES[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=message):
            gate(tmp_path)


GATES = sorted({gate for _, gate, _ in CASES.values()}, key=lambda gate: gate.__name__)


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_what_is_there_passes(tmp_path: Path, gate: Callable[[Path], None]) -> None:
    gate(tmp_path)
