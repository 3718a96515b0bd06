"""The weight of each cell of a number, as far as noisy counts show it.

Weights are those of pieces: runs of cells that are divided only where the noise lets a difference
be seen. Where the outermost pieces do not stand out, a tail falls off exponentially, so that ranges
far wider than the numbers in them do not fill up with noise, and extremes are neither cut off nor
made up. All of it is post-processing of one noisy release.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.cells import NumberCells

SURE = 3.0
"""Deviations of its noise from which a weight is taken as it was released."""
_BODY = 4.0
"""Deviations that the outermost pieces of a column's body weigh; further out lie its tails."""
_PIECE = 2.0
"""What a further piece costs: squared errors, in logarithms of the number of cells."""
_RATES, _STEEPEST = 100, 10.0
"""Rates of a tail that are tried: from one over its width to so many over its first cell's."""
_UNSURE = 0.7
"""Deviation of the logarithm of a tail's rate from that of the body's fall beside it."""


def number_masses(
    cells: NumberCells, noisy: NDArray[np.float64], deviation: float
) -> NDArray[np.float64]:
    """Return the estimated weight of each cell ``(C,)``, at least zero.

    Args:
        cells: of the column.
        noisy: ``(C,)``, released weights.
        deviation: of their noise.
    """
    masses = np.zeros(len(noisy))
    lone = np.flatnonzero(cells.atoms & (noisy > SURE * deviation))
    masses[lone] = noisy[lone]
    others = np.setdiff1d(np.arange(len(noisy)), lone)
    pieces = [
        _Piece(cells, inside, float(noisy[inside].sum()), deviation * len(inside) ** 0.5)
        for inside in _pieces(cells, others, noisy, deviation)
    ]
    body = [i for i, piece in enumerate(pieces) if piece.mass >= _BODY * piece.deviation]
    if not body:
        body = list(range(len(pieces)))
    first, last = (body[0], body[-1]) if pieces else (0, -1)
    for piece in pieces[first : last + 1]:
        masses[piece.inside] = piece.spread(_shrunk(piece.mass, piece.deviation))
    for outside, beside in (
        (pieces[:first], pieces[first : last + 1]),
        (pieces[last + 1 :], pieces[first : last + 1][::-1]),
    ):
        if outside:
            tail = _Piece.joined(outside)
            masses[tail.inside] = _tail(tail, beside, noisy[tail.inside], deviation)
    if not masses.any():  # noise hides all of the column
        return _Piece(cells, np.arange(len(noisy)), 0.0, deviation).spread(deviation)
    return masses


@dataclass(frozen=True, eq=False)
class _Piece:
    """A run of cells that are about evenly dense.

    Args:
        cells: of the column.
        inside: ``(n,)`` places of the run's cells, rising.
        mass: released weight.
        deviation: of its noise.
    """

    cells: NumberCells
    inside: NDArray[np.int64]
    mass: float
    deviation: float

    @classmethod
    def joined(cls, pieces: Sequence["_Piece"]) -> "_Piece":
        """Return neighbouring pieces as one."""
        return cls(
            pieces[0].cells,
            np.concatenate([one.inside for one in pieces]),
            sum(one.mass for one in pieces),
            math.hypot(*(one.deviation for one in pieces)),
        )

    @property
    def low(self) -> NDArray[np.float64]:
        """Where each cell begins."""
        return self.cells.edges[0][self.inside]

    @property
    def high(self) -> NDArray[np.float64]:
        """Where each cell ends: a step beyond its last value."""
        return self.cells.edges[1][self.inside] + self.cells.step

    @property
    def width(self) -> float:
        """From the first cell's begin to the last one's end."""
        return float(self.high[-1] - self.low[0])

    @property
    def middle(self) -> float:
        """Half-way between both."""
        return float(self.high[-1] + self.low[0]) / 2

    @property
    def density(self) -> float:
        """Weight over width."""
        return max(self.mass, 0.0) / max(self.width, 1e-300)

    def spread(self, mass: float) -> NDArray[np.float64]:
        """Return a weight spread evenly, ``(n,)``."""
        widths = np.maximum(self.cells.widths[self.inside], 0.0)
        total = widths.sum()
        shares = widths / total if total > 0 else np.full(len(widths), 1 / len(widths))
        return np.asarray(mass * shares, np.float64)


