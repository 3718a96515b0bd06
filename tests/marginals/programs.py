"""Programs of marginals whose draws are watched, and states that they may have released before."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import most_sums
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.model import Field, _factorised
from distributed_privrl.marginals.plan import MarginalsPlan, SelectionConfig, marginals_plan
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.table_program import ProgramSpec
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import UnitCount

UNITS = UnitCount(value=1000, source="declared")


def chained(
    sizes: Sequence[int],
    measured: Sequence[Measured],
    *,
    total: float,
    hidden: int = 0,
    progress: Progress = silent,
    last: bool = False,
) -> Field:
    """Return the field of a chain of conditionals: what an estimate starts from, in no time."""
    return Field(tuple(sizes), _factorised(measured), hidden=hidden)


def remembered(estimate: Callable[..., Field]) -> Callable[..., Field]:
    """Return an estimate that is made once for the same counts: for runs and what reads them."""
    found: dict[Any, Field] = {}

    def once(sizes: Sequence[int], measured: Sequence[Measured], **options: Any) -> Field:
        tables = tuple(
            (one.clique, one.counts.tobytes(), np.asarray(one.deviations).tobytes())
            for one in measured
        )
        key = (tuple(sizes), tables, *(options.get(one) for one in ("total", "hidden", "last")))
        if key not in found:
            found[key] = estimate(sizes, measured, **options)
        return found[key]

    return once


def plan_of(
    columns: TableColumns,
    *,
    relation: str = "replace_with_null",
    epsilon: float | None = 8.0,
    **training: Any,
) -> MarginalsPlan:
    """Return the plan of a table."""
    return marginals_plan(
        PrivacyConfig.model_validate({"epsilon": epsilon, "delta": 1e-5, "relation": relation}),
        SelectionConfig(**({"steps": 2, "tables": 2} | training)),
        unit="patient",
        units=UNITS,
        columns=len(columns),
        histograms=columns.histograms,
        sums=most_sums(columns),
        epsilon=epsilon,
        delta=1e-5,
    )


@dataclass
class Chooses:
    """Takes the first candidates that it is told, then the first of all; remembers the scores.

    Args:
        places: of the candidates that it takes.
        asked: scores, scale and tag of each choice.
    """

    places: tuple[int, ...] = ()
    asked: list[tuple[list[int], float, int]] = field(default_factory=list)

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        raise AssertionError("choices of marginals are exponential")

    def choose_exponential(self, scores: Sequence[int], *, scale: float, tag: int = 0) -> int:
        self.asked.append((list(scores), scale, tag))
        made = len(self.asked) - 1
        return self.places[made] if made < len(self.places) else 0


@dataclass
class Adds:
    """Adds what it is told, for noise; remembers what it was given.

    Args:
        amount: that it adds to each integer.
        asked: values, standard deviation and tag of each release.
    """

    amount: int = 0
    asked: list[tuple[NDArray[np.int64], float, int]] = field(default_factory=list)
    name: str = "adds"
    certifiable: bool = False
    assumptions: tuple[str, ...] = ()
    draws: int = 0

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        self.asked.append((values.copy(), standard_deviation, tag))
        return values + self.amount


def program_of(
    columns: TableColumns, plan: MarginalsPlan, chooser: Any = None, **changes: Any
) -> MarginalsProgram:
    """Return a fresh program, with few rows for its model."""
    settings: dict[str, Any] = {"rows": 500, "seed": 3, "most_cells": 200} | changes
    chooser = Chooses() if chooser is None else chooser
    built = {"columns": columns, "plan": plan, "chooser": chooser, "program": MarginalsProgram}
    return MarginalsProgram(ProgramSpec(**(built | settings)))


def released_columns(columns: TableColumns, *, units: int, deviation: float) -> dict[str, Any]:
    """Return what a program has in its checkpoint where all cells of a column are alike."""
    counts = [
        np.full(column.counted, units * UNIT_WEIGHT // column.counted)
        for column in columns.columns
        if column.counted
    ]
    return {
        "columns": torch.from_numpy(np.concatenate(counts).astype(np.int64)),
        "columns.deviation": torch.tensor(deviation, dtype=torch.float64),
    }


def resumed(program: MarginalsProgram, tensors: Mapping[str, Any]) -> MarginalsProgram:
    """Return the program as it was when its checkpoint was written."""
    program.restore(program.tensors() | tensors, 1)
    return program
