"""A million rows of twelve columns through `marginals`: seconds by phase, and memory.

The whole way goes from the configuration to the certificate. Beside it are plain ways of three of
its parts: a histogram of every pair of columns as numpy makes it, and the last estimate and rows
drawn from it by mbi, the library of private-PGM's authors. The bound is one pass of
``numpy.bincount`` over every joint count that was asked for.
"""

import contextlib
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import yaml
from gymnasium.spaces import Box, MultiDiscrete
from numpy.typing import NDArray

from benchmarks import harness, processes
from benchmarks.harness import SEED, Alternative, Result
from benchmarks.private_pgm import estimated_by_mbi, library, model_of
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments import judging
from distributed_privrl.experiments import run as program_run
from distributed_privrl.experiments.demo import set_budget
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.loss import Loss, Measured
from distributed_privrl.marginals.model import Field, estimated
from distributed_privrl.marginals.tables import Clique

DATASET, RELEASE = "benchmark/people-v0", "synthetic/people-v0"
READING, COUNTING, ESTIMATION, DRAWING = "reading", "counting", "estimation", "drawing"
PHASES = READING, COUNTING, ESTIMATION, DRAWING
OTHERS = "choices, accounting, files"
PAIRS, HISTOGRAMS, FILLED, MBI = "pairs, ours", "pairs, numpy", "rows, ours", "rows, mbi"
ESTIMATE, LIBRARY = "last estimate, ours", "last estimate, mbi"
BOUND = "bound: one bincount of each joint count"
MOST_SECONDS, MOST_MEGABYTES = 300.0, 3000.0
EVALUATIONS = 3000
"""Of the loss, at most, by our last estimate: so many are mbi's iterations."""
ACTIONS = (6, 4)
LOW, HIGH, STEP = (-60.0, 0.0, 0.0, 0.0), (1440.0, 100.0, 100.0, 1.0), (1.0, 0.0, 1.0, 1.0)
"""Minutes, an amount, years and a flag."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        rows: of the table, and of the release.
        units: people that they belong to, as many rows each.
        draws: rows that stand for the model while counts are chosen.
        turns: timed turns of each part.
        training: settings of the run that differ from its defaults.
    """

    rows: int
    units: int
    draws: int
    turns: int
    training: Mapping[str, int] = field(default_factory=dict)


FULL = Size(rows=1_000_000, units=10_000, draws=200_000, turns=3)
QUICK = Size(rows=6_000, units=200, draws=5_000, turns=1, training={"steps": 1, "tables": 2})


@dataclass
class Watch:
    """CPU seconds of phases, and what passed through them.

    Args:
        seconds: by phase.
        cliques: joint counts that were asked for.
        worker: that counted them.
        bins: by which it counted last.
        field: that rows were drawn from.
        asked: columns' bins, measurements and weight of all rows, of the last estimate.
    """

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    cliques: set[Clique] = field(default_factory=set)
    worker: CountWorker | None = None
    bins: Sequence[NDArray[np.int64]] = ()
    field: Field | None = None
    asked: tuple[Sequence[int], Sequence[Measured], float] | None = None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Time the product's phases while the context is open."""
        with contextlib.ExitStack() as stack:

            def watch(owner: Any, name: str, phase: str | None, seen: Callable[..., None]) -> None:
                timed = self.timed(getattr(owner, name), phase, seen)
                stack.enter_context(mock.patch.object(owner, name, timed))

            watch(CountWorker, "__init__", READING, lambda *_: None)
            watch(CountWorker, "columns", COUNTING, lambda *_: None)
            watch(CountWorker, "tables", COUNTING, self._asked)
            watch(belief, "estimated", ESTIMATION, self._field_found)
            watch(TableModel, "transitions", DRAWING, lambda *_: None)
            yield

    def timed(
        self, call: Callable[..., Any], phase: str | None, seen: Callable[..., None]
    ) -> Callable[..., Any]:
        """Return a call whose CPU seconds are added to a phase, and whose result is seen."""

        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            found = call(*arguments, **named)
            if phase is not None:
                spent = time.process_time() - start
                self.seconds[phase] = self.seconds.get(phase, 0.0) + spent
            seen(found, *arguments, *named.values())
            return found

        return timed

    def _asked(
        self,
        _: object,
        worker: CountWorker,
        bins: Sequence[NDArray[np.int64]],
        cliques: Sequence[Clique],
    ) -> None:
        self.worker, self.bins = worker, bins
        self.cliques.update(cliques)

    def _field_found(
        self,
        found: Field,
        sizes: Sequence[int],
        measured: Sequence[Measured],
        total: float,
        *_: object,
    ) -> None:
        self.field, self.asked = found, (sizes, measured, total)


