"""A toy of adaptive selection: all columns once, then choices and a release, each step with more.

Its schedule is public, and no two steps cost the same.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from distributed_privrl.core.config import (
    DataConfig,
    EvaluationConfig,
    PrivacyConfig,
    RuntimeConfig,
)
from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.core.progress import silent
from distributed_privrl.privacy.certificate import Certificate, Stage, build_certificate
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.events import (
    PERMUTE_AND_FLIP,
    DiscreteGaussianEvent,
    Event,
    PureDpEvent,
)
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import NoiseSource, SecureNoise
from distributed_privrl.privacy.schedules import Schedule
from distributed_privrl.privacy.units import PrivacyBudget, UnitCount
from distributed_privrl.rounds.releases import Program
from distributed_privrl.stages.context import MethodResult, ReleasedFiles, RunContext
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.run import run_method
from distributed_privrl.stages.training import StepsSpec, release_in_steps
from tests.gates.ledger import Store
from tests.worlds.ledgers import DATASET, NULL, set_budget, url_of

COLUMNS, UNITS, STEPS, SPARE = 5, 100, 4, 2
LATTICE = 1024
"""Steps that a unit moves a released count by."""
LOST = SystemExit


def choices(count: int, epsilon: float) -> PureDpEvent:
    """Return the event of ``count`` choices among counts that a unit moves by one."""
    derivation: dict[str, Any] = {"mechanism": PERMUTE_AND_FLIP, "sensitivity": 1.0}
    return PureDpEvent(
        epsilon=epsilon, count=count, derivation={**derivation, "scale": 2 / epsilon}
    )


def measured(z: float) -> DiscreteGaussianEvent:
    """Return the event of a release of all columns."""
    return DiscreteGaussianEvent(noise_multiplier=z, sensitivity=float(LATTICE))


SCHEDULE: Schedule = (
    (measured(16.0),),
    (choices(2, 0.125), measured(9.0)),
    (choices(2, 0.25), measured(8.0)),
    (choices(3, 0.25), measured(7.0)),
    (choices(2, 0.125), measured(9.0)),
    (choices(1, 0.5), measured(5.0)),
)
Watch = Callable[[str, int], None]


class Counts:
    """A worker with the counts of its units: raw private data."""

    def __init__(self, units: int) -> None:
        self._units = units

    def totals(self) -> Any:
        """Return how many units each column has, (C,)."""
        return np.arange(COLUMNS) * self._units // COLUMNS


class Selecting(Program):
    """Draws what the entry of the schedule says that was reserved.

    Args:
        schedule: of the plan.
        watch: told of each preparation before it is done, and of each step when it is drawn.
    """

    def __init__(self, schedule: Schedule, watch: Watch) -> None:
        self._schedule, self._watch, self._chooser = schedule, watch, SecureChooser()
        self._released: list[Any] = []
        self._estimate = np.zeros(COLUMNS, np.int64)

    def prepare(self, index: int) -> None:
        self._watch("prepare", index)
        if self._released:
            self._estimate = np.rint(np.mean(self._released, axis=0) / LATTICE).astype(np.int64)

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        assert noise is not None
        assert reserved is not None
        totals = np.sum(workers.call("totals"), axis=0)
        for event in self._schedule[reserved]:
            if isinstance(event, PureDpEvent):
                distances = (UNITS - np.abs(totals - self._estimate).clip(max=UNITS)).tolist()
                scale = float(event.derivation["scale"])
                for number in range(event.count):
                    self._chooser.choose(distances, scale=scale, tag=100 * reserved + number)
            elif isinstance(event, DiscreteGaussianEvent):
                deviation = event.noise_multiplier * event.sensitivity
                self._released.append(
                    noise.add_discrete_gaussian(
                        totals * LATTICE, standard_deviation=deviation, tag=reserved
                    )
                )
        self._watch("drawn", index)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"released": torch.from_numpy(np.array(self._released, np.int64))}

    def restore(self, tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        self._released = list(tensors["released"].numpy())
        assert len(self._released) == steps_done


def selection_plan(units: UnitCount) -> ReleasePlan:
    """Return the plan of the schedule; its budget is a little more than it costs."""
    budget = PrivacyBudget(epsilon=4.0, delta=1e-6, unit="trajectory", relation=NULL)
    return ReleasePlan(
        units=units, budget=budget, accountant="pld", steps=STEPS, spare=SPARE, schedule=SCHEDULE
    )


@dataclass(frozen=True)
class Selection(DeclaredMethod[int]):
    """A run of the toy; its world is how many steps are done.

    Args:
        config: of the run.
        watch: see `Selecting`.
        drawn_by: the plan that is drawn by, of the one that was charged.
    """

    config: Any
    watch: Watch = lambda _, __: None
    drawn_by: Callable[[ReleasePlan], ReleasePlan] = lambda plan: plan

    def check(self, context: RunContext) -> int:
        return 0

    def stages(self, world: int | None, units: UnitCount) -> Sequence[StagePlan]:
        return [StagePlan(name="selection", plan=selection_plan(units))]

    def work(self, stage: StagePlan, world: int, context: RunContext) -> int:
        assert isinstance(stage.plan, ReleasePlan)
        plan = self.drawn_by(stage.plan)
        spec = StepsSpec(
            worker_cls=Counts,
            workers=[UNITS // 2, UNITS - UNITS // 2],
            program=lambda: Selecting(plan.schedule, self.watch),
            checkpoint=context.folder / "selection.safetensors",
            stage="selection",
        )
        return release_in_steps(spec, self.config, context, plan)

    def finish(self, world: int, context: RunContext, certified: Sequence[Stage]) -> Released:
        return Released(release=ReleasedFiles(save=lambda path: path.write_text(str(world))))


@dataclass(frozen=True)
class World:
    """A run's folder and ledger; the same run goes on whenever it is asked.

    Args:
        folder: of both.
        ledger: with a budget of 10.
    """

    folder: Path
    ledger: Ledger

    def run(self, watch: Watch = lambda _, __: None, **changed: Any) -> MethodResult:
        """Run the toy, or go on."""
        data = DataConfig.model_construct(
            sensitive=DATASET, unit="trajectory", units=UNITS, bounds=None
        )
        privacy = PrivacyConfig(epsilon=4.0, delta=1e-6)
        about = {"evaluation": EvaluationConfig(), "runtime": RuntimeConfig()}
        config = SimpleNamespace(data=data, privacy=privacy, **about)
        store: Any = Store()
        around = RunContext(
            run_id="run",
            folder=self.folder,
            executor=LocalExecutor(),
            store=store,
            ledger=self.ledger,
            fingerprint="f1",
            progress=silent,
        )
        return run_method(Selection(config, watch, **changed), around)

    def lose(self, *deaths: tuple[str, int]) -> None:
        """Run until a moment, and die there without a word; go on to the next one."""
        for death in deaths:

            def die(what: str, index: int, death: tuple[str, int] = death) -> None:
                if (what, index) == death:
                    raise LOST(1)

            try:
                self.run(die)
            except LOST:
                continue
            raise AssertionError(f"the run did not die at {death}")

    @property
    def rounds(self) -> tuple[int, int]:
        """Return how many steps are reserved, and how many committed."""
        entry = self.ledger.reserved("run")
        assert entry is not None
        return entry.reserved_rounds, entry.committed_rounds

    def certify(self, result: MethodResult) -> Path:
        """Write the certificate of a result, have the ledger know it, and return its file."""
        path, certificate = self.write(result)
        for entry in result.ledger_entries:
            self.ledger.certify(entry, certificate.digest)
        return path

    def write(self, result: MethodResult, **changed: Any) -> tuple[Path, Certificate]:
        """Write a certificate of a result and return it with its file."""
        values: dict[str, Any] = {
            "method": "selection",
            "stages": result.stages,
            "spare_rounds": result.spare_rounds,
            "noise_source": (SecureNoise.name, True, SecureNoise.assumptions),
            "ledger_entries": result.ledger_entries,
            "outputs": (),
            "versions": {},
        }
        certificate = build_certificate(**(values | changed))
        path = self.folder / "certificate.json"
        path.write_text(certificate.to_json())
        return path, certificate


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """Open a world in a folder."""
    ledger = Ledger(url_of(folder))
    set_budget(ledger)
    try:
        yield World(folder, ledger)
    finally:
        ledger.close()


def reversed_plan(plan: ReleasePlan) -> ReleasePlan:
    """Return a plan of the same events in another order."""
    return replace(plan, schedule=plan.schedule[::-1])


def single(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Return each draw of some events, by its kind and epsilon or noise multiplier."""
    found: list[tuple[str, float]] = []
    for event in events:
        if isinstance(event, PureDpEvent):
            found += [("choice", event.epsilon)] * event.count
        elif isinstance(event, DiscreteGaussianEvent):
            found += [("release", event.noise_multiplier)] * event.count
    return found
