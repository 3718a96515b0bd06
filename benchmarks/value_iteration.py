"""DP-APVI at the size of ICU-Sepsis: the projection, one time step, and the whole way to a policy.

The bound of the whole way is the noise of its cells, all of which are released. The projection is
compared with a linear program a cell, of which some are solved and the time of all is extrapolated.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.optimize import linprog

from benchmarks import harness, processes
from benchmarks.harness import SEED, Alternative, Result
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.problems import tabular_problem
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.experiments.run import run as run_experiment
from distributed_privrl.methods.value_iteration.config import ApviConfig
from distributed_privrl.methods.value_iteration.counts import CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.pessimism import Uncertainty
from distributed_privrl.methods.value_iteration.projection import (
    project_counts,
    transition_moments,
)
from distributed_privrl.methods.value_iteration.settings import tabular_settings
from distributed_privrl.methods.value_iteration.study import simulate
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.runtime.executor import RayExecutor

DATASET = "benchmark/patients-v0"
WORKERS, HORIZON, POLL_SECONDS = 2, 20, 0.25
COUNTS, NOISE, PROJECTION, BACKUP = "counts", "noise", "projection", "backup"
STEP, LINEAR_PROGRAM = "one step, whole", "projection by a linear program a cell"
MOST_SECONDS, MOST_BYTES = 300.0, 4e9


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        recipe: makes the trajectories.
        counted: the recipe's option that says how many.
        environment: their problem.
        unit: whose each is.
        units: their number.
        programs: linear programs that are solved.
        turns: timed turns of each part of a step.
        ray: also run on Ray.
    """

    recipe: str
    counted: str
    environment: str
    unit: str
    units: int
    programs: int
    turns: int
    ray: bool


FULL = Size(
    recipe="icu-sepsis",
    counted="patients",
    environment="privrl/ICU-Sepsis-v0",
    unit="patient_id",
    units=100_000,
    programs=300,
    turns=5,
    ray=True,
)
QUICK = Size(
    recipe="gridworld",
    counted="trajectories",
    environment="privrl/Gridworld-v0",
    unit="trajectory",
    units=1_000,
    programs=20,
    turns=2,
    ray=False,
)


@dataclass(frozen=True, kw_only=True)
class Used:
    """What some work used, in all processes.

    Args:
        wall: seconds.
        cpu: seconds.
        peak: bytes that processes held for themselves, at most, together.
    """

    wall: float
    cpu: float
    peak: int


class Step:
    """The parts of one time step, one after the other, with what each leaves to the next.

    Args:
        settings: of the program.
        workers: count.
    """

    def __init__(self, settings: TabularSettings, workers: WorkerGroup) -> None:
        layout = settings.layout
        assert settings.release is not None
        self._settings, self._workers, self._release = settings, workers, settings.release
        self._noise = SecureNoise()
        self._values = Streams(SEED).numpy("value_iteration/values").uniform(size=layout.successors)
        self._size = Uncertainty(
            horizon=layout.horizon,
            states=layout.groups,
            actions=layout.actions,
            successors=layout.successors,
            releases=layout.releases,
            reward_width=1.0,
            random_reward=True,
        )
        self._error = settings.pessimism.count_error(self._release, self._size)
        self.count()
        self.add_noise()
        self.project()

    def count(self) -> None:
        """Ask the workers, and sum into one dense vector."""
        layout = self._settings.layout
        cells = layout.pairs * layout.successors
        vector, one = np.zeros(layout.dimension, np.int64), round(1 / self._settings.unit)
        for answer in self._workers.call("counts", {"step": 0}):
            vector[answer.cells] += answer.counts * one
        table = vector[:cells].reshape(layout.pairs, layout.successors)
        vector[cells:] = table.sum(axis=1)
        self._counts = vector

    def add_noise(self) -> None:
        """Release the vector."""
        self._noisy = self._release.release(self._counts, self._noise)

    def rows(self) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Return what is projected: ``(N, S)`` successors, ``(N,)`` pairs, and the slack."""
        layout = self._settings.layout
        cells = layout.pairs * layout.successors
        cut = np.maximum(self._noisy, 0)
        return cut[:cells].reshape(layout.pairs, layout.successors), cut[cells:], self._error

    def project(self) -> None:
        """Make the noisy counts consistent."""
        noisy_next, noisy_pair, slack = self.rows()
        self._projected = project_counts(noisy_next, noisy_pair, slack, out=noisy_next)

    def back_up(self) -> None:
        """Compute means, variances, penalties and the greedy actions."""
        counts, totals = self._projected
        means, variances = transition_moments(counts, totals, self._values, threshold=self._error)
        penalties = self._settings.pessimism.penalties(
            variances, totals, error=self._error, size=self._size, steps_left=0
        )
        (means - penalties).reshape(self._settings.layout.groups, -1).argmax(axis=1)

    def whole(self) -> None:
        """Run the program's own first step, which has all four parts."""
        TabularProgram(self._settings).step(0, self._workers, self._noise)