def _shrunk(mass: float, deviation: float) -> float:
    """Return a piece's weight, the less of it the more of it may be noise.

    Empty tails of many cells would fill up with what their noise adds up to.
    """
    if mass >= SURE * deviation:
        return mass
    return max(mass, 0.0) ** 3 / (mass**2 + deviation**2)


def _pieces(
    cells: NumberCells, inside: NDArray[np.int64], noisy: NDArray[np.float64], deviation: float
) -> list[NDArray[np.int64]]:
    """Return runs of cells, each about evenly dense: as many as stand out from the noise.

    The division with the least squared error over the noise's variance and a cost a piece, found
    by dynamic programming (optimal partitioning).

    Reference: Jackson et al. 2005.
    """
    if not len(inside):
        return []
    counts, widths = noisy[inside] / deviation, cells.widths[inside]
    widths = np.maximum(widths / max(widths.mean(), 1e-300), 1e-3)  # an atom has none
    sums = [np.append(0.0, np.cumsum(one)) for one in (counts**2, counts * widths, widths**2)]
    count = len(inside)
    cost, before = np.zeros(count + 1), np.zeros(count + 1, np.int64)
    each = _PIECE * math.log(max(count, 2))
    for stop in range(1, count + 1):
        squares, products, norms = (one[stop] - one[:stop] for one in sums)
        errors = cost[:stop] + squares - products**2 / norms + each
        before[stop] = int(np.argmin(errors))
        cost[stop] = errors[before[stop]]
    pieces, stop = [], count
    while stop > 0:
        pieces.append(inside[before[stop] : stop])
        stop = int(before[stop])
    return pieces[::-1]


def _tail(
    tail: "_Piece", beside: Sequence["_Piece"], noisy: NDArray[np.float64], deviation: float
) -> NDArray[np.float64]:
    """Return the weight of each cell of an end whose pieces do not stand out from their noise.

    Density falls off exponentially from where the body ends, so that the weight is density over
    rate. The rate is the likeliest one, given the tail's noisy cells and, as a prior, how density
    falls between the two nearest pieces of the body.

    Args:
        tail: all cells outside the body, joined.
        beside: pieces of the body, the nearest first.
        noisy: ``(n,)``, released weights of the tail's cells.
        deviation: of the noise of a cell.
    """
    near, inner = beside[0], beside[min(1, len(beside) - 1)]
    if not (tail.width > 0 and near.width > 0):  # an atom alone has no density
        return tail.spread(_shrunk(tail.mass, tail.deviation))
    away = abs(near.middle - inner.middle) if inner.width > 0 else 0.0
    fall = math.log(inner.density / near.density) if near.density > 0 and inner.density > 0 else 0.0
    prior = max(fall, 0.0) / away if away > 0 else 0.0
    edge = near.density * math.exp(-prior * near.width / 2)
    rising = tail.middle < near.middle
    low, high = (
        (tail.high[-1] - tail.high, tail.high[-1] - tail.low)
        if rising
        else (tail.low - tail.low[0], tail.high - tail.low[0])
    )
    rates = np.geomspace(1 / tail.width, _STEEPEST / max(float(high.min()), 1e-300), _RATES)
    expected = np.exp(-np.outer(rates, low)) - np.exp(-np.outer(rates, high))
    expected *= (edge / rates)[:, None]
    misfit = ((noisy - expected) ** 2).sum(axis=1) / (2 * deviation**2)
    if prior > 0:
        misfit += np.log(rates / prior) ** 2 / (2 * _UNSURE**2)
    return np.asarray(expected[int(np.argmin(misfit))], np.float64)
