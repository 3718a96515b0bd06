"""The engine: one order of spending, whatever a method declares."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.events import GaussianEvent
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages import training
from distributed_privrl.stages.context import CertifiedDataset, SyntheticTrajectories
from distributed_privrl.stages.method import Released, StagePlan
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


class Cheap(TwoStages):
    """A method whose bounds cost more than they are charged."""

    def first_releases(self) -> Any:
        return [replace(one, epsilon=0.4) for one in super().first_releases()]


class Early(TwoStages):
    """A method that stops a stage when it has seen enough."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        if stage.entry:
            return super().work(stage, world, context)
        context.ledger.reserve_rounds(context.run_id, rounds=1, nonce="one")
        return world


class Idle(TwoStages):
    """A method that does nothing in a stage, or does it out of the ledger's sight."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        return world


class Beside(TwoStages):
    """A method that charges something of its own beside its stages."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        if stage.entry:
            budget = stage.plan.budget
            context.ledger.open_run(
                run_id="run/more",
                dataset=engine.DATASET,
                fingerprint="f1",
                unit="trajectory",
                relation=budget.relation,
                epsilon=0.1,
                delta=0.0,
                max_rounds=1,
                event={"kind": "test"},
            )
        return super().work(stage, world, context)


class Louder(TwoStages):
    """A method whose second stage draws with less noise than its plan charges."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        louder = (GaussianEvent(noise_multiplier=1.0),)
        training._check_charged(self.config, context, stage.plan)
        training._check_charged(self.config, context, replace(stage.plan, step_events=louder))
        return world


class Unprotected(TwoStages):
    """A method that draws without a budget where the run has one."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        open_plan = replace(stage.plan, budget=None, step_events=())
        training._check_charged(self.config, context, open_plan)
        return world


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Cheap, "bounds would release epsilon 0.5 and be charged 0.4"),
        (Early, "stopped after 1 of 3 rounds"),
        (Idle, "stopped after 0 of 3 rounds"),
        (Beside, "run/more: charged, and of no stage"),
        (Louder, "other events than it was charged for"),
        (Unprotected, "do not go together"),
    ],
)
def test_what_a_method_does_is_what_it_declared(
    tmp_path: Path, kind: type[TwoStages], message: str
) -> None:
    around, config = world(tmp_path)
    with pytest.raises(UnsafeError, match=message):
        run_method(kind(around, config), around)
    ledger = around.ledger
    whole = sum(entry.epsilon for entry in ledger.entries() if entry.kind == "rounds")
    spent = ledger.accounts()[0].spent_epsilon
    assert spent >= whole, "what was drawn is freed"


@pytest.mark.parametrize("stages", [(), "other"], ids=["none", "others"])
def test_datasets_beside_the_release_state_what_was_charged(tmp_path: Path, stages: Any) -> None:
    class More(TwoStages):
        def finish(self, world: Any, context: Any, certified: Any) -> Released:
            weaker = certified[0].model_copy(update={"delta": 1e-9})
            stated = () if stages == () else (weaker,)
            beside = CertifiedDataset(
                dataset="b-v0",
                trajectories=SyntheticTrajectories(chunks=tuple, facts=dict),
                stages=stated,
                ledger_entries=("run/count",),
            )
            released = super().finish(world, context, certified)
            return replace(released, beside=(beside,))

    around, config = world(tmp_path)
    with pytest.raises(UnsafeError, match="b-v0 states other stages"):
        run_method(More(around, config), around)


def test_a_run_that_charges_nothing_is_not_private(tmp_path: Path) -> None:
    class Nothing(TwoStages):
        def first_releases(self) -> tuple[()]:
            return ()

        def stages(self, world: Any, units: UnitCount) -> tuple[()]:
            return ()

    around, config = world(tmp_path, units=100)
    with pytest.raises(UnsafeError, match="has charged nothing"):
        run_method(Nothing(around, config), around)
    assert around.ledger.accounts()[0].spent_epsilon == 0.0


def test_without_privacy_nothing_is_held_charged_or_certified(tmp_path: Path) -> None:
    around, config = world(tmp_path, units=100, epsilon=None)
    method = engine._without_bounds(TwoStages(around, config))
    result = run_method(method, around)
    assert (result.stages, result.ledger_entries, result.spare_rounds) == ((), (), 0)
    assert not around.ledger.entries()
    assert around.ledger.accounts()[0].spent_epsilon == 0.0