def people(size: Size) -> Transitions:
    """Return a table in which columns go with each other, by a seed; nobody's."""
    rng, count = Streams(SEED).numpy("marginals/people"), size.rows
    kind = rng.normal(size=count)
    late = np.where(rng.random(count) < 0.3, np.exp(rng.normal(3 + kind / 2)), rng.normal(0, 4))
    amount = 20 * np.exp(0.4 * kind + rng.normal(0, 0.3, count))
    years = 45 + 15 * kind + rng.normal(0, 8, count)
    flag = (rng.random(count) < 1 / (1 + np.exp(-kind))).astype(np.float64)
    before = _within(np.stack([np.rint(late), amount, np.rint(years), flag], axis=1))
    later = rng.normal(size=(count, 2))
    after = before.copy()
    after[:, 0] = np.rint(0.5 * before[:, 0] + 10 * later[:, 0])
    after[:, 1] = before[:, 1] * np.exp(0.1 * later[:, 1])
    after[:, 2] += rng.random(count) < 0.2
    first = np.clip(np.rint(2 + kind + rng.normal(0, 1, count)), 0, ACTIONS[0] - 1)
    second = rng.integers(ACTIONS[1], size=count)
    rewards = -before[:, 0] / 20 + 3 * (first == second) + rng.normal(0, 1, count)
    return Transitions(
        observations=before.astype(np.float32),
        actions=np.stack([first, second], axis=1).astype(np.int64),
        rewards=np.clip(rewards, -100, 100).astype(np.float32),
        next_observations=_within(after).astype(np.float32),
        terminated=rng.random(count) < 0.01 * (1 + flag),
        truncated=np.zeros(count, np.bool_),
        unit_ids=np.repeat(np.arange(size.units, dtype=np.uint64), size.rows // size.units),
    )


def _within(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(numbers, LOW, HIGH)


def configuration(size: Size, bounds: Path) -> dict[str, Any]:
    """Return the configuration of the run: what is public of the table, else defaults."""
    return {
        "method": "marginals",
        "seed": SEED,
        "data": {
            "sensitive": DATASET,
            "unit": "person",
            "units": size.units,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 4.0, "delta": 0.1 / size.units},
        "model": {"rows_per_unit": size.rows // size.units, "draws": size.draws},
        "training": dict(size.training),
        "output": {"dataset": RELEASE, "size": size.rows},
        "runtime": {"workers": 1, "executor": "local"},
    }


def whole_way(
    size: Size,
    folder: Path,
    watching: contextlib.AbstractContextManager[None],
    values: Callable[[Size, Path], dict[str, Any]] = configuration,
) -> tuple[float, float, int]:
    """Run the product from its configuration to its certificate.

    Args:
        size: of the table.
        folder: for datasets, ledger and run.
        watching: open while the product runs.
        values: the configuration, by the size and the file of bounds.

    Returns:
        CPU seconds, seconds on the clock, and the largest memory in MB.

    Privacy: the rows are nobody's; epsilon of the configuration, the ledger in the folder.
    """
    store, bounds = DatasetStore(folder / "datasets"), folder / "bounds.yaml"
    sides = {"low": list(LOW), "high": list(HIGH), "step": list(STEP)}
    bounds.write_text(yaml.safe_dump({"observation": sides, "reward": [-100.0, 100.0]}))
    store.write_transitions(
        DATASET,
        people(size),
        layout="transitions",
        observation_space=Box(np.array(LOW, np.float32), np.array(HIGH, np.float32)),
        action_space=MultiDiscrete(list(ACTIONS)),
        unit_column="person",
    )
    ledger = f"sqlite:///{folder / 'ledger.sqlite'}"
    processes.forget_peak()
    cpu, wall = time.process_time(), time.perf_counter()
    config = parse_config(values(size, bounds), source="the benchmark")
    set_budget(config, store, ledger)
    with watching, mock.patch.object(judging, "write_reports"):
        result = program_run.run(
            config, LocalExecutor(), out=folder / "run", ledger_url=ledger, store=store, anyway=True
        )
    assert result.certificate.status == "valid"
    used = time.process_time() - cpu, time.perf_counter() - wall
    return *used, processes.peak_megabytes()


class Parts:
    """The parts that have a plain way, on what the whole way left.

    Args:
        watch: of the whole way.
        rows: that are drawn.
    """

    def __init__(self, watch: Watch, rows: int) -> None:
        assert watch.worker is not None
        assert watch.field is not None
        assert watch.asked is not None
        self._worker, self._bins, self._rows = watch.worker, watch.bins, rows
        self._field, self._asked = watch.field, watch.asked
        self._model = model_of(watch.field)
        self._sizes = [int(one.max()) + 1 for one in watch.bins]
        columns = range(len(self._sizes))
        self._pairs = [(one, other) for one in columns for other in columns[one + 1 :]]
        self._worker.tables(self._bins, [])  # rows by the last bins
        self._binned, self._weights = self._worker._bins, self._worker._weights

    def pairs(self) -> list[NDArray[np.int64]]:
        """Count every pair as the worker does that has counted none."""
        self._worker._counted.clear()
        return self._worker.tables(self._bins, self._pairs)

    def histograms(self) -> list[NDArray[np.float64]]:
        """Count every pair as numpy does."""
        ends = [np.arange(size + 1) - 0.5 for size in self._sizes]
        return [
            np.histogram2d(
                self._binned[:, one],
                self._binned[:, other],
                bins=(ends[one], ends[other]),
                weights=self._weights,
            )[0]
            for one, other in self._pairs
        ]

    def filled(self) -> NDArray[np.int32]:
        """Draw rows of bins, ``(N, V)``."""
        rows = np.zeros((self._rows, len(self._sizes)), np.int32)
        Drawer(self._field).fill(rows, Streams(SEED).numpy("marginals/rows"))
        return rows

    def by_mbi(self) -> NDArray[np.int64]:
        """Draw rows of bins as the library does, by numpy's global generator, ``(N, V)``."""
        drawn = self._model.synthetic_data(self._rows).to_dict()
        return np.stack([drawn[str(column)] for column in range(len(self._sizes))], axis=1)

    def estimate(self) -> float:
        """Estimate once more as the product does at the end, and return the loss that is left."""
        sizes, measured, total = self._asked
        return self._loss(estimated(sizes, measured, total=total, last=True))

    def estimate_by_mbi(self) -> float:
        """Estimate by the library's own mirror descent, from even potentials; return the loss."""
        sizes, measured, total = self._asked
        found = estimated_by_mbi(sizes, measured, total=total, iterations=EVALUATIONS)
        potentials = {
            tuple(map(int, clique)): np.asarray(found.potentials[clique].values)
            for clique in found.potentials.cliques
        }
        return self._loss(Field(tuple(sizes), potentials))

    def _loss(self, field: Field) -> float:
        sizes, measured, total = self._asked
        nothing = [
            Measured(clique, np.zeros_like(values), 1e150)
            for clique, values in field.potentials.items()
        ]
        flat = [np.zeros(one.counts.size) for one in measured]
        flat += [values.ravel() for values in field.potentials.values()]
        return Loss(sizes, [*measured, *nothing], total).at(np.concatenate(flat)).loss

    def bound(self, cliques: Sequence[Clique]) -> float:
        """Return the CPU seconds of one ``bincount`` a clique, its places known."""
        seconds = 0.0
        for clique in cliques:
            extents = [self._sizes[i] for i in clique]
            places = np.ravel_multi_index(tuple(self._binned[:, i] for i in clique), extents)
            cells = int(np.prod(extents))
            start = time.process_time()
            np.bincount(places, weights=self._weights, minlength=cells)
            seconds += time.process_time() - start
        return seconds


def run(quick: bool) -> Result:
    """Measure the whole way, then its parts beside the plain ones."""
    size, watch = (QUICK if quick else FULL), Watch()
    with tempfile.TemporaryDirectory() as name:
        cpu, wall, peak = whole_way(size, Path(name), watch.watching())
    parts, cliques = Parts(watch, size.rows), sorted(watch.cliques)
    library()  # imports are no part of what is timed
    losses: dict[str, float] = {}
    timings = harness.interleave(
        {
            PAIRS: Alternative(run=parts.pairs),
            HISTOGRAMS: Alternative(run=parts.histograms),
            FILLED: Alternative(run=parts.filled),
            MBI: Alternative(run=parts.by_mbi),
            ESTIMATE: Alternative(run=lambda: losses.__setitem__(ESTIMATE, parts.estimate())),
            LIBRARY: Alternative(run=lambda: losses.__setitem__(LIBRARY, parts.estimate_by_mbi())),
        },
        turns=size.turns,
    )
    bound = parts.bound(cliques)
    found_any = math.isfinite(losses[LIBRARY])  # with few iterations mbi's steps may run away
    phases = watch.seconds | {OTHERS: cpu - sum(watch.seconds.values())}
    median = {name: timing.cpu_median for name, timing in timings.items()}
    cells = [_cell("whole way", cpu, wall, peak)]
    cells += [_cell(f"of it: {name}", seconds) for name, seconds in phases.items()]
    cells += [_cell(name, one.cpu_median, one.wall_median) for name, one in timings.items()]
    cells.append(_cell(BOUND, bound))
    return Result(
        cells=cells,
        ratios={
            "whole_vs_allowed": cpu / MOST_SECONDS,
            "memory_vs_allowed": peak / MOST_MEGABYTES,
            "whole_vs_bound": cpu / bound,
            "counting_vs_bound": phases[COUNTING] / bound,
            "pairs_vs_numpy": median[PAIRS] / median[HISTOGRAMS],
            "rows_vs_mbi": median[FILLED] / median[MBI],
            "estimate_vs_mbi": median[ESTIMATE] / median[LIBRARY],
            "loss_vs_mbi": losses[ESTIMATE] / losses[LIBRARY] if found_any else None,
        },
        notes=(
            f"{size.rows:,} rows of {len(watch.bins)} columns of {size.units:,} people, as many"
            f" released; {len(cliques)} joint counts were asked for. Epsilon 4.",
            f"Allowed: {MOST_SECONDS:g} CPU seconds and {MOST_MEGABYTES:,.0f} MB. Imports and"
            " reports are left out.",
            f"mbi's estimate has {EVALUATIONS:,} iterations, each an evaluation of the loss, of"
            " which ours has as many at most; programs that jax compiles are part of it. The loss"
            f" that is left is {losses[ESTIMATE]:.4g}, and {losses[LIBRARY]:.4g} of mbi's.",
            "Parts are medians of turns, on the bins of the last step; rows are drawn as bins.",
        ),
        facts={
            "loss": losses[ESTIMATE],
            "rows": size.rows,
            "joint_counts": len(cliques),
            "memory_mb": peak,
        },
    )


def _cell(
    part: str, cpu: float, wall: float | None = None, peak: int | None = None
) -> dict[str, Any]:
    return {"part": part, "CPU s": cpu, "wall s": wall, "peak MB": peak}


if __name__ == "__main__":
    harness.main("marginals", run)
