"""Steps that differ: the schedule is charged, drawn in order, certified and verified."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError, VerificationError
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import RepeatAndSelectEvent, charged_rounds
from distributed_privrl.privacy.schedules import merged, same_each_step
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.privacy.verification import verify_certificate
from tests.gates import schedules
from tests.worlds.ledgers import NULL
from tests.worlds.selection import (
    SCHEDULE,
    SPARE,
    STEPS,
    World,
    choices,
    measured,
    reversed_plan,
    selection_plan,
    world,
)

PLAN = selection_plan(UnitCount(value=100, source="declared"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(
    "gate",
    [schedules.gate_scheduled_draws, schedules.gate_lost_steps, schedules.gate_prepared_before],
    ids=lambda gate: gate.__name__,
)
def test_the_gates(gate, tmp_path: Path) -> None:
    gate(tmp_path)


@pytest.mark.parametrize("lost", [0, 1], ids=["whole", "with a lost step"])
def test_a_ledger_confirms_what_was_reserved_and_nothing_else(place: World, lost: int) -> None:
    place.lose(*[("drawn", 1)] * lost)
    result = place.run()
    (stage,) = result.stages
    assert stage.events == merged(SCHEDULE[: STEPS + lost])
    if lost:  # two entries that are alike are one event
        assert stage.events[1].count == 4
    found = verify_certificate(place.certify(result), ledger=place.ledger)
    assert found.ledger_checked
    assert found.epsilon == pytest.approx(epsilon(stage.events, delta=stage.delta, relation=NULL))
    for other in (SCHEDULE[: STEPS + lost - 1], SCHEDULE[1 : STEPS + lost + 1], SCHEDULE[:1] * 4):
        wrong = stage.model_copy(update={"events": merged(other)})
        path, _ = place.write(result, stages=(wrong,))
        with pytest.raises(VerificationError, match="the ledger reserved"):
            verify_certificate(path, ledger=place.ledger)


def test_another_order_than_was_charged_is_refused_before_anything_is_drawn(place: World) -> None:
    with (
        schedules.observed(place.ledger) as drawn,
        pytest.raises(UnsafeError, match="other events than it was charged for"),
    ):
        place.run(drawn_by=reversed_plan)
    assert drawn == {}
    assert place.rounds == (0, 0)


def test_a_run_whose_schedule_is_used_up_ends_and_states_all_of_it(place: World) -> None:
    with schedules.observed(place.ledger) as drawn:
        place.lose(*[("drawn", 1)] * (SPARE + 1))
        result = place.run()
        assert place.rounds == (STEPS + SPARE, STEPS - 1)
        schedules.check_paid(place, drawn, reserved=STEPS + SPARE)
    result.release.save(place.folder / "steps")
    assert (place.folder / "steps").read_text() == str(STEPS - 1)
    (entry,) = place.ledger.entries()
    assert entry.status == "settled"
    assert verify_certificate(place.certify(result), ledger=place.ledger).ledger_checked


@pytest.mark.parametrize(
    "schedule",
    [SCHEDULE[:-1], (*SCHEDULE, SCHEDULE[0]), (*SCHEDULE[:-1], ()), ()],
    ids=["shorter", "longer", "a step of nothing", "nothing"],
)
def test_a_schedule_charges_every_planned_and_spare_step(schedule) -> None:
    with pytest.raises(UnsafeError, match="must charge each of 6 planned and spare steps"):
        replace(PLAN, schedule=schedule)
    with pytest.raises(UnsafeError, match="none without a budget"):
        replace(PLAN, budget=None)


def test_a_plan_counts_entries_in_the_order_of_the_schedule() -> None:
    assert PLAN.events(1) == (measured(16.0),)
    assert PLAN.events(3) == (
        measured(16.0),
        choices(2, 0.125),
        measured(9.0),
        choices(2, 0.25),
        measured(8.0),
    )
    assert PLAN.events(5)[1] == choices(4, 0.125)
    assert PLAN.events(4)[3] == choices(5, 0.25)
    with pytest.raises(ConfigError, match="has 6 steps, 7 are asked for"):
        PLAN.events(7)
    free = replace(PLAN, budget=None, schedule=())
    for ask in (lambda: free.events(1), free.charged):
        with pytest.raises(ConfigError, match="without privacy has no event"):
            ask()


def test_what_the_ledger_keeps_of_steps_that_are_alike_is_one_of_them() -> None:
    alike = replace(PLAN, schedule=same_each_step(SCHEDULE[1], STEPS + SPARE))
    assert alike.charged() == charged_rounds(SCHEDULE[1])
    assert PLAN.charged() != charged_rounds(SCHEDULE[0])
    assert reversed_plan(PLAN).charged() != PLAN.charged()


def test_what_could_not_be_certified_is_not_charged() -> None:
    once = RepeatAndSelectEvent(distribution="poisson", mean=2.0, events=(measured(9.0),))
    with pytest.raises(ConfigError, match="happens once"):
        replace(PLAN, schedule=(*SCHEDULE[:-1], (once,))).charged()
