"""Joint counts of a few columns: blocks of them, and drawn rows weighted until they agree.

All of it is post-processing of released counts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Clique = tuple[int, ...]
"""Places of columns, rising."""

Number = TypeVar("Number", np.int64, np.float64)

Maps = tuple[NDArray[np.int64], ...]
"""The block of each bin of each axis of a table, rising."""

CUTS = {
    2: (0.5,),
    3: (0.27, 0.73),
    5: (0.07, 0.31, 0.69, 0.93),
    8: (0.02, 0.08, 0.24, 0.5, 0.76, 0.92, 0.98),
}
"""Weight below each cut of a number that is counted in parts, by how many parts there are.

About even in normal scores. Thirds are those in which a loose relation shows best; more parts also
tell tails from the rest, which decide Pearson's correlation.
"""
_BLOCKS = 4
"""Blocks along a column at the coarsest."""
_SWEEPS = 3
_LARGEST_WEIGHT = 1e3
_NOTHING = 1e-200
_PLACED = 0.74
_MOST = 0.985


@dataclass(frozen=True)
class JointCount:
    """What is counted: columns together, in how many parts.

    Two numbers that go together loosely differ between halves, each of which has as little noise as
    a bin when halves are counted.

    Args:
        clique: columns.
        parts: of each number that has more bins, one of `CUTS`; 0: bins. Categories are never
            joined.
    """

    clique: Clique
    parts: int = 0

    def tells(self, other: "JointCount") -> bool:
        """Say whether it tells all that another joint count does, and as finely."""
        finer = not self.parts or 0 < other.parts <= self.parts
        return finer and set(other.clique) <= set(self.clique)


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A joint count as it was released, and without most of its noise.

    Args:
        clique: columns.
        parts: of each number that were counted; see `JointCount`.
        noisy: integers, of the shape of what was counted.
        deviation: of the noise of each.
        cleaned: of the shape of the columns' bins.
    """

    clique: Clique
    parts: int
    noisy: NDArray[np.int64]
    deviation: float
    cleaned: NDArray[np.float64]

    @property
    def count(self) -> JointCount:
        """What was counted."""
        return JointCount(self.clique, self.parts)


@dataclass(frozen=True, eq=False)
class Margin:
    """What is known of one column's bins beside a joint count.

    Args:
        masses: ``(K,)``.
        deviations: ``(K,)`` of their noise.
        atoms: ``(K,)``, bins of single values that stand for themselves: whoever has none, or the
            most there is, need not be like those who have little less; None: there are none.
        gaps: the last bin is of rows that have no number.
    """

    masses: NDArray[np.float64]
    deviations: NDArray[np.float64]
    atoms: NDArray[np.bool_] | None = None
    gaps: bool = False

    @property
    def alone(self) -> NDArray[np.bool_]:
        """Which bins are atoms, ``(K,)``."""
        return np.zeros(len(self.masses), np.bool_) if self.atoms is None else self.atoms

    def varies(self, seen: float, *, ordered: bool) -> bool:
        """Say whether two parts of the column stand out: of a number its halves at some bin.

        Of a category, two bins, or one and all others together. Of dates that most people do not
        have one value is frequent, and the others may be too many for any to be seen by itself.

        Args:
            seen: deviations of its noise that a part must weigh.
            ordered: whether neighbouring bins belong together.
        """
        variances = self.deviations**2
        if ordered:
            below = _stand_out(self.masses.cumsum(), variances.cumsum(), seen)
            above = _stand_out(self.masses[::-1].cumsum(), variances[::-1].cumsum(), seen)[::-1]
            if (below[:-1] & above[1:]).any():
                return True
        found = _stand_out(self.masses, variances, seen)
        if found.sum() != 1:
            return bool(found.any())
        return bool(_stand_out(self.masses[~found].sum(), variances[~found].sum(), seen))


def _stand_out(masses: Any, variances: Any, seen: float) -> Any:
    """Say which masses are so many deviations of their noise."""
    return masses > seen * np.sqrt(variances)


