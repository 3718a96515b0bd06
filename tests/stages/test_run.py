"""The engine: one order of spending, whatever a method declares."""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.privacy.events import GaussianEvent
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages import training
from distributed_privrl.stages.context import (
    CertifiedDataset,
    MethodResult,
    SyntheticTrajectories,
)
from distributed_privrl.stages.method import Released, StagePlan
from distributed_privrl.stages.planning import plan_declared
from distributed_privrl.stages.run import recalled_world, run_method
from tests.gates import engine
from tests.gates.engine import TwoStages, world
from tests.worlds.ledgers import open_run


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
        return [first, replace(second, plan=replace(second.plan, budget=None, schedule=()))]


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


def charge_more(context: Any) -> None:
    """Charge what no stage declares."""
    open_run(context.ledger, "run/more", epsilon=0.1, delta=0.0)


class Late(TwoStages):
    """A method that charges something of its own when all its stages are settled."""

    def finish(self, world: Any, context: Any, certified: Any) -> Released:
        charge_more(context)
        return super().finish(world, context, certified)


class Silent(TwoStages):
    """A method that declares nothing."""

    def first_releases(self) -> tuple[()]:
        return ()

    def stages(self, world: Any, units: UnitCount) -> tuple[()]:
        return ()


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


class Charging(TwoStages):
    """A method that charges something of its own beside its stages."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        if stage.entry:
            charge_more(context)
        return super().work(stage, world, context)


class Louder(TwoStages):
    """A method whose second stage draws with less noise than its plan charges."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        loud = GaussianEvent(noise_multiplier=1.0)
        louder = same_each_step([loud], stage.plan.max_rounds)
        training._check_charged(self.config, context, stage.plan)
        training._check_charged(self.config, context, replace(stage.plan, schedule=louder))
        return world


