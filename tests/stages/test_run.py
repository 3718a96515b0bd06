"""The engine: one order of spending, whatever a method declares."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.method import StagePlan
from distributed_privrl.stages.run import run_method
from tests.gates import engine
from tests.gates.engine import TwoStages, world


@pytest.mark.parametrize(
    "gate",
    [engine.gate_one_order, engine.gate_refusals_cost_nothing, engine.gate_resumed_at_every_step],
    ids=lambda gate: gate.__name__,
)
def test_the_gates(gate, tmp_path: Path) -> None:
    gate(tmp_path)


def test_stages_that_no_budget_pays_for_are_refused_before_a_draw(tmp_path: Path) -> None:
    around, config = world(tmp_path, epsilon=11.0)
    seen: list[str] = []
    method = TwoStages(around, config, lambda step, _: seen.append(step))
    with pytest.raises(BudgetError):
        run_method(method, around)
    assert seen == ["check"]
    assert not around.ledger.entries()


class Unpaid(TwoStages):
    """A method whose second stage has no budget."""

    def stages(self, world: tuple[str, ...], units: UnitCount) -> list[StagePlan]:
        first, second = super().stages(world, units)
        return [first, replace(second, plan=replace(second.plan, budget=None))]


class OneEntry(TwoStages):
    """A method both of whose stages draw under one charge."""

    def stages(self, world: tuple[str, ...], units: UnitCount) -> list[StagePlan]:
        return [replace(stage, entry="") for stage in super().stages(world, units)]


@pytest.mark.parametrize(("kind", "message"), [(Unpaid, "has no budget"), (OneEntry, "share an")])
@pytest.mark.parametrize("units", [100, engine.COUNTED], ids=["declared", "counted"])
def test_stages_that_nothing_pays_for_are_refused(
    tmp_path: Path, kind: type[TwoStages], message: str, units: Any
) -> None:
    around, config = world(tmp_path, units=units)
    with pytest.raises(UnsafeError, match=message):
        run_method(kind(around, config), around)
    assert all(entry.kind != "rounds" for entry in around.ledger.entries())


def test_without_privacy_nothing_is_held_charged_or_certified(tmp_path: Path) -> None:
    around, config = world(tmp_path, units=100, epsilon=None)
    method = engine._without_bounds(TwoStages(around, config))
    result = run_method(method, around)
    assert (result.stages, result.ledger_entries, result.spare_rounds) == ((), (), 0)
    assert not around.ledger.entries()
    assert around.ledger.accounts()[0].spent_epsilon == 0.0
