"""Private selections: nothing tells the number of trials, and an interrupted one is spent."""

from pathlib import Path

from tests.gates.selection_leaks import (
    gate_interrupted_selection_is_spent,
    gate_selection_tells_nothing,
)


def test_nothing_tells_how_many_trials_there_were(tmp_path: Path) -> None:
    gate_selection_tells_nothing(tmp_path)


def test_an_interrupted_selection_is_spent(tmp_path: Path) -> None:
    gate_interrupted_selection_is_spent(tmp_path / "interrupted")
