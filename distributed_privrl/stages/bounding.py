"""Bounds of the columns where no public ones are known: private quantiles, found once and charged.

Reference: PRIVACY.md section 5 (normalisation from private data is forbidden or charged).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import DataConfig, NoisyBounds
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.privacy.quantiles import (
    CellWeights,
    ColumnGrid,
    QuantileRelease,
    bounds_between,
    row_weights,
)
from distributed_privrl.privacy.units import TRANSITION, Relation, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import FirstRelease, Question

WorldT = TypeVar("WorldT")
BOUNDS = "bounds"
"""Name of the certificate's stage, and of the ledger's entry."""
NARROWEST = 1 / 256
"""The least width of released bounds, as a share of the range that was searched.

So that no value in that range is more than 1000 scales out, where its row would count as null. A
difference of two values (PriMORL) has a scale of its own, ``model.difference_share`` times as wide:
at .1, one that is farther than 40 widths of the bounds counts as null.
"""


def first_bounds(
    data: DataConfig, ask: Callable[[WorldT, UnitCount, RunContext], Question[WorldT]]
) -> tuple[FirstRelease[WorldT], ...]:
    """Return the release of the columns' bounds; none where they are public.

    Args:
        data: ``bounds`` says at what cost they are found.
        ask: asks `bounds_question`, and makes the next world of the answer.
    """
    if not isinstance(data.bounds, NoisyBounds):
        return ()
    epsilon = data.bounds.epsilon
    return (FirstRelease(name=BOUNDS, key="data.bounds", epsilon=epsilon, ask=ask),)


def bounds_question(
    data: DataConfig,
    context: RunContext,
    ranges: Bounds,
    *,
    relation: Relation,
    units: UnitCount,
) -> Question[Bounds]:
    """Return the question for quantiles of each column, which become its bounds.

    Args:
        data: ``bounds`` says at what cost, which quantiles and of which parts.
        context: store and noise of the run.
        ranges: public; where the quantiles are searched, and the bounds of all other columns.
        relation: of the run.
        units: how many there are.

    Returns:
        What finds the bounds, at least `NARROWEST` of the range wide.

    Raises:
        ConfigError: ``data.bounds`` asks for no such thing, a range is empty, or the units are so
            few that the answer would be noise.

    Privacy: unit ``data.unit``, relation as given; a unit's rows weigh as much as another's one
    row, and move the rank of a cell by 1 at most (`rank_sensitivity`); values that are not finite
    are left out, silently; event ``pure_dp``. Weights of cells stay in this process and are written
    nowhere.
    """
    asked = _asked(data)
    searched = searched_columns(asked, ranges)
    grid = ColumnGrid(lower=ranges.low[searched], upper=ranges.high[searched])
    release = quantile_release(asked, ranges, relation=relation)
    _check_units(release, units)

    def draw() -> list[list[float]]:
        cells = _cell_weights(data, context, ranges.columns, searched, grid)
        found: list[list[float]] = bounds_between(
            grid, release.release(cells, context.chooser())
        ).tolist()
        return found

    return Question(
        event=release.event,
        facts={
            "columns": [ranges.columns[i] for i in searched],
            "lower": grid.lower.tolist(),
            "upper": grid.upper.tolist(),
            "quantiles": asked.quantiles,
        },
        draw=draw,
        found=partial(found_bounds, asked, ranges),
    )


def quantile_release(asked: NoisyBounds, ranges: Bounds, *, relation: Relation) -> QuantileRelease:
    """Return the release that finds the bounds.

    Raises:
        ConfigError: a value is out of range, or there is no column to search.
    """
    return QuantileRelease(
        epsilon=asked.epsilon,
        quantiles=asked.quantiles,
        columns=len(searched_columns(asked, ranges)),
        relation=relation,
    )


def searched_columns(asked: NoisyBounds, ranges: Bounds) -> NDArray[np.int64]:
    """Return the positions, among the columns of ``ranges``, of those whose bounds are searched.

    Raises:
        ConfigError: there is none, or a range to search in is empty.
    """
    parts = [name.partition("_")[0] for name in ranges.columns]
    searched = np.flatnonzero(np.isin(parts, asked.parts))
    if not len(searched):
        raise ConfigError(f"data.bounds.parts={list(asked.parts)} have no numeric columns")
    empty = [ranges.columns[i] for i in searched if not ranges.low[i] < ranges.high[i]]
    if empty:
        raise ConfigError(f"{ranges.source} leaves nothing to search in for {', '.join(empty)}")
    return searched


def _check_units(release: QuantileRelease, units: UnitCount) -> None:
    if units.value < release.units_needed():
        raise ConfigError(
            f"bounds from {units.value} units would be mostly noise, {release.units_needed()} are"
            " needed: raise data.bounds.epsilon, name fewer data.bounds.parts, or take quantiles"
            " nearer to the middle"
        )


def _asked(data: DataConfig) -> NoisyBounds:
    if not isinstance(data.bounds, NoisyBounds):
        raise ConfigError(f"data.bounds={data.bounds} are public: there is nothing to find")
    return data.bounds


def _cell_weights(
    data: DataConfig,
    context: RunContext,
    columns: tuple[str, ...],
    searched: NDArray[np.int64],
    grid: ColumnGrid,
) -> CellWeights:
    """Return the units' weight in each cell, read as a stream. Private: for the release alone."""

    def chunks() -> Iterator[Transitions]:
        yield from context.store.iter_transitions(data.sensitive, unit=data.unit)

    info = context.store.info(data.sensitive)
    layout = RowLayout(info.observation_space, info.action_space)
    position = [layout.column_names.index(columns[i]) for i in searched]
    weigh = weights_of_rows(data.unit, chunks)
    cells = CellWeights(grid)
    for chunk in chunks():
        weights = weigh(chunk.unit_ids)
        for part in layout.slices(len(chunk)):
            rows, _ = layout.to_rows(chunk.select(part))
            cells.add(rows[:, position], weights[part])
    return cells


