"""Every planted mistake in votes of teachers is seen by its gate."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import pate
from tests.planted import pate_bugs

Plant = Callable[[pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Plant, Callable[[Path], None], str]] = {
    "a step is charged as one vote": (
        pate_bugs.a_step_is_charged_as_one_vote,
        pate.gate_whole_run,
        "are certified",
    ),
    "half the noise": (pate_bugs.half_the_noise, pate.gate_whole_run, "noise of votes"),
    "votes are drawn twice": (
        pate_bugs.votes_are_drawn_twice,
        pate.gate_whole_run,
        "votes got noise",
    ),
    "the generator learns from teachers": (
        pate_bugs.the_generator_learns_from_teachers,
        pate.gate_whole_run,
        "what has no noise",
    ),
    "checkpoints hold teachers": (
        pate_bugs.checkpoints_hold_teachers,
        pate.gate_whole_run,
        "what a teacher learned",
    ),
    "teachers share units": (
        pate_bugs.teachers_share_units,
        pate.gate_teachers_share_no_unit,
        "other rows than there are",
    ),
    "rows, not units, are divided": (
        pate_bugs.rows_not_units_are_divided,
        pate.gate_teachers_share_no_unit,
        "several teachers",
    ),
    "shared units move more": (
        pate_bugs.teachers_share_units,
        pate.gate_a_unit_moves_a_count_by_one,
        "moves a count of votes by 2",
    ),
    "one loss for all teachers": (
        pate_bugs.one_loss_for_all_teachers,
        pate.gate_a_unit_moves_a_count_by_one,
        "moves a count of votes by",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, gate, message = CASES[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate(tmp_path)
