"""Joint counts of a few columns: cleaned of noise, and drawn rows weighted until they agree.

All of it is post-processing of released counts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Clique = tuple[int, ...]
"""Places of columns, rising."""

Number = TypeVar("Number", np.int64, np.float64)

_HEAVY = 3.0
"""Deviations of its noise from which a cell counts as it was released."""
_BLOCKS = 4
"""Blocks along a column at the coarsest."""
_SWEEPS = 3
_LARGEST_WEIGHT = 1e3
_PLACED = 0.74
_MOST = 0.97


@dataclass(frozen=True, eq=False)
class Margin:
    """What is known of one column's bins beside a joint count.

    Args:
        masses: ``(K,)``.
        deviations: ``(K,)`` of their noise.
    """

    masses: NDArray[np.float64]
    deviations: NDArray[np.float64]


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


def cleaned(
    noisy: NDArray[np.float64],
    deviation: float,
    *,
    total: float,
    expected: NDArray[np.float64],
    margins: Sequence[Margin],
    ordered: Sequence[bool],
) -> NDArray[np.float64]:
    """Return a released joint count without most of its noise.

    From coarse blocks of neighbouring bins to single cells: what stands out from its noise is kept,
    and the rest of the weight goes to the other cells as the coarser blocks have it, raked to what
    each column's margin still lacks. So the noise of many empty cells does not become rows, and a
    relation that no single cell shows is seen in blocks.

    Args:
        noisy: released counts, of any shape.
        deviation: of the noise of a cell.
        total: weight of all rows.
        expected: what is expected of the cells without this count, of the same shape.
        margins: of each column.
        ordered: of each column, whether neighbouring bins belong together.

    Returns:
        counts of at least zero that add up to ``total``.
    """
    least = 1e-9 * total / noisy.size  # a block without weight could not take any up later
    result = np.maximum(expected, least)
    for maps in reversed(block_maps(noisy.shape, ordered)):
        known = [
            Margin(
                np.asarray(np.bincount(one, weights=margin.masses), np.float64),
                np.sqrt(np.bincount(one, weights=margin.deviations**2)),
            )
            for one, margin in zip(maps, margins, strict=True)
        ]
        before = blocks(result, maps)
        deviations = deviation * np.sqrt(blocks(np.ones(noisy.shape), maps))
        after = _kept_and_raked(blocks(noisy, maps), deviations, total, before, known)
        result = np.maximum(result * (after / before)[np.ix_(*maps)], least)
    return np.asarray(result * (total / result.sum()))


def block_maps(
    shape: Sequence[int], ordered: Sequence[bool]
) -> list[tuple[NDArray[np.int64], ...]]:
    """Return the block of each bin of each axis, for ever wider blocks; at first bins alone.

    Args:
        shape: of a joint count.
        ordered: of each axis, whether neighbouring bins belong together; others stay apart.
    """
    widest = max((n for n, one in zip(shape, ordered, strict=True) if one), default=1)
    levels = 1 + math.ceil(math.log2(max(widest / _BLOCKS, 1)))
    return [
        tuple(
            np.arange(size) >> level if one else np.arange(size)
            for size, one in zip(shape, ordered, strict=True)
        )
        for level in range(levels)
    ]


def blocks(table: NDArray[Number], maps: Sequence[NDArray[np.int64]]) -> NDArray[Number]:
    """Return the sums of a table over blocks of bins, along each axis."""
    for axis, one in enumerate(maps):
        starts = np.flatnonzero(np.diff(one, prepend=-1))
        table = np.add.reduceat(table, starts, axis=axis)
    return table


def _kept_and_raked(
    noisy: NDArray[np.float64],
    deviations: NDArray[np.float64],
    total: float,
    expected: NDArray[np.float64],
    margins: Sequence[Margin],
) -> NDArray[np.float64]:
    """Return cells that stand out as they are, the others as expected and as margins lack."""
    kept: NDArray[np.float64] = np.where(noisy > _HEAVY * deviations, noisy, 0.0)
    if kept.sum() >= total:
        return np.asarray(kept * (total / kept.sum()))
    rest: NDArray[np.float64] = np.where(kept > 0, 0.0, expected)
    axes = range(noisy.ndim)
    for axis, margin in enumerate(margins):
        others = tuple(i for i in axes if i != axis)
        variances = (deviations**2).sum(axis=others)
        precision = 1 / variances + 1 / margin.deviations**2
        best = noisy.sum(axis=others) / variances + margin.masses / margin.deviations**2
        lacking = np.maximum(best / precision - kept.sum(axis=others), 0.0)
        if lacking.sum() <= 0:
            continue
        sums = rest.sum(axis=others)
        ratio = np.divide(lacking, sums, out=np.zeros_like(sums), where=sums > 0)
        rest = rest * ratio.reshape([-1 if i == axis else 1 for i in axes])
    if rest.sum() > 0:
        return np.asarray(kept + rest * ((total - kept.sum()) / rest.sum()))
    return np.asarray(kept * (total / kept.sum())) if kept.any() else expected


def raked(
    rows: NDArray[np.integer],
    weights: NDArray[np.float64],
    tables: Mapping[Clique, NDArray[np.float64]],
    sizes: Sequence[int],
) -> NDArray[np.float64]:
    """Return weights of drawn rows ``(N,)`` with which they agree with all tables, about.

    Iterative proportional fitting: the weighted rows stand for the distribution of the largest
    entropy that has these margins, as far as the rows reach.

    Args:
        rows: ``(N, V)`` bins.
        weights: to start from, ``(N,)``.
        tables: cleaned counts, the latest last.
        sizes: bins of each column.
    """
    weights, limit = weights / weights.sum(), _LARGEST_WEIGHT / len(weights)
    for _ in range(_SWEEPS):
        for clique, table in tables.items():
            now, shares = counts_of(rows, clique, sizes, weights), table / table.sum()
            ratio = np.divide(shares, now, out=np.zeros_like(now), where=now > 0)
            weights = np.minimum(weights * ratio[tuple(rows[:, i] for i in clique)], limit)
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