def counts_of(
    rows: NDArray[np.integer],
    clique: Clique,
    sizes: Sequence[int],
    weights: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the summed weights of rows ``(N, V)`` in each cell of a clique, of shape its sizes."""
    shape = tuple(sizes[i] for i in clique)
    places = np.zeros(len(rows), np.int64)
    for i in clique:
        places *= sizes[i]
        places += rows[:, i]
    counts = np.bincount(places, weights=weights, minlength=int(np.prod(shape)))
    return np.asarray(counts.reshape(shape), np.float64)


def block_maps(
    shape: Sequence[int], ordered: Sequence[bool], gaps: Sequence[bool] | None = None
) -> list[Maps]:
    """Return the block of each bin of each axis, for ever wider blocks; at first bins alone.

    Args:
        shape: of a joint count.
        ordered: of each axis, whether neighbouring bins belong together; others stay apart.
        gaps: of each axis, whether the last bin stays apart even so; None: of none.
    """
    apart = [False] * len(shape) if gaps is None else gaps
    widest = max((n for n, one in zip(shape, ordered, strict=True) if one), default=1)
    levels = 1 + math.ceil(math.log2(max(widest / _BLOCKS, 1)))
    return [
        tuple(
            _joined(size, level if one else 0, last)
            for size, one, last in zip(shape, ordered, apart, strict=True)
        )
        for level in range(levels)
    ]


def _joined(size: int, level: int, last: bool) -> NDArray[np.int64]:
    """Return the block of each bin of an axis, where 2 to the level of them make a block."""
    found = np.arange(size - last) >> level
    return np.append(found, found.max(initial=-1) + 1) if last else found


def parts_of(
    weights: NDArray[np.float64], parts: int, atoms: NDArray[np.bool_] | None = None
) -> NDArray[np.int64]:
    """Return the part of each bin, by where the middle of its weight lies; no part is left out.

    Atoms are parts of their own beside these. What an atom cuts off of a part, if it is less than
    half of the smallest part, goes to the one beside it.

    Args:
        weights: of bins ``(K,)``; those below zero count as zero.
        parts: of `CUTS`, as many at most beside atoms.
        atoms: ``(K,)``, bins that are parts of their own; None: there are none.

    Example:
        >>> parts_of(np.array([1.0, 1.0, 6.0, 1.0, 1.0]), 2).tolist()
        [0, 0, 1, 1, 1]
        >>> parts_of(np.array([0.0, 9.0, 1.0]), 3).tolist()
        [0, 1, 2]
        >>> parts_of(np.array([9.0, 1.0, 1.0, 1.0, 1.0]), 2, np.arange(5) == 0).tolist()
        [0, 1, 1, 2, 2]
    """
    alone = np.zeros(len(weights), np.bool_) if atoms is None else atoms
    weights = np.where(alone, 0.0, np.maximum(weights, 0.0))
    total = weights.sum()
    if total <= 0:
        labels = np.zeros(len(weights), np.int64)
    else:
        middles = (np.cumsum(weights) - weights / 2) / total
        labels = np.searchsorted(CUTS[parts], middles, side="right")
    least = total * np.diff((0.0, *CUTS[parts], 1.0)).min() / 2
    ends = [0, *np.flatnonzero(np.diff(alone.astype(int))) + 1, len(alone)]
    found, count = np.zeros(len(weights), np.int64), 0
    for start, stop in pairwise(ends):
        own = np.arange(stop - start) if alone[start] else labels[start:stop]
        _, own = np.unique(own, return_inverse=True)
        sums = np.bincount(own, weights[start:stop])
        if alone.any() and not alone[start] and len(sums) > 1:
            low, high = sums[0] < least, sums[-1] < least
            own = np.clip(own, int(low), max(len(sums) - 1 - int(high), int(low))) - int(low)
        found[start:stop] = count + own
        count = int(found[stop - 1]) + 1
    return found


def blocks(
    table: NDArray[Number], maps: Sequence[NDArray[np.int64]], *, first: int = 0
) -> NDArray[Number]:
    """Return the sums of a table over blocks of bins, along each axis from the ``first`` one on."""
    found = table
    for axis, one in enumerate(maps, start=first):
        if one[-1] < len(one) - 1:  # else each bin is a block
            starts = np.searchsorted(one, np.arange(one[-1] + 1))
            found = np.add.reduceat(found, starts, axis=axis)
    return table.copy() if found is table else found


def raked(
    rows: NDArray[np.integer],
    weights: NDArray[np.float64],
    tables: Mapping[Clique, NDArray[np.float64]],
    sizes: Sequence[int],
    within: Mapping[Clique, NDArray[np.int64]] | None = None,
) -> NDArray[np.float64]:
    """Return weights of drawn rows ``(N,)`` with which they agree with all tables, about.

    Iterative proportional fitting: the weighted rows stand for the distribution of the largest
    entropy that has these margins, as far as the rows reach.

    Args:
        rows: ``(N, V)`` bins.
        weights: to start from, ``(N,)``.
        tables: cleaned counts, the latest last.
        sizes: bins of each column.
        within: places of the rows ``(M,)`` that a table is of; of others, it is of all. What these
            rows weigh together stays.
    """
    weights, limit = weights / weights.sum(), _LARGEST_WEIGHT / len(weights)
    parts = {
        clique: (places, rows[places]) for clique, places in (within or {}).items() if len(places)
    }
    for _ in range(_SWEEPS):
        for clique, table in tables.items():
            places, own = parts.get(clique, (slice(None), rows))
            held = weights[places]
            now, shares = counts_of(own, clique, sizes, held), table / table.sum() * held.sum()
            ratio = np.divide(shares, now, out=np.zeros_like(now), where=now > _NOTHING)
            weights[places] = np.minimum(held * ratio[tuple(own[:, i] for i in clique)], limit)
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


def local_correlation(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how two numbers go together around each cell ``(K, L)``, from -1 to 1.

    A tetrachoric correlation of the table divided into four at the cell's sides that are nearer to
    the middle: in the corner of two tails it says whether large goes with large.

    Reference: Digby 1983 (approximation by the odds ratio).
    """
    shares = table / max(float(table.sum()), 1e-300) + 1e-7
    below = np.zeros((shares.shape[0] + 1, shares.shape[1] + 1))
    below[1:, 1:] = shares.cumsum(axis=0).cumsum(axis=1)
    first, second = (_sides(shares.sum(axis=1 - axis)) for axis in (0, 1))
    both = below[np.ix_(first, second)]
    rows, columns = below[first, -1][:, None], below[-1, second][None, :]
    one, other = rows - both, columns - both
    neither = below[-1, -1] - both - one - other
    odds = ((both + 1e-4) * (neither + 1e-4)) / ((one + 1e-4) * (other + 1e-4))
    placed = np.maximum(odds, 1e-12) ** _PLACED
    return np.asarray(np.clip((placed - 1) / (placed + 1), -_MOST, _MOST))


def _sides(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each bin the edge at its side that is nearer to the middle, ``(K,)``."""
    middle = np.cumsum(shares) - shares / 2
    edges = np.arange(len(shares)) + (middle < shares.sum() / 2)
    clipped = np.clip(edges, min(1, len(shares) - 1), max(len(shares) - 1, 0))
    return np.asarray(clipped, np.int64)


def maximal(cliques: Iterable[Clique]) -> list[Clique]:
    """Return the cliques that lie in no other one, the largest first."""
    found: list[Clique] = []
    for clique in sorted(dict.fromkeys(cliques), key=len, reverse=True):
        if not any(set(clique) <= set(other) for other in found):
            found.append(clique)
    return found


def all_but(axis: int, dimensions: int) -> tuple[int, ...]:
    """Return all axes of a table but one."""
    return tuple(i for i in range(dimensions) if i != axis)
