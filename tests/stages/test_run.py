"""The engine: one order of spending, whatever a method declares."""

from pathlib import Path

import pytest

from distributed_privrl.core.errors import BudgetError
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


def test_without_privacy_nothing_is_held_charged_or_certified(tmp_path: Path) -> None:
    around, config = world(tmp_path, units=100, epsilon=None)
    method = engine._without_bounds(TwoStages(around, config))
    result = run_method(method, around)
    assert (result.stages, result.ledger_entries, result.spare_rounds) == ((), (), 0)
    assert not around.ledger.entries()
    assert around.ledger.accounts()[0].spent_epsilon == 0.0
