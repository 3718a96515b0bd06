"""Which columns a run counted together, as its checkpoint keeps it for reports."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import Correlations, Question, untold_of
from distributed_privrl.marginals.plan import in_units
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.tables import Clique

_NAME, _CORRELATED = "together", "correlated"


@dataclass(frozen=True, kw_only=True)
class CountedTogether:
    """A joint count that was released, without its counts.

    Args:
        columns: names, see `column.Column`.
        parts: values or ranges of values that each of them was counted in.
        step: of the run that released it, from 1; columns alone are counted in step 0.
        noise_units: deviation of the noise of a cell, in units.

    Privacy: which columns they are was released (a choice of the exponential mechanism) or is
    public; parts follow from released counts of single columns; step and noise are of the plan.
    """

    columns: tuple[str, ...]
    parts: tuple[int, ...]
    step: int
    noise_units: float


def counted_together(
    columns: TableColumns, clique: Clique, parts: Sequence[int], *, step: int, deviation: float
) -> CountedTogether:
    """Return what is told of a joint count.

    Args:
        columns: of the table.
        clique: places of those that were counted.
        parts: of each of them.
        step: see `CountedTogether`.
        deviation: of the noise of a cell, in integers.
    """
    return CountedTogether(
        columns=tuple(columns[place].name for place in clique),
        parts=tuple(map(int, parts)),
        step=step,
        noise_units=in_units(deviation),
    )


def to_tensors(counted: Iterable[CountedTogether] | None) -> dict[str, Tensor]:
    """Return joint counts as a checkpoint holds them; None: it tells nothing of them."""
    if counted is None:
        return {}
    text = json.dumps([asdict(one) for one in counted]).encode()
    return {_NAME: torch.from_numpy(np.frombuffer(text, np.uint8).copy())}


def from_tensors(tensors: Mapping[str, Tensor]) -> list[CountedTogether] | None:
    """Return the joint counts of a checkpoint; None: the version that began the run kept none."""
    if _NAME not in tensors:
        return None
    found = json.loads(tensors[_NAME].numpy().tobytes())
    return [
        CountedTogether(**one | {"columns": tuple(one["columns"]), "parts": tuple(one["parts"])})
        for one in found
    ]


@dataclass(frozen=True, kw_only=True)
class CorrelatedColumns:
    """How two columns go together, as it was released: the correlation of two answers.

    Args:
        columns: names, see `column.Column`.
        asked: what is asked of each: ``above`` a number, or that number itself; whether it is
            ``missing``; whether a category ``is`` the one of that place.
        value: correlation of the two answers, 1 for yes and 0 for no.
        deviation: of its noise.
        follows: whether one of the columns is of what follows.

    Privacy: post-processing of released sums and of released counts of single columns.
    """

    columns: tuple[str, str]
    asked: tuple[tuple[str, float], tuple[str, float]]
    value: float
    deviation: float
    follows: bool


def correlated_columns(
    columns: TableColumns, shapes: Sequence[ColumnShape], found: Correlations
) -> list[CorrelatedColumns]:
    """Return how every two columns go together, the strongest first.

    Args:
        columns: of the table.
        shapes: of each column; released.
        found: correlations that were released.
    """
    asked = [_asked(columns[one.place], shapes[one.place], one) for one in found.questions]
    names = [columns[one.place].name for one in found.questions]
    after = set(untold_of(columns, [one.place for one in found.questions]).tolist())
    told = [
        CorrelatedColumns(
            columns=(names[one], names[other]),
            asked=(asked[one], asked[other]),
            value=round(float(value), 4),
            deviation=round(float(deviation), 4),
            follows=bool({one, other} & after),
        )
        for (one, other), value, deviation in zip(found.pairs.tolist(), *found.among, strict=True)
    ]
    return sorted(told, key=lambda one: -abs(one.value))


def _asked(column: Column, shape: ColumnShape, question: Question) -> tuple[str, float]:
    """Return what is asked of a column; see `CorrelatedColumns`."""
    first = int(np.argmax(question.answers == 1))
    if column.cells is None:
        return "is", float(first)
    if column.gaps and first == len(question.answers) - 1:
        return "missing", 0.0
    low, _ = column.cells.edges
    return "above", float(low[int(np.argmax(shape.bins == first))])


def correlated_to_tensors(told: Iterable[CorrelatedColumns]) -> dict[str, Tensor]:
    """Return how columns go together as a checkpoint holds it."""
    text = json.dumps([asdict(one) for one in told]).encode()
    return {_CORRELATED: torch.from_numpy(np.frombuffer(text, np.uint8).copy())}


def correlated_from_tensors(tensors: Mapping[str, Tensor]) -> list[CorrelatedColumns]:
    """Return how columns of a checkpoint go together; []: it was not measured."""
    if _CORRELATED not in tensors:
        return []
    found = json.loads(tensors[_CORRELATED].numpy().tobytes())
    return [
        CorrelatedColumns(
            columns=tuple(one["columns"]),
            asked=((first[0], float(first[1])), (second[0], float(second[1]))),
            value=one["value"],
            deviation=one["deviation"],
            follows=one["follows"],
        )
        for one in found
        for first, second in [one["asked"]]
    ]
