"""What noisy counts of single columns say: masses of cells, bins for joint counts, shapes inside.

All of it is post-processing of one noisy release.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.divisions import SURE
from distributed_privrl.marginals.pieces import number_masses
from distributed_privrl.marginals.tails import Weight

_BIN = 3.0
"""Deviations of a cell's noise that a bin of a number holds at least."""
_VALUE = 3.5
"""Deviations from which a single value counts by itself."""
ATOM, PEAK = 0.05, 2.0
"""Part of all weight that an atom has at least, and how much more than the bins beside it."""
_NEAR = 0.4
"""Bins end at the roundest number within this part of a bin of where they should."""


@dataclass(frozen=True, eq=False)
class ColumnShape:
    """A column as the noisy counts have it.

    Args:
        masses: ``(C,)``, estimated weight of each cell, at least zero.
        bins: ``(C,)``, the bin of each cell, from 0; categories are bins.
        noisy: ``(C,)``, the released counts.
        deviation: of their noise.
        value_masses: ``(W,)`` of single values; empty where they are not counted.
    """

    masses: NDArray[np.float64]
    bins: NDArray[np.int64]
    noisy: NDArray[np.float64]
    deviation: float
    value_masses: NDArray[np.float64]

    @cached_property
    def size(self) -> int:
        """The number K of bins."""
        return int(self.bins.max()) + 1

    @cached_property
    def bin_masses(self) -> NDArray[np.float64]:
        """Estimated weight of each bin, ``(K,)``."""
        return _sums(self.bins, self.masses, self.size)

    @cached_property
    def bin_counts(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The released weight of each bin, ``(K,)``, and of how many cells it is the sum."""
        cells = np.bincount(self.bins, minlength=self.size)
        return _sums(self.bins, self.noisy, self.size), np.asarray(cells, np.int64)

    def atoms(self, cells: NumberCells) -> NDArray[np.bool_]:
        """Say which bins of a number are single values that stand for themselves, ``(K,)``.

        Nothing, the least and the most are such values where they are frequent at all, and any
        other one that is far more frequent than what lies beside it; gaps are in any case.

        Args:
            cells: of the column.
        """
        masses, (_, joined) = self.bin_masses.copy(), self.bin_counts
        single = (joined == 1) & (_sums(self.bins, cells.atoms, self.size) > 0)
        marked = _sums(self.bins, cells.marked, self.size) > 0
        frequent = masses > ATOM * masses.sum()
        masses[len(masses) - cells.gaps :] = 0.0  # they lie beside no number
        found = single & frequent & (marked | (masses > PEAK * _beside(masses)))
        found[len(found) - cells.gaps :] = True
        return np.asarray(found)


def falling(shape: ColumnShape, cells: NumberCells) -> NDArray[np.bool_]:
    """Say from which bin of a number to which bin it falls, whatever it is in them, ``(K, K)``.

    Args:
        shape: of the number, before and after a step.
        cells: of the number.
    """
    (low, high), last = cells.edges, len(shape.bins) - 1
    lowest = low[np.unique(shape.bins, return_index=True)[1]]
    highest = high[last - np.unique(shape.bins[::-1], return_index=True)[1]]
    return np.asarray(highest[None, :] < lowest[:, None])


def _sums(labels: NDArray[np.int64], weights: NDArray[Any], size: int) -> NDArray[np.float64]:
    return np.asarray(np.bincount(labels, weights=weights, minlength=size), np.float64)


def _beside(masses: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the larger of the weights beside each."""
    around = np.pad(masses, 1)
    return np.maximum(around[:-2], around[2:])


def column_shape(
    column: Column,
    noisy: NDArray[np.float64],
    *,
    deviation: float,
    most_bins: int,
    told: NDArray[np.float64] | None = None,
    total: Weight | None = None,
) -> ColumnShape:
    """Return what noisy counts say of a column.

    Args:
        column: of the table; has counts of its own.
        noisy: ``(C + W,)`` released weights of cells, and of single values where they are counted.
        deviation: of their noise.
        most_bins: of a number; a bin has no less than a few deviations.
        told: ``(C,)`` weights of categories by other counts, where these show nothing.
        total: weight of all rows, by all columns; None: nobody knows.
    """
    counts, values = noisy[: column.size], noisy[column.size :]
    cells = column.cells
    if cells is None:
        masses = _category_masses(counts, deviation, told, total)
        return ColumnShape(masses, np.arange(column.size), counts, deviation, values)
    if cells.gaps:
        gaps = float(counts[-1]) if counts[-1] > SURE * deviation else 0.0
        own = column_shape(
            replace(column, cells=cells.numbers),
            np.concatenate([counts[:-1], values[:-1]]),
            deviation=deviation,
            most_bins=most_bins,
            total=None if total is None else _left(total, gaps, deviation),
        )
        return ColumnShape(
            np.append(own.masses, gaps),
            np.append(own.bins, own.size),
            counts,
            deviation,
            own.value_masses,
        )
    masses = number_masses(cells, counts, deviation, total=total)
    if column.size <= most_bins:
        return ColumnShape(masses, np.arange(column.size), counts, deviation, values)
    bins = _bins(cells, masses, most_bins, least=_BIN * deviation)
    return ColumnShape(masses, bins, counts, deviation, values)


def _left(total: Weight, gaps: float, deviation: float) -> Weight:
    """Return what rows with a number weigh, where those without one stand out or do not."""
    noise = math.hypot(total.deviation, deviation if gaps else 0.0)
    return Weight(value=max(total.value - gaps, deviation), deviation=noise)


def _category_masses(
    noisy: NDArray[np.float64],
    deviation: float,
    told: NDArray[np.float64] | None,
    total: Weight | None,
) -> NDArray[np.float64]:
    """Return the weight of each category ``(C,)``: none of one that noise alone may have made.

    A noisy count decides: so nobody dies in synthetic rows where nobody did. Categories that do not
    stand out one by one may stand out together, and are then kept. Their sum says how much they
    weigh, or what the others leave of all rows, whichever has less noise. What other counts tell
    stands in for what does not stand out.
    """
    seen = noisy > SURE * deviation
    if told is not None:
        return np.where(seen, noisy, told)
    rest, noise = float(noisy[~seen].sum()), deviation * float(np.sqrt((~seen).sum()))
    if total is not None:
        left = math.hypot(deviation * float(np.sqrt(seen.sum())), total.deviation)
        if left < noise:
            rest, noise = total.value - float(noisy[seen].sum()), left
    masses = np.where(seen, noisy, 0.0)
    if rest > SURE * noise and not seen.all():
        kept = np.where(seen, 0.0, np.maximum(noisy, 0.0))
        kept = kept if kept.any() else (~seen).astype(np.float64)
        masses += kept * (rest / kept.sum())
    return masses if masses.any() else np.full(len(noisy), deviation)


def drawn_numbers(
    column: Column,
    shape: ColumnShape,
    bins: NDArray[np.integer],
    ranks: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return numbers of a column that lie in ``bins``.

    Args:
        column: of the table.
        shape: its own, or that of the column whose shape it shares.
        bins: ``(N,)``.
        ranks: ``(N,)`` in [0, 1), where among the numbers of its bin each one lies.

    Returns:
        ``(N,)``; categories are counted from 0, and gaps are nan.
    """
    if column.cells is None:
        return bins.astype(np.float64)
    cells = column.cells
    low, high = cells.edges
    numbers = np.empty(len(bins))
    for chosen, rows in _groups(bins, shape.size):
        inside = np.flatnonzero(shape.bins == chosen)
        places, rest = _quantiles(ranks[rows], shape.masses[inside])
        within = inside[places]
        numbers[rows] = low[within] + rest * (high[within] - low[within])
        if cells.step:
            numbers[rows] = _whole(cells, shape, within, rest)
    return numbers


def _whole(
    cells: NumberCells, shape: ColumnShape, within: NDArray[np.int64], rest: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return values of cells ``(N,)``: where single values were counted, the heavy ones more."""
    low, high = cells.edges
    numbers = np.empty(len(within))
    for cell, rows in _groups(within, cells.size):
        if cells.gaps and cell == cells.size - 1:
            numbers[rows] = np.nan
            continue
        count = round((high[cell] - low[cell]) / cells.step) + 1
        likely = np.ones(count)
        if len(shape.value_masses) and count > 1:
            first = cells.first_value(cell)
            likely = _value_masses(
                shape.value_masses[first : first + count], shape.masses[cell], shape.deviation
            )
        places, _ = _quantiles(rest[rows], likely)
        numbers[rows] = low[cell] + places * cells.step
    return numbers


def _value_masses(noisy: NDArray[np.float64], mass: float, deviation: float) -> NDArray[np.float64]:
    """Return the weight of each value of a cell: those that stand out, and the rest evenly."""
    heavy = noisy > _VALUE * deviation
    masses = np.where(heavy, noisy, 0.0)
    left = max(mass - masses.sum(), 0.0)
    others = len(noisy) - int(heavy.sum())
    if others:
        masses = np.where(heavy, masses, left / others)
    return masses


def _groups(labels: NDArray[np.integer], count: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each label that occurs, and where it does."""
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(count + 1))
    for label in range(count):
        if ends[label + 1] > ends[label]:
            yield label, order[ends[label] : ends[label + 1]]


def _quantiles(
    ranks: NDArray[np.float64], masses: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return in which of some masses each rank lies, and its rank there; none: they are equal."""
    total = masses.sum()
    shares = masses / total if total > 0 else np.full(len(masses), 1 / len(masses))
    ends = np.cumsum(shares)
    places = np.minimum(np.searchsorted(ends, ranks, side="right"), len(masses) - 1)
    places = np.where(shares[places] > 0, places, int(np.flatnonzero(shares)[-1]))
    rest = (ranks - (ends - shares)[places]) / shares[places]
    return places, np.clip(rest, 0.0, 1.0 - 1e-12)


def _bins(
    cells: NumberCells, masses: NDArray[np.float64], most: int, *, least: float
) -> NDArray[np.int64]:
    """Return the bin of each cell ``(C,)``.

    Bins are runs of cells between round numbers, each with about the same part of what a bin costs:
    half its weight, half the cube root of its density times its width, which is where a number is
    best told by few bins. An atom that weighs enough is a bin. Where there are more of them than
    ``most``, it must weigh more than its part of ``most`` bins, or far more than what lies beside.
    """
    alone = cells.atoms & (masses >= least)
    if alone.sum() > most:
        alone &= cells.marked | (masses * most > masses.sum()) | (masses > PEAK * _beside(masses))
    others = np.flatnonzero(~alone)
    labels = np.zeros(len(masses), np.int64)
    if len(others):
        groups = _runs(cells, masses, others, most)
        groups = _merged(groups, masses, least)
        for label, group in enumerate(groups):
            labels[group] = label
    labels[alone] = len(masses) + np.arange(int(alone.sum()))
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    ranks = np.empty(len(first), np.int64)
    ranks[np.argsort(first)] = np.arange(len(first))
    return np.asarray(ranks[inverse], np.int64)


def _runs(
    cells: NumberCells, masses: NDArray[np.float64], others: NDArray[np.int64], most: int
) -> list[NDArray[np.int64]]:
    weights = masses[others]
    resolved = np.cbrt(weights) * cells.widths[others] ** (2 / 3)
    shares = [part / part.sum() if part.sum() > 0 else part for part in (weights, resolved)]
    cost = (shares[0] + shares[1]) / 2
    if cost.sum() <= 0:
        return [others]
    before = np.concatenate([[0.0], np.cumsum(cost)[:-1]]) / cost.sum()
    roundness = cells.roundness[others]
    cuts = {0, len(others)}
    for place in range(1, most):
        aim = place / most
        distance = np.abs(before - aim)
        near = np.flatnonzero(distance <= max(_NEAR / most, distance.min()))
        cuts.add(int(near[np.lexsort((distance[near], -roundness[near]))[0]]))
    ends = sorted(cuts)
    return [others[a:b] for a, b in pairwise(ends)]


def _merged(
    groups: list[NDArray[np.int64]], masses: NDArray[np.float64], least: float
) -> list[NDArray[np.int64]]:
    """Join the lightest run with its lighter neighbour until all weigh ``least``."""
    groups = list(groups)
    weights = [float(masses[group].sum()) for group in groups]
    while len(groups) > 1 and min(weights) < least:
        light = int(np.argmin(weights))
        sides = [side for side in (light - 1, light + 1) if 0 <= side < len(groups)]
        first, second = sorted((light, min(sides, key=weights.__getitem__)))
        groups[first : second + 1] = [np.concatenate([groups[first], groups[second]])]
        weights[first : second + 1] = [weights[first] + weights[second]]
    return groups
