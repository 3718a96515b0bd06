"""Gates on marginals that are measured at once: a unit moves what is paid for, at most.

A program runs on two neighbouring datasets. Its noise gives both the same answers, so that all that
follows from what was released is the same; what it was given before the noise may differ by as much
as its step is charged for. Units are made for the worst case: all their rows lie in one cell.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.registry import method_named, parse_config
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.run import TableRun, World
from distributed_privrl.marginals.stage import ForeseenTable
from distributed_privrl.marginals.table_program import ProgramSpec, TableProgram
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import UnitCount
from tests.marginals.programs import Chooses, chained
from tests.marginals.rows import few_columns, group, steps_of
from tests.worlds.intake import config_values

METHODS = ("pgm", "privsyn")
A, B = (0.0, 0, 0.0, 0.0, False), (3.0, 1, 1.0, 3.0, True)
_ANSWER = 40 * UNIT_WEIGHT
"""Of every release."""


@dataclass
class Answers:
    """Gives the same answer to whatever is asked, and remembers what it was given."""

    given: list[NDArray[np.int64]] = field(default_factory=list)
    name: str = "answers"
    certifiable: bool = False
    assumptions: tuple[str, ...] = ()
    draws: int = 0

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        self.given.append(values.copy())
        return np.full_like(values, _ANSWER)


@dataclass(frozen=True)
class Seen:
    """What a program did on one dataset.

    Args:
        plan: that pays for it.
        given: what each step's noise was added to.
        asked: joint counts that workers were asked for, and by which bins, in each call.
        program: at the end.
    """

    plan: MarginalsPlan
    given: list[NDArray[np.int64]]
    asked: list[Any]
    program: TableProgram[Any]


def declared(method: str, **changes: Any) -> TableRun[Any]:
    """Return a tiny run of a method, not started."""
    changes = {"privacy__epsilon": 10.0} | changes
    values = config_values(Path("bounds.yaml"), method, **changes)
    run = method_named(method).declare(parse_config(values, source="a gate's configuration"))
    assert isinstance(run, TableRun)
    return run


def plan_of(run: TableRun[Any], columns: TableColumns) -> MarginalsPlan:
    """Return the plan of a thousand units of a table."""
    table, units = (
        ForeseenTable(columns=columns, assumed=False),
        UnitCount(value=1000, source="declared"),
    )
    return run.plan(table, units, epsilon=run.config.privacy.epsilon)


def fresh(run: TableRun[Any], columns: TableColumns, plan: MarginalsPlan) -> TableProgram[Any]:
    """Return a program of a run, as its server builds it."""
    stage = run.stage(World(ranges=None, columns=columns, plan=plan))
    return ProgramSpec(
        columns=columns,
        plan=plan,
        chooser=Chooses(),
        program=stage.program,
        seed=3,
        most_bins=4,
        most_cells=200,
        rows=300,
    )()


def watched_program(
    method: str, rows: Transitions | None, *, cap: int = 1, columns: TableColumns | None = None
) -> Seen:
    """Run all steps of a program on a dataset, and return what it did."""
    columns, run = few_columns() if columns is None else columns, declared(method)
    plan, noise, asked = plan_of(run, columns), Answers(), list[Any]()
    tables = CountWorker.tables

    def told(self: CountWorker, bins: Any, cliques: Any) -> Any:
        asked.append(([one.tolist() for one in bins], list(cliques)))
        return tables(self, bins, cliques)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belief, "estimated", chained)
        patch.setattr(CountWorker, "tables", told)
        program, workers = fresh(run, columns, plan), group(rows, columns, cap=cap)
        source: Any = noise
        for step in range(plan.steps):
            program.prepare(step)
            program.step(step, workers, source, step)
    return Seen(plan, noise.given, asked, program)


def moved(one: Seen, other: Seen) -> list[float]:
    """Return by which part of what is charged each step's vector differs, in L2."""
    assert len(one.given) == len(other.given) == one.plan.steps, "a step drew not once"
    paid = [release.gaussian.sensitivity for release in one.plan.releases]
    return [
        float(np.linalg.norm((x - y).astype(np.float64))) / most
        for x, y, most in zip(one.given, other.given, paid, strict=True)
    ]


def gate_moved_vectors(method: str) -> None:
    """A unit moves each step's vector by what is charged at most, and somewhere by all of it."""
    most = np.zeros(0)
    for count, cap in ((1, 1), (3, 1), (3, 2), (1000, 10)):
        own = [B] * count
        with_it = steps_of([A] * 200 + own, [*range(200), *([1000] * count)])
        parts = moved(
            watched_program(method, with_it, cap=cap),
            watched_program(method, steps_of([A] * 200), cap=cap),
        )
        for step, part in enumerate(parts):
            assert part <= 1 + 1e-9, f"{count} rows move step {step} by {part:.3f} of its charge"
        most = np.maximum(most, parts) if len(most) else np.array(parts)
    assert most.min() > 0.99, f"what is charged is moved by {most.min():.3f} of it alone"


def gate_choices_from_what_was_released(method: str) -> None:
    """Bins, the total and which joint counts are measured are the same for all datasets."""
    one, other = (
        watched_program(method, rows) for rows in (steps_of([A, A, A, B]), steps_of([B] * 400))
    )
    for step, (asked, again) in enumerate(zip(one.asked, other.asked, strict=True)):
        assert asked[0] == again[0], "exact counts decide on bins"
        assert asked[1] == again[1], f"exact counts decide on what call {step} measures"
    assert len(one.given[-1]) == len(other.given[-1]), "exact counts decide on what is measured"
    assert one.program._belief.bins.total == other.program._belief.bins.total, "the total is exact"
    assert repr(one.program.tensors()) == repr(other.program.tensors())
