"""The weight of each cell of a number, as far as noisy counts show it.

A column's body reaches as far as pieces of it stand out: runs of cells that are divided only where
the noise lets a difference be seen. Weights in it are means over all divisions (`divisions`). Where
the outermost pieces do not stand out, or a falling density is nearer to their cells
than an even one, density falls off as in `tails`, so that ranges far wider than the numbers in them
do not fill up with noise, and extremes are neither cut off nor made up. All of it is
post-processing of one noisy release.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.divisions import SURE, Divisions, cost_of_run, shrunk
from distributed_privrl.marginals.tails import Tail, Weight

_BODY = 5.0
"""Deviations that the outermost pieces of a column's body weigh; further out lie its tails."""
_OF_BODY = 0.25
"""Part of a run's cost which a piece of the body has beside a tail that takes in its cells."""
_FALSE = 0.001
"""Single values of a column that noise makes stand out, on average, where nobody has them."""


def number_masses(
    cells: NumberCells,
    noisy: NDArray[np.float64],
    deviation: float,
    *,
    total: Weight | None = None,
) -> NDArray[np.float64]:
    """Return the estimated weight of each cell ``(C,)``, at least zero.

    Args:
        cells: of the column.
        noisy: ``(C,)``, released weights.
        deviation: of their noise.
        total: weight of all rows, by all columns; None: nobody knows.
    """
    masses = np.zeros(len(noisy))
    lone = np.flatnonzero(cells.atoms & (noisy > _stands_out(cells) * deviation))
    masses[lone] = noisy[lone]
    others = np.setdiff1d(np.arange(len(noisy)), lone)
    heaviest = int(lone[np.argmax(noisy[lone])]) if len(lone) else 0
    pieces = [
        _Piece(cells, inside, float(noisy[inside].sum()), deviation * len(inside) ** 0.5)
        for run in _pieces(cells, others, noisy, deviation)
        for inside in np.split(run, [np.searchsorted(run, heaviest)])  # one on each side of it
        if len(inside)
    ]
    first, last = _body(pieces, lone, noisy, deviation)
    body = pieces[first:last]
    if body:
        inside = np.concatenate([piece.inside for piece in body])
        weight = sum(float(shrunk(piece.mass, piece.deviation)) for piece in body)
        found = _divisions(cells, inside, noisy, deviation).mean()
        masses[inside] = found * (weight / max(float(found.sum()), 1e-300))
        ends = [(pieces[:first], body), (pieces[last:], body[::-1])]
    else:
        below = sum(piece.inside[-1] < heaviest for piece in pieces)
        ends = [(pieces[:below], []), (pieces[below:], [])]
    seen = len(lone) + sum(len(piece.inside) for piece in body)
    rest = None
    if total is not None:
        noise = math.hypot(deviation * seen**0.5, total.deviation)
        rest = Weight(value=total.value - float(masses.sum()), deviation=noise)
    tails = [
        _tail(outside, beside, noisy, deviation, falling=falling)
        for (outside, beside), falling in zip(ends, (False, True), strict=True)
        if outside
    ]
    _fill(masses, tails, rest)
    if not masses.any():  # noise hides all of the column
        return _Piece(cells, np.arange(len(noisy)), 0.0, deviation).spread(deviation)
    return masses


def _stands_out(cells: NumberCells) -> NDArray[np.float64]:
    """Return the deviations from which a single value counts, ``(C,)``: more where more do."""
    return np.where(cells.marked, SURE, max(SURE, float(ndtri(1 - _FALSE / cells.size))))


def _body(
    pieces: Sequence["_Piece"],
    lone: NDArray[np.int64],
    noisy: NDArray[np.float64],
    deviation: float,
) -> tuple[int, int]:
    """Return the first piece of a column's body, and that after its last one.

    Pieces between the body and the heaviest single value are no tail. Beside a single value alone,
    which noise may have made, pieces need less: else all of the column would be its tails.
    """
    found = _standing(pieces, _BODY) or (_standing(pieces, SURE) if len(lone) else [])
    if not found:
        return (0, 0) if len(lone) else (0, len(pieces))
    most = (sum(pieces[i].mass for i in found) + float(noisy[lone].sum())) / 2
    if not len(lone):
        upper = _Side(pieces[found[0] :], [i - found[0] for i in found], falling=True)
        last = found[0] + upper.body(noisy, deviation, most)
        lower = _Side(pieces[:last][::-1], [last - 1 - i for i in found[::-1] if i < last])
        return last - lower.body(noisy, deviation, most), last
    heaviest = int(lone[np.argmax(noisy[lone])])
    middle = sum(piece.inside[-1] < heaviest for piece in pieces)
    above, below = [i - middle for i in found], [middle - 1 - i for i in found[::-1]]
    upper = _Side(pieces[middle:], [i for i in above if i >= 0], falling=True, begun=True)
    lower = _Side(pieces[:middle][::-1], [i for i in below if i >= 0], begun=True)
    return (
        middle - lower.body(noisy, deviation, most),
        middle + upper.body(noisy, deviation, most),
    )


def _standing(pieces: Sequence["_Piece"], deviations: float) -> list[int]:
    """Return the places of pieces that weigh so many deviations of their noise."""
    return [i for i, piece in enumerate(pieces) if piece.mass >= deviations * piece.deviation]