class Quieter(TwoStages):
    """A method whose plan says nothing of half of what was charged."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        training._check_charged(self.config, context, replace(stage.plan, trajectories=(0, None)))
        return world


class Unprotected(TwoStages):
    """A method that draws without a budget where the run has one."""

    def work(self, stage: StagePlan, world: Any, context: Any) -> Any:
        open_plan = replace(stage.plan, budget=None, schedule=())
        training._check_charged(self.config, context, open_plan)
        return world


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Cheap, "bounds would release epsilon 0.5 and be charged 0.4"),
        (Early, "stopped after 1 of 3 rounds"),
        (Idle, "stopped after 0 of 3 rounds"),
        (Charging, "run/more: charged, and of no stage"),
        (Late, "run/more: charged, and of no stage"),
        (Louder, "other events than it was charged for"),
        (Quieter, "other events than it was charged for"),
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


@dataclass(frozen=True)
class Named(TwoStages):
    """A method with first releases of given names.

    Args:
        names: of what is released first.
    """

    names: tuple[str, ...] = ()

    def first_releases(self) -> Any:
        (bounds,) = super().first_releases()
        return [replace(bounds, name=name) for name in self.names]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("bounds", "bounds"), "share an entry"),
        (("count",), "share an entry"),
        (("filter",), "share an entry"),
        (("",), "without a slash"),
        (("a/b",), "without a slash"),
    ],
)
def test_each_release_has_an_entry_of_its_own(
    tmp_path: Path, names: tuple[str, ...], message: str
) -> None:
    around, config = world(tmp_path, units=100)
    method = Named(around, config, names=names)
    with pytest.raises(UnsafeError, match=message):
        run_method(method, around)
    assert not around.ledger.entries()
    assert around.ledger.accounts()[0].spent_epsilon == 0.0


@pytest.mark.parametrize("units", [100, engine.COUNTED], ids=["declared", "counted"])
@pytest.mark.parametrize(
    ("privacy", "message"),
    [({"epsilon": 4.4}, "costs epsilon"), ({"delta": 7.9e-7}, "costs delta")],
    ids=["epsilon", "delta"],
)
def test_what_a_method_declares_stays_within_its_run_s_budget(
    tmp_path: Path, units: Any, privacy: dict[str, float], message: str
) -> None:
    around, config = world(tmp_path, units=units)
    asked = PrivacyConfig(**{"epsilon": 6.0, "delta": 1e-6, **privacy})
    config.privacy = asked
    with pytest.raises(ConfigError, match=message):
        run_method(TwoStages(around, config), around)
    assert all(entry.kind != "rounds" for entry in around.ledger.entries())


@dataclass(frozen=True)
class Beside(TwoStages):
    """A method that releases a dataset beside its policy.

    Args:
        state: gives the stages and entries that the dataset states, of those that are certified.
    """

    state: Any = None

    def finish(self, world: Any, context: Any, certified: Any) -> Released:
        stages, entries = self.state(certified)
        beside = CertifiedDataset(
            dataset="b-v0",
            trajectories=SyntheticTrajectories(chunks=tuple, facts=dict),
            stages=stages,
            ledger_entries=entries,
        )
        return replace(super().finish(world, context, certified), beside=(beside,))


def released_beside(folder: Path, state: Any, **options: Any) -> MethodResult:
    """Return the result of a run with a dataset beside."""
    around, config = world(folder, **options)
    kind = WithoutBounds if config.privacy.epsilon is None else Beside
    return run_method(kind(around, config, state=state), around)


class WithoutBounds(Beside):
    """The same without first releases."""

    def first_releases(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize(
    "state",
    [
        lambda paid: ((), ()),
        lambda paid: ((paid[0],), ()),
        lambda paid: ((paid[0].model_copy(update={"delta": 1e-9}),), ("run/count",)),
        lambda paid: ((paid[0],), ("run/bounds",)),
        lambda paid: ((paid[0], paid[1]), ("run/bounds", "run/count")),
        lambda paid: ((paid[0],), ("run/other",)),
    ],
    ids=["nothing", "no entry", "less", "of another", "swapped", "unknown"],
)
def test_datasets_beside_the_release_state_what_was_charged(tmp_path: Path, state: Any) -> None:
    with pytest.raises(UnsafeError, match="b-v0 states other stages"):
        released_beside(tmp_path, state)


def test_a_dataset_beside_states_its_stages_with_their_entries(tmp_path: Path) -> None:
    result = released_beside(tmp_path, lambda paid: (paid[:2], ("run/count", "run/bounds")))
    (beside,) = result.beside
    assert beside.stages == result.stages[:2]


def test_a_dataset_beside_a_run_without_privacy_states_nothing(tmp_path: Path) -> None:
    (tmp_path / "no").mkdir()
    result = released_beside(tmp_path / "no", lambda _: ((), ()), units=100, epsilon=None)
    assert [one.stages for one in result.beside] == [()]
    (tmp_path / "yes").mkdir()
    stage = result_stage(tmp_path / "yes")
    (tmp_path / "more").mkdir()
    with pytest.raises(UnsafeError, match="b-v0 states other stages"):
        released_beside(
            tmp_path / "more", lambda _: ((stage,), ("run/count",)), units=100, epsilon=None
        )


def result_stage(folder: Path) -> Any:
    """Return a stage that a private run certified."""
    around, config = world(folder)
    return run_method(TwoStages(around, config), around).stages[0]


def test_what_a_method_does_to_its_stages_changes_no_certificate(tmp_path: Path) -> None:
    class Forgetful(TwoStages):
        def finish(self, world: Any, context: Any, certified: Any) -> Released:
            with contextlib.suppress(AttributeError):
                certified.clear()
            return super().finish(world, context, certified)

    around, config = world(tmp_path)
    result = run_method(Forgetful(around, config), around)
    assert [one.name for one in result.stages] == ["count", "bounds", "filter", "rounds"]


def test_a_finished_run_is_recalled_without_a_draw(tmp_path: Path) -> None:
    around, config = world(tmp_path)
    run_method(TwoStages(around, config), around)
    seen: list[str] = []
    method = TwoStages(around, config, lambda step, _: seen.append(step))
    assert recalled_world(method, around) == ("checked", "bounds 7")
    assert seen == ["check", "machine", "ready"], "as the stages began, priced as they were"


def test_a_run_that_charges_nothing_is_not_private(tmp_path: Path) -> None:
    around, config = world(tmp_path, units=100)
    with pytest.raises(UnsafeError, match="has charged nothing"):
        run_method(Silent(around, config), around)
    assert around.ledger.accounts()[0].spent_epsilon == 0.0


def test_without_privacy_nothing_is_held_charged_or_certified(tmp_path: Path) -> None:
    around, config = world(tmp_path, units=100, epsilon=None)
    method = engine._without_bounds(TwoStages(around, config))
    result = run_method(method, around)
    assert (result.stages, result.ledger_entries, result.spare_rounds) == ((), (), 0)
    assert not around.ledger.entries()
    assert around.ledger.accounts()[0].spent_epsilon == 0.0


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        (Unpaid, UnsafeError, "has no budget"),
        (OneEntry, UnsafeError, "share an"),
        (Silent, UnsafeError, "declares no stage"),
    ],
)
def test_a_plan_refuses_what_a_run_would(
    tmp_path: Path, kind: type[TwoStages], error: type[Exception], message: str
) -> None:
    around, config = world(tmp_path, units=100)
    config.method = "toy"
    with pytest.raises(error, match=message):
        plan_declared(kind(around, config))
    config.privacy = PrivacyConfig(epsilon=4.0, delta=1e-6)
    with pytest.raises(ConfigError, match="costs epsilon"):
        plan_declared(TwoStages(around, config))