def by_linear_program(row: NDArray[np.float64], pair: float, slack: float) -> NDArray[np.float64]:
    """Return the projection of one cell, (S,), by a linear program (equation 4)."""
    ones, one = sparse.identity(len(row)), np.ones((len(row), 1))
    total = sparse.csr_matrix(np.append(np.ones(len(row)), 0.0))
    limits = [sparse.hstack([ones, -one]), sparse.hstack([-ones, -one]), total, -total]
    found = linprog(
        np.append(np.zeros(len(row)), 1.0),
        A_ub=sparse.vstack(limits, format="csc"),
        b_ub=np.concatenate([row, -row, [pair + slack / 2, slack / 2 - pair]]),
        bounds=(0, None),
        method="highs-ds",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.status == 0, found.message
    solution: NDArray[np.float64] = found.x[:-1]
    return solution


def configuration(size: Size, executor: str) -> ApviConfig:
    """Return the configuration of the whole way: each step, known rewards, epsilon 1."""
    config = parse_config(
        {
            "method": "apvi",
            "data": {
                "sensitive": DATASET,
                "unit": size.unit,
                "units": size.units,
                "environment": size.environment,
            },
            "privacy": {"epsilon": 1.0, "delta": 0.1 / size.units},
            "model": {"horizon": HORIZON, "reward": "known"},
            "runtime": {"workers": WORKERS, "executor": executor},
        },
        source="the benchmark",
    )
    assert isinstance(config, ApviConfig)
    return config


def whole_way(size: Size, folder: Path, executor: str) -> Used:
    """Run the product from the stored dataset to the released policy, with a ledger."""
    config, out = configuration(size, executor), folder / executor
    store, ledger = DatasetStore(folder / "datasets"), f"sqlite:///{folder / executor}.sqlite"
    set_budget(config, store, ledger)

    def work() -> None:
        ray = RayExecutor(workers=WORKERS) if executor == "ray" else None
        result = run_experiment(
            config, ray or LocalExecutor(), out=out, ledger_url=ledger, store=store
        )
        if ray is not None:
            ray.close()
        assert result.certificate.status == "valid"

    return measured(work)


def measured(work: Callable[[], None]) -> Used:
    """Return what ``work`` used; of processes that end meanwhile, up to the last look at them."""
    peak, seen, done = [0], processes.cpu_by_process(), threading.Event()
    before = sum(seen.values())

    def look() -> None:
        peak[0] = max(peak[0], processes.memory_bytes(""))
        seen.update(processes.cpu_by_process())

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    try:
        work()
    finally:
        wall = time.perf_counter() - start
        done.set()
        watcher.join()
    look()
    return Used(wall=wall, cpu=sum(seen.values()) - before, peak=peak[0])


def run(quick: bool) -> Result:
    """Measure the whole way, then its parts."""
    size = QUICK if quick else FULL
    ways = _whole_ways(size)
    mdp = tabular_problem(size.environment)
    assert mdp is not None
    settings, workers = _started(size, mdp)
    layout, step = settings.layout, Step(settings, workers)
    programs, difference = _programs(step, size.programs)
    parts = {
        COUNTS: step.count,
        NOISE: step.add_noise,
        PROJECTION: step.project,
        BACKUP: step.back_up,
        STEP: step.whole,
    }
    timings = harness.interleave(
        {name: Alternative(run=part) for name, part in parts.items()}, turns=size.turns
    )
    noise = timings[NOISE].cpu_median * layout.releases
    solved = programs * layout.pairs
    cells = [_cell(name, t.cpu_median, t.wall_median, None) for name, t in timings.items()]
    cells.append(_cell(LINEAR_PROGRAM, solved, solved, None))
    ratios: dict[str, float | None] = {"projection_vs_lp": solved / timings[PROJECTION].cpu_median}
    for name, used in ways.items():
        cells.append(_cell(f"whole way, {name}", used.cpu, used.wall, used.peak))
        ratios[f"{name}_vs_bound"] = used.cpu / noise
        ratios[f"{name}_wall_vs_allowed"] = used.wall / MOST_SECONDS
        ratios[f"{name}_memory_vs_allowed"] = used.peak / MOST_BYTES
    cells.append(_cell(f"bound: noise of {layout.releases} steps", noise, noise, None))
    numbers = layout.dimension * layout.releases
    return Result(
        cells=cells,
        ratios=ratios,
        notes=(
            f"{layout.states} states, {layout.actions} actions, H = {HORIZON}, {size.units:,}"
            f" units: {numbers:,} noisy numbers.",
            f"{size.programs} linear programs were solved, and differ from ours by at most"
            f" {difference:.1e} counts; theirs is the time of all {layout.pairs:,} of a step.",
            "Whole way: from the stored dataset to the policy, its certificate and its report, with"
            f" {WORKERS} workers and a ledger; CPU and memory of all processes together.",
        ),
        facts={"noisy_numbers": numbers, "projection_difference": difference},
    )


def _whole_ways(size: Size) -> dict[str, Used]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {size.counted: size.units, "horizon": HORIZON}
        store = DatasetStore(folder / "datasets")
        collect(size.recipe, dataset=DATASET, store=store, seed=SEED, options=options)
        executors = ("local", "ray") if size.ray else ("local",)
        return {executor: whole_way(size, folder, executor) for executor in executors}


def _started(size: Size, mdp: TabularMdp) -> tuple[TabularSettings, WorkerGroup]:
    config = configuration(size, "local")
    settings = tabular_settings(config, plan_run(config), states=mdp.states, actions=mdp.actions)
    source = simulate(mdp, units=size.units, horizon=HORIZON, seed=SEED)
    spec = CountSpec(source=source, layout=settings.layout)
    return settings, LocalExecutor().start(CountWorker, [spec])


def _programs(step: Step, count: int) -> tuple[float, float]:
    """Return the CPU seconds of a linear program, and the largest difference from ours."""
    noisy_next, noisy_pair, slack = step.rows()
    chosen = Streams(SEED).numpy("value_iteration/cells").integers(len(noisy_pair), size=count)
    start = time.process_time()
    solved = np.stack([by_linear_program(noisy_next[i], noisy_pair[i], slack) for i in chosen])
    seconds = (time.process_time() - start) / count
    ours, _ = project_counts(noisy_next[chosen], noisy_pair[chosen], slack)
    return seconds, float(np.abs(solved - ours).max())


def _cell(part: str, cpu: float, wall: float, peak: int | None) -> dict[str, Any]:
    peak_gigabytes = None if peak is None else peak / 1e9
    return {"part": part, "CPU s": cpu, "wall s": wall, "peak GB": peak_gigabytes}


if __name__ == "__main__":
    harness.main("value_iteration", run)
