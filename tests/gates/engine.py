"""Gates on the engine: whatever a method declares, its run is paid for in one order."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_privrl.core.config import (
    DataConfig,
    EvaluationConfig,
    NoisyCount,
    PrivacyConfig,
    RuntimeConfig,
)
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.events import GaussianEvent, PureDpEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages import run
from distributed_privrl.stages.context import MethodResult, ReleasedFiles
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.release_plan import ReleasePlan
from tests.gates.ledger import Store

DATASET = "clinic/stays-v0"
COUNTED = NoisyCount(epsilon=1.0)
NULL = Relation.REPLACE_WITH_NULL
BOUNDS = PureDpEvent(epsilon=0.5)
STEP = GaussianEvent(noise_multiplier=9.0)
STEPS, SPARE = 3, 2
STAGES = ("filter", "")
Diary = tuple[str, ...]


@dataclass(frozen=True)
class TwoStages(DeclaredMethod[Diary]):
    """A count, bounds, a stage of its own entry, a stage of the run's; its world is its diary.

    Args:
        around: the run's context.
        config: of the run.
        watch: told before each step is done.
    """

    around: Any
    config: Any
    watch: Callable[[str, Diary], None] = field(default=lambda _, __: None)

    def check(self, context: Any) -> Diary:
        self.watch("check", ())
        return ("checked",)

    def check_machine(self, world: Diary, context: Any) -> None:
        self.watch("machine", world)

    def first_releases(self) -> Sequence[FirstRelease[Diary]]:
        return (FirstRelease(name="bounds", key="data.bounds", epsilon=0.5, ask=self._ask),)

    def _ask(self, world: Diary, units: UnitCount, context: Any) -> Question[Diary]:
        def draw() -> int:
            self.watch("bounds", world)
            return 7

        return Question(
            event=BOUNDS, facts={}, draw=draw, found=lambda seven: (*world, f"bounds {seven}")
        )

    def stages(self, world: Diary | None, units: UnitCount) -> Sequence[StagePlan]:
        private = self.config.privacy.epsilon is not None
        budget = PrivacyBudget(epsilon=2.0, delta=4e-7, unit="trajectory", relation=NULL)
        plan = ReleasePlan(
            units=units,
            budget=budget if private else None,
            accountant="pld",
            steps=STEPS,
            spare=SPARE,
            schedule=same_each_step([STEP], STEPS + SPARE) if private else (),
        )
        return [StagePlan(name=name or "rounds", plan=plan, entry=name) for name in STAGES]

    def ready(self, world: Diary, stages: Sequence[StagePlan]) -> Diary:
        self.watch("ready", world)
        return world

    def before(self, world: Diary, context: Any) -> None:
        self.watch("before", world)

    def work(self, stage: StagePlan, world: Diary, context: Any) -> Diary:
        self.watch(stage.name, world)
        if stage.plan.budget is not None:
            own = context.run_id
            for step in range(context.ledger.reserved(own).reserved_rounds, STEPS):
                context.ledger.reserve_rounds(own, rounds=1, nonce=f"{own} {step}")
        return (*world, stage.name)

    def finish(self, world: Diary, context: Any, certified: Sequence[Stage]) -> Released:
        self.watch("finish", world)
        return Released(release=ReleasedFiles(save=lambda path: None))


def world(folder: Path, *, units: Any = COUNTED, epsilon: float | None = 6.0) -> Any:
    """Return a context and a configuration of a run, with a budget of 10."""
    ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    if not ledger.accounts():
        budget = PrivacyBudget(epsilon=10.0, delta=1e-5, unit="trajectory", relation=NULL)
        ledger.set_budget(dataset=DATASET, fingerprint="f1", budget=budget)
    around = _Context(ledger=ledger, run_id="run", fingerprint="f1", store=Store())
    data = DataConfig.model_construct(
        sensitive=DATASET, unit="trajectory", units=units, bounds=None
    )
    privacy = PrivacyConfig(epsilon=epsilon, delta=1e-6)
    about = {"evaluation": EvaluationConfig(), "runtime": RuntimeConfig()}
    return around, SimpleNamespace(data=data, privacy=privacy, **about)


@dataclass(frozen=True, kw_only=True)
class _Context:
    """What the engine and first releases use of a context."""

    ledger: Ledger
    run_id: str
    fingerprint: str
    store: Store
    executor: LocalExecutor = field(default_factory=LocalExecutor)

    def noise_source(self) -> SeededNoise:
        return SeededNoise(3)


def gate_one_order(folder: Path) -> None:
    """All is held before the first draw, opened before the first stage, settled before the next."""
    around, config = world(folder)
    ledger, seen = around.ledger, []

    def entries() -> dict[str, str]:
        return {entry.id.removeprefix("run"): entry.status for entry in ledger.entries()}

    def spent() -> float:
        return float(ledger.accounts()[0].spent_epsilon)

    def watch(step: str, known: Diary) -> None:
        seen.append(step)
        found = entries()
        if step == "check":
            assert spent() == 0.0, "something was charged before the checks"
        if step in ("machine", "bounds", "ready"):
            assert spent() == pytest.approx(6.0), "a release was drawn before the budget was held"
        if step == "before":
            opened = {found.get(""), found.get("/filter")}
            assert opened == {"open"}, "public work began before all stages were opened"
            assert spent() == pytest.approx(5.5), "the hold was not closed"
        if step == "rounds":
            assert found["/filter"] == "settled", "a stage reads what is not settled"
            assert "filter" in known, "a stage does not see what the one before released"
        if step == "finish":
            assert found[""] == "settled", "post-processing begins before a stage is settled"

    result = run.run_method(TwoStages(around, config, watch), around)
    expected = ["check", "machine", "bounds", "ready", "before", "filter", "rounds", "finish"]
    assert seen == expected, f"the order was {seen}"
    _certifies_all(ledger, result)


def _certifies_all(ledger: Ledger, result: MethodResult) -> None:
    """What was charged is what is certified, entry by entry."""
    charged = {entry.id for entry in ledger.entries()}
    assert set(result.ledger_entries) == charged, "entries are left out of the certificate"
    assert [one.name for one in result.stages] == ["count", "bounds", "filter", "rounds"]
    assert result.spare_rounds == 2 * SPARE, "spare rounds are miscounted"
    assert all(entry.status == "settled" for entry in ledger.entries()), "an entry is left open"


def gate_refusals_cost_nothing(folder: Path) -> None:
    """Whoever is refused before a draw, by a check or by the ledger, has paid nothing."""
    for step in ("check", "machine", "ready"):
        around, config = world(folder, units=100)
        refused = replace(TwoStages(around, config), watch=_refuse_at(step))
        refused = _without_bounds(refused)
        with pytest.raises(ConfigError, match=step):
            run.run_method(refused, around)
        left = around.ledger.accounts()[0].spent_epsilon
        assert left == 0.0, f"a run that was refused at {step} keeps {left:g}"


def _refuse_at(refused: str) -> Callable[[str, Diary], None]:
    def watch(step: str, _: Diary) -> None:
        if step == refused:
            raise ConfigError(f"refused at {step}")

    return watch


def _without_bounds(method: TwoStages) -> TwoStages:
    class NoBounds(TwoStages):
        def first_releases(self) -> tuple[()]:
            return ()

    return NoBounds(method.around, method.config, method.watch)


def gate_resumed_at_every_step(folder: Path) -> None:
    """A run that dies at any step goes on and ends with the same charges, drawing nothing twice."""
    for number, step in enumerate(("bounds", "ready", "before", "filter", "rounds", "finish")):
        place = folder / str(number)
        place.mkdir()
        around, config = world(place)
        drawn: list[str] = []

        def die(at: str, _: Diary, step: str = step, drawn: list[str] = drawn) -> None:
            drawn.append(at)
            if at == step:
                raise SystemExit(1)

        with pytest.raises(SystemExit):
            run.run_method(TwoStages(around, config, die), around)
        drawn.clear()

        def note(at: str, _: Diary, drawn: list[str] = drawn) -> None:
            drawn.append(at)

        again = TwoStages(around, config, note)
        if step == "bounds":  # charged, and its answer lost: no other one is drawn
            with pytest.raises(UnsafeError, match="answer was lost"):
                run.run_method(again, around)
            assert drawn == ["check", "machine"], (
                "bounds were drawn again after their answer was lost"
            )
            continue
        result = run.run_method(again, around)
        assert "bounds" not in drawn, f"bounds were drawn again after a death at {step}"
        _certifies_all(around.ledger, result)
        most = around.ledger.accounts()[0].spent_epsilon
        assert most <= 6.0, f"a death at {step} made the run cost {most:g} of 6"
