"""Every planted bug of private selection is seen by one of its gates."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates.selection_leaks import (
    gate_interrupted_selection_is_spent,
    gate_selection_tells_nothing,
)
from tests.planted import sweep_bugs
from tests.planted.sweep_bugs import Plant

Gate = Callable[[Path], None]
TELLS, SPENT = gate_selection_tells_nothing, gate_interrupted_selection_is_spent
CASES: dict[str, tuple[Plant, Gate, str]] = {
    "the count in metrics": (
        sweep_bugs.count_in_metrics,
        TELLS,
        "metrics.jsonl holds the number of trials",
    ),
    "the count in events": (
        sweep_bugs.count_in_events,
        TELLS,
        "tfevents holds the number of trials",
    ),
    "trials are told": (sweep_bugs.trials_are_told, TELLS, "a trial was heard"),
    "libraries are heard": (sweep_bugs.libraries_are_heard, TELLS, "a trial was heard"),
    "failures are warned of": (sweep_bugs.failures_are_warned_of, TELLS, "what was said tells"),
    "a call a trial": (sweep_bugs.a_call_a_trial, TELLS, "processes tells"),
    "times are kept": (sweep_bugs.times_are_kept, TELLS, "tells how long trials took"),
    "a loser is kept": (sweep_bugs.a_loser_is_kept, TELLS, "files tell"),
    "memory is left": (sweep_bugs.memory_is_left, TELLS, "losers are left"),
    "failures are drawn again": (
        sweep_bugs.failures_are_drawn_again,
        TELLS,
        "a trial that failed was drawn again",
    ),
    "the score of real rows": (
        sweep_bugs.score_of_real_rows,
        TELLS,
        "the score is not that of released and public rows",
    ),
    "trials reserve": (sweep_bugs.trials_reserve, TELLS, "entries, not one"),
    "charged afterwards": (
        sweep_bugs.charged_afterwards,
        TELLS,
        "the charge comes before the draw",
    ),
    "it goes on": (sweep_bugs.it_goes_on, SPENT, "an interrupted selection went on"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_sees_the_bug(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, gate, message = CASES[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate(tmp_path / "world")
