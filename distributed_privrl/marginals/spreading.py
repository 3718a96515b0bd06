"""Cells of bins from counts of wider parts, smoothly.

A count of halves says nothing of how two numbers go together within each half. As steps, it would
make the relation weaker than it is: a correlation of .4 would come back as .16. So what the count
says of each part holds at the part's middle. Between middles and beyond the outermost ones the
logarithm of the cells' ratio to what was expected goes on in straight lines. All of it is
post-processing of released counts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from distributed_privrl.marginals.tables import Maps, blocks

_ROUNDS, _CLOSE = 60, 1e-3
_BEYOND = 1.0
"""Normal scores beyond the outermost middles up to which lines go on."""
_STEEPEST = 12.0
"""The largest logarithm of a ratio."""
_FLOOR = 1e-12
_LOST = 0.3
"""The part of all weight that may lie in other bins of a column than it was expected to."""


def spread(
    expected: NDArray[np.float64],
    counts: NDArray[np.float64],
    maps: Maps,
    ordered: Sequence[bool],
    atoms: Sequence[NDArray[np.bool_]],
) -> NDArray[np.float64]:
    """Return cells of bins whose sums over parts are counts, near to what was expected.

    Within a part, a column's bins keep the shares that they were expected to have. Where two
    numbers nearly decide each other, no straight lines allow that, and the cells of a part all get
    the same ratio.

    Args:
        expected: of cells of bins, above zero.
        counts: of parts, at least zero.
        maps: the part of each bin of each column.
        ordered: of each column, whether neighbouring bins belong together.
        atoms: of each column, bins that no line leads to.
    """
    total = counts.sum()
    least = _FLOOR * total
    wanted = np.log(counts + least)
    sums = [_sums(expected, axis) for axis in range(expected.ndim)]
    lines = [
        lines_of(own, parts, alone) if one else np.eye(len(own))
        for own, parts, one, alone in zip(sums, maps, ordered, atoms, strict=True)
    ]
    held = [
        own / np.maximum(np.bincount(parts, own), least)[parts] * _sums(counts, axis)[parts]
        for axis, (own, parts) in enumerate(zip(sums, maps, strict=True))
    ]
    heights = np.zeros(counts.shape)
    cells = expected
    for _ in range(_ROUNDS):
        apart = wanted - np.log(blocks(cells, maps) + least)
        if np.abs(np.expm1(np.clip(apart, -1, 1)) * counts).max() < _CLOSE * total / counts.size:
            break
        heights = np.clip(heights + apart, -_STEEPEST, _STEEPEST)
        ratio = heights
        for axis, line in enumerate(lines):
            ratio = np.moveaxis(np.tensordot(line, ratio, axes=(1, axis)), 0, axis)
        cells = expected * np.exp(np.clip(ratio, -_STEEPEST, _STEEPEST))
        for axis, own in enumerate(held):
            lacking = own / np.maximum(_sums(cells, axis), _FLOOR * least)
            cells = cells * lacking.reshape([-1 if i == axis else 1 for i in range(cells.ndim)])
    cells = _stepped(cells, counts, maps)
    lost = max(np.abs(_sums(cells, axis) - own).sum() for axis, own in enumerate(held))
    return _stepped(expected, counts, maps) if lost > _LOST * total else cells


def _stepped(
    cells: NDArray[np.float64], counts: NDArray[np.float64], maps: Maps
) -> NDArray[np.float64]:
    """Return cells times the same ratio in each part, so that its sum is its count."""
    ratio = counts / np.maximum(blocks(cells, maps), 1e-300)
    return np.asarray(cells * ratio[np.ix_(*maps)])


def _sums(table: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Return a table's sums along one axis."""
    return np.asarray(table.sum(axis=tuple(i for i in range(table.ndim) if i != axis)))


def lines_of(
    masses: NDArray[np.float64], parts: NDArray[np.int64], atoms: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """Return how much each part's height counts at each bin, ``(K, P)``; each row adds up to 1.

    Args:
        masses: of a number's bins, ``(K,)``.
        parts: the part of each bin, ``(K,)``.
        atoms: ``(K,)``, bins that are parts of their own, of which others have no share; None:
            there are none.
    """
    found = np.eye(int(parts.max()) + 1)[parts]
    others = np.flatnonzero(np.ones(len(parts), np.bool_) if atoms is None else ~atoms)
    named, own = np.unique(parts[others], return_inverse=True)
    if len(named) < 2 or masses[others].sum() <= 0:
        return found
    shares = masses[others] / masses[others].sum()
    scores = ndtri(np.clip(np.cumsum(shares) - shares / 2, 1e-4, 1 - 1e-4))
    weights = np.bincount(own, shares)
    middles = np.bincount(own, shares * scores) / np.maximum(weights, _FLOOR)
    at = np.clip(scores, middles[0] - _BEYOND, middles[-1] + _BEYOND)
    left = np.clip(np.searchsorted(middles, at) - 1, 0, len(middles) - 2)
    gap = np.maximum(middles[left + 1] - middles[left], _FLOOR)
    right_share = (at - middles[left]) / gap
    found[others] = 0.0
    found[others, named[left]] = 1 - right_share
    found[others, named[left + 1]] = right_share
    return found
