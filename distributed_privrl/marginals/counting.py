"""The worker of marginals: it owns a shard of units and counts their rows, weighted by integers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.shards import ShardRef, load_trajectories, rows_by_unit, shard_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.columns import CodedRows, TableColumns
from distributed_privrl.marginals.correlations import Question, summed_answers
from distributed_privrl.marginals.steps import Steps, length_starts, steps_in_time
from distributed_privrl.marginals.tables import Clique, counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

StepChunks = Iterator[tuple[Steps, NDArray[np.uint64]]]
"""Rows, and the unit of each."""


class StepSource(Protocol):
    """Says where a worker's rows come from; picklable, holds no arrays."""

    def __call__(self) -> StepChunks:
        """Yield the rows of a shard, in dataset order."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredTransitions:
    """The transitions of a shard of a stored dataset.

    Args:
        ref: which shard.
    """

    ref: ShardRef

    def __call__(self) -> StepChunks:
        """Read them as a stream."""
        ref = self.ref

        def own(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
            return np.asarray(shard_of(ids, ref.count) == ref.index)

        store = DatasetStore(ref.root)
        for chunk in store.iter_transitions(ref.dataset, unit=ref.unit, keep=own):
            yield Steps(chunk), chunk.unit_ids


@dataclass(frozen=True, kw_only=True)
class StoredSteps:
    """The steps of a shard of a stored dataset's trajectories, with what came before each.

    Args:
        ref: which shard.
        max_trajectories_per_unit: public cap; a unit's further trajectories are left out.
    """

    ref: ShardRef
    max_trajectories_per_unit: int

    def __call__(self) -> StepChunks:
        """Read them; a trajectory's last step terminates or is cut."""
        trajectories = load_trajectories(
            self.ref, max_trajectories_per_unit=self.max_trajectories_per_unit
        )
        rows = trajectories.transitions(self.ref.unit)
        if not len(rows):
            return
        lengths = trajectories.lengths
        starts = np.repeat(trajectories.offsets[:-1], lengths)
        times = np.arange(len(rows)) - starts
        last = times == np.repeat(lengths, lengths) - 1
        rows = replace(rows, truncated=last & ~rows.terminated)
        yield steps_in_time(rows, times), np.repeat(trajectories.unit_ids, lengths)


@dataclass(frozen=True, kw_only=True)
class FollowedSteps:
    """The steps of a source that do not terminate.

    Args:
        source: of rows.
    """

    source: StepSource

    def __call__(self) -> StepChunks:
        """Read them."""
        for steps, ids in self.source():
            yield steps.followed(), ids[~steps.transitions.terminated]


@dataclass(frozen=True, kw_only=True)
class CountSpec:
    """What a worker is built from: references and public facts.

    Args:
        source: where its rows come from.
        columns: of the table.
        rows_per_unit: public cap c: each of a unit's n rows weighs 1 / max(n, c).
        max_rows_per_unit: public cap on the rows of a unit that count; None: all do.
        trajectories_per_unit: public cap c: each of a unit's m trajectories weighs 1 / max(m, c).

    Raises:
        ConfigError: a cap is not 1 to `UNIT_WEIGHT`.
    """

    source: StepSource
    columns: TableColumns
    rows_per_unit: int
    max_rows_per_unit: int | None = None
    trajectories_per_unit: int = 1

    def __post_init__(self) -> None:
        for name in ("rows_per_unit", "trajectories_per_unit"):
            if not 1 <= getattr(self, name) <= UNIT_WEIGHT:
                raise ConfigError(
                    f"{name} must lie in 1 .. {UNIT_WEIGHT}, got {getattr(self, name)}"
                )