def weights_of_rows(
    unit: str, chunks: Callable[[], Iterator[Transitions]]
) -> Callable[[NDArray[np.uint64]], NDArray[np.int64]]:
    """Return what gives the weight of rows by their unit; counts each unit's rows if it has many.

    Memory is that of one number a unit.

    Privacy: a unit's rows weigh `UNIT_WEIGHT` together at most; see `row_weights`.
    """
    if unit == TRANSITION:
        return lambda unit_ids: row_weights(np.ones(len(unit_ids), np.int64))
    counted: Counter[int] = Counter()
    for chunk in chunks():
        units, rows = np.unique(chunk.unit_ids, return_counts=True)
        counted.update(dict(zip(units.tolist(), rows.tolist(), strict=True)))
    order = np.array(sorted(counted), np.uint64)
    rows = np.array([counted[unit_id] for unit_id in order.tolist()], np.int64)
    counted.clear()
    return lambda unit_ids: row_weights(rows[np.searchsorted(order, unit_ids)])


def found_bounds(asked: NoisyBounds, ranges: Bounds, answer: Sequence[Sequence[float]]) -> Bounds:
    """Return the bounds of a run by its release's answer, where too narrow widened evenly.

    Args:
        asked: what was searched.
        ranges: public; where it was searched, and the bounds of all other columns.
        answer: low and high of each searched column, as the ledger holds them.

    Privacy: post-processing. What was found lies anywhere: a searched column has no step.
    """
    searched, found = searched_columns(asked, ranges), np.array(answer, np.float64)
    least = NARROWEST * (ranges.high[searched] - ranges.low[searched])
    missing = np.maximum(0.0, least - (found[:, 1] - found[:, 0])) / 2
    low, high, step = ranges.low.copy(), ranges.high.copy(), ranges.step.copy()
    low[searched], high[searched] = found[:, 0] - missing, found[:, 1] + missing
    step[searched] = 0.0
    return Bounds(low=low, high=high, step=step, columns=ranges.columns, source="data.bounds")
