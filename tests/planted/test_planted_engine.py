"""Bugs in the engine's order: planted, and the gate sees each."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_privrl.core.errors import UnsafeError
from tests.gates import engine as gates
from tests.gates import schedules
from tests.planted import engine_bugs, schedule_bugs

Plant = Callable[[pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Plant, Callable[[Path], None], str]] = {
    "one charge opened": (
        engine_bugs.opened_one_by_one,
        gates.gate_one_order,
        "before all stages were opened",
    ),
    "charges opened later": (
        engine_bugs.charges_opened_later,
        gates.gate_one_order,
        "before all stages were opened",
    ),
    "a stage left open": (engine_bugs.stages_left_open, gates.gate_one_order, "not settled"),
    "a count left out": (engine_bugs.count_left_out, gates.gate_one_order, "of no stage"),
    "refusals keep their hold": (
        engine_bugs.refusals_keep_their_hold,
        gates.gate_refusals_cost_nothing,
        "keeps 6",
    ),
    "charged as the first": (
        schedule_bugs.charged_as_the_first,
        schedules.gate_scheduled_draws,
        "the certificate states",
    ),
    "lost entries drawn again": (
        schedule_bugs.lost_entries_drawn_again,
        schedules.gate_lost_steps,
        "step 3 drew",
    ),
    "prepared after the reservation": (
        schedule_bugs.prepared_after_the_reservation,
        schedules.gate_prepared_before,
        "steps are lost",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_seen(tmp_path: Path, name: str) -> None:
    plant, gate, message = CASES[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, UnsafeError), match=message):
            gate(tmp_path)