class CountWorker:
    """Counts the rows of a shard in cells, each row with its unit's weight.

    Privacy: a row of a unit with n rows weighs ``UNIT_WEIGHT // max(n, rows_per_unit)``, so that a
    unit's rows weigh `UNIT_WEIGHT` together at most and each of its rows is in one cell of a count:
    a unit moves a count by at most `UNIT_WEIGHT` in L1, and so in L2. The class of n, which all of
    its rows have, is one more column. Rows that count in next observations are all, or those that
    something follows: no more than all. Its m trajectories, which weigh ``UNIT_WEIGHT // max(m,
    trajectories_per_unit)`` each, move the count of lengths as much. Which rows it has is decided
    by its own rows alone. A row with a number that is not finite or a category outside its space
    weighs nothing and leaves no trace. Sums are integers: exact, in any order. What is returned is
    raw: it goes to the server, which draws choices and adds noise. Events: ``bounded_range`` and
    ``discrete_gaussian``.
    """

    def __init__(self, spec: CountSpec) -> None:
        self._columns = spec.columns
        self._rows, self._weights, self._once, times = _weighted_rows(spec)
        self._followed = np.where(spec.columns.followed(self._rows.cells), self._weights, 0.0)
        starts = length_starts(max(spec.columns.longest, 1))
        self._length_groups = np.maximum(np.searchsorted(starts, times + 1, side="right") - 1, 0)
        self._known: tuple[NDArray[np.int64], ...] = ()
        self._bins = np.empty((0, 0), np.int32)
        self._counted: dict[Clique, NDArray[np.int64]] = {}

    def columns(self) -> NDArray[np.int64]:
        """Return the counts of all columns that have counts of their own, one after the other.

        ``(sum of TableColumns.counted,)`` int64: of each column its cells, then its values; at last
        the lengths of trajectories, in groups.
        """
        parts = []
        for place, column in enumerate(self._columns.columns):
            if not column.counted:
                continue
            weights = self._weights_of([place])
            parts.append(_histogram(self._rows.cells[:, place], weights, column.size))
            if place in self._columns.valued:
                values = self._rows.values[:, self._columns.valued.index(place)]
                parts.append(_histogram(values, weights, column.counted - column.size))
        if self._columns.lengths:
            lengths = np.bincount(
                self._length_groups, weights=self._once, minlength=self._columns.lengths
            )
            parts.append(lengths.astype(np.int64))
        return np.concatenate(parts)

    def tables(
        self, bins: Sequence[NDArray[np.int64]], cliques: Sequence[Clique]
    ) -> list[NDArray[np.int64]]:
        """Return the joint counts of cliques over bins, each of the shape of its sizes.

        Args:
            bins: of each column, the bin of each cell; public.
            cliques: places of columns.
        """
        self._set_bins(bins)
        sizes = [int(one.max()) + 1 for one in bins]
        for clique in cliques:
            if clique not in self._counted:
                weights = self._weights_of(clique)
                counted = counts_of(self._bins, clique, sizes, weights).astype(np.int64)
                counted.flags.writeable = False  # further steps are told the same
                self._counted[clique] = counted
        return [self._counted[clique] for clique in cliques]

    def correlations(
        self, bins: Sequence[NDArray[np.int64]], questions: Sequence[Question]
    ) -> NDArray[np.int64]:
        """Return the sums of products of answers to two questions, and of answers, ``(H + M,)``.

        Args:
            bins: of each column, the bin of each cell; public.
            questions: to columns; public.

        Privacy: a unit moves each sum by `UNIT_WEIGHT` at most, up or down; see
        `correlations.correlation_sensitivity`. Event: ``discrete_gaussian``.
        """
        self._set_bins(bins)
        return summed_answers(self._bins, self._weights, questions, self._columns)

    def _weights_of(self, clique: Sequence[int]) -> NDArray[np.float64]:
        """Return what each row weighs in a count of columns, ``(N,)``."""
        return self._followed if self._columns.only_followed(clique) else self._weights

    def _set_bins(self, bins: Sequence[NDArray[np.int64]]) -> None:
        same = len(bins) == len(self._known) and all(
            np.array_equal(one, other) for one, other in zip(bins, self._known, strict=True)
        )
        if same:
            return
        self._known = tuple(np.array(one) for one in bins)
        binned = [one[self._rows.cells[:, place]] for place, one in enumerate(self._known)]
        self._bins = np.stack(binned, axis=1).astype(np.int32)
        self._counted = {}


def _histogram(
    places: NDArray[np.int32], weights: NDArray[np.float64], size: int
) -> NDArray[np.int64]:
    return np.bincount(places, weights=weights, minlength=size).astype(np.int64)


def _weighted_rows(
    spec: CountSpec,
) -> tuple[CodedRows, NDArray[np.float64], NDArray[np.float64], NDArray[np.int64]]:
    """Return the rows that count, and the whole numbers that each weighs, exact as float64.

    The second number is the weight of the trajectory that ends with the row; elsewhere it is zero.
    The last is the row's place in its trajectory. Of a unit no more rows of a chunk are held than
    the cap allows: a worker that ran out of memory would tell of one person's rows.
    """
    cells = [np.empty((0, len(spec.columns)), np.int32)]
    values = [np.empty((0, len(spec.columns.valued)), np.int32)]
    valid, units = [np.empty(0, np.bool_)], [np.empty(0, np.uint64)]
    times = [np.empty(0, np.int64)]
    for steps, ids in spec.source():
        coded = spec.columns.coded(steps)
        first, _, _ = rows_by_unit(ids, spec.max_rows_per_unit)
        kept = np.sort(first)  # for all chunks together it is done below
        cells.append(coded.cells[kept])
        values.append(coded.values[kept])
        valid.append(coded.valid[kept])
        units.append(ids[kept])
        times.append(np.zeros(len(kept), np.int64) if steps.times is None else steps.times[kept])
    order, _, counts = rows_by_unit(np.concatenate(units), spec.max_rows_per_unit)
    of_unit = np.repeat(counts, counts)
    each = UNIT_WEIGHT // np.maximum(of_unit, spec.rows_per_unit)
    rows = CodedRows(
        cells=np.concatenate(cells)[order],
        values=np.concatenate(values)[order],
        valid=np.concatenate(valid)[order],
    ).of_units(spec.columns, of_unit)
    weights = np.where(rows.valid, each, 0).astype(np.float64)
    return rows, weights, _once_a_trajectory(spec, rows, counts), np.concatenate(times)[order]


def _once_a_trajectory(
    spec: CountSpec, rows: CodedRows, counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weight of the trajectory that ends with each row, ``(N,)``; elsewhere zero."""
    ends = spec.columns.of("end")
    if not spec.columns.lengths or not ends:
        return np.zeros(len(rows.valid))
    last = (rows.cells[:, ends[0]] > 0) & rows.valid
    unit = np.repeat(np.arange(len(counts)), counts)
    trajectories = np.bincount(unit[last], minlength=len(counts))[unit]
    each = UNIT_WEIGHT // np.maximum(trajectories, spec.trajectories_per_unit)
    return np.where(last, each, 0).astype(np.float64)