@dataclass(frozen=True)
class _Side:
    """Pieces from the middle of a column to one of its ends.

    Args:
        line: from inside to outside.
        standing: places of those that stand out.
        falling: whether the end lies above the middle.
        begun: whether a single value lies at the middle, so that no piece needs to be of the body.
    """

    line: Sequence["_Piece"]
    standing: Sequence[int]
    falling: bool = False
    begun: bool = False

    def body(self, noisy: NDArray[np.float64], deviation: float, most: float) -> int:
        """Return how many pieces are of the body: all up to one that stands out.

        Those outside are a tail. It takes in pieces that stand out, each lighter than `most`, where
        its fall is nearer to their cells than even pieces are: these would reach too far. A cell
        far out in which noise alone is large would be the end of a body that is not there.

        Args:
            noisy: ``(C,)``, released weights of all cells.
            deviation: of the noise of a cell.
            most: weight of pieces that are of the body in any case.
        """
        if not self.standing:
            return len(self.line)
        errors = {}
        for stop in [i + 1 for i in self.standing[::-1]]:
            errors[stop] = self._error(stop, noisy, deviation)
            if self.line[stop - 1].mass >= most:
                break
        else:
            if self.begun:  # then no piece is needed, and its cost is saved
                errors[0] = (
                    self._error(0, noisy, deviation) - cost_of_run(len(noisy)) * deviation**2
                )
        return min(errors, key=errors.__getitem__)

    def _error(self, stop: int, noisy: NDArray[np.float64], deviation: float) -> float:
        """Return the error of all cells, and the cost of a body, if it ends before a piece."""
        inner, outer = self.line[:stop], self.line[stop:]
        found = [(one.inside, one.spread(float(shrunk(one.mass, one.deviation)))) for one in inner]
        if outer:
            inside, tail = _tail(outer, inner[::-1], noisy, deviation, falling=self.falling)
            found.append((inside, np.zeros(len(inside)) if tail is None else tail.masses(None)))
        cost = _OF_BODY * stop * cost_of_run(len(noisy)) * deviation**2
        return cost + sum(float(((noisy[inside] - one) ** 2).sum()) for inside, one in found)


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
            np.sort(np.concatenate([one.inside for one in pieces])),
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


def _pieces(
    cells: NumberCells, inside: NDArray[np.int64], noisy: NDArray[np.float64], deviation: float
) -> list[NDArray[np.int64]]:
    """Return runs of cells, each about evenly dense: as many as stand out from the noise."""
    if not len(inside):
        return []
    return [inside[run] for run in _divisions(cells, inside, noisy, deviation).best()]


def _divisions(
    cells: NumberCells, inside: NDArray[np.int64], noisy: NDArray[np.float64], deviation: float
) -> Divisions:
    return Divisions(noisy[inside], cells.widths[inside], deviation, cost_of_run(len(noisy)))


def _tail(
    outside: Sequence["_Piece"],
    beside: Sequence["_Piece"],
    noisy: NDArray[np.float64],
    deviation: float,
    *,
    falling: bool,
) -> tuple[NDArray[np.int64], Tail | None]:
    """Return the cells of an end, and what is known of them; None: they have no width.

    Density goes on from where the body ends, about as steeply as it falls between the two nearest
    pieces of the body.

    Args:
        outside: all pieces beyond the body.
        beside: pieces of the body, the nearest first; none: the end begins at a single value.
        noisy: ``(C,)``, released weights of all cells.
        deviation: of the noise of a cell.
        falling: whether the end lies above the body.
    """
    end = _Piece.joined(outside)
    if end.width <= 0:
        return end.inside, None
    low, high = (
        (end.low - end.low[0], end.high - end.low[0])
        if falling
        else (end.high[-1] - end.high, end.high[-1] - end.low)
    )
    density = rate = 0.0
    if len(beside) > 1 and min(one.mass * one.width for one in beside[:2]) > 0:
        near, inner = beside[:2]
        rate = max(math.log(inner.density / near.density), 0.0) / abs(near.middle - inner.middle)
        density = near.density * math.exp(-rate * near.width / 2)
    return end.inside, Tail(
        low=low, high=high, noisy=noisy[end.inside], deviation=deviation, density=density, rate=rate
    )


def _fill(
    masses: NDArray[np.float64],
    ends: Sequence[tuple[NDArray[np.int64], Tail | None]],
    rest: Weight | None,
) -> None:
    """Write the weights of cells at the ends; of what is left both have their part.

    Args:
        masses: ``(C,)``, changed.
        ends: places of cells, and what is known of them.
        rest: what the others leave of all weight.
    """
    tails = [(inside, tail) for inside, tail in ends if tail is not None]
    alone = [tail.masses(rest if len(tails) == 1 else None) for _, tail in tails]
    if rest is not None and len(tails) > 1:
        weights = np.array([one.sum() for one in alone])
        parts = weights / weights.sum() if weights.any() else np.full(len(tails), 1 / len(tails))
        aims = np.maximum(parts * rest.value, 0.0)
        alone = [
            tail.masses(Weight(value=float(aim), deviation=rest.deviation))
            for (_, tail), aim in zip(tails, aims, strict=True)
        ]
    for (inside, _), found in zip(tails, alone, strict=True):
        masses[inside] = found
