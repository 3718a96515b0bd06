"""Which columns a run counted together, as its checkpoint keeps it for reports."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import Correlations
from distributed_privrl.marginals.plan import in_units
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
    """How two columns go together, as it was released.

    Args:
        columns: names, see `column.Column`.
        value: quadrant correlation of the two, the strongest where a column has several questions.
        signed: whether its sign says something: of categories it does not.
        deviation: of its noise.

    Privacy: post-processing of released sums and of released counts of single columns.
    """

    columns: tuple[str, str]
    value: float
    signed: bool
    deviation: float


def correlated_columns(columns: TableColumns, found: Correlations) -> list[CorrelatedColumns]:
    """Return how every two columns go together, the strongest first.

    Args:
        columns: of the table.
        found: correlations that were released.
    """
    strongest: dict[tuple[int, int], int] = {}
    for index, pair in enumerate(found.pairs):
        one, other = (found.questions[i].place for i in pair)
        before = strongest.get((one, other))
        if before is None or abs(found.values[index]) > abs(found.values[before]):
            strongest[one, other] = index
    told = [
        CorrelatedColumns(
            columns=(columns[places[0]].name, columns[places[1]].name),
            value=round(float(found.values[index]), 4),
            signed=all(columns[i].cells is not None or columns[i].size == 2 for i in places),
            deviation=round(float(found.deviations[index]), 4),
        )
        for places, index in strongest.items()
    ]
    return sorted(told, key=lambda one: -abs(one.value))


def correlated_to_tensors(told: Iterable[CorrelatedColumns]) -> dict[str, Tensor]:
    """Return how columns go together as a checkpoint holds it."""
    text = json.dumps([asdict(one) for one in told]).encode()
    return {_CORRELATED: torch.from_numpy(np.frombuffer(text, np.uint8).copy())}


def correlated_from_tensors(tensors: Mapping[str, Tensor]) -> list[CorrelatedColumns]:
    """Return how columns of a checkpoint go together; []: it was not measured."""
    if _CORRELATED not in tensors:
        return []
    found = json.loads(tensors[_CORRELATED].numpy().tobytes())
    return [CorrelatedColumns(**one | {"columns": tuple(one["columns"])}) for one in found]
