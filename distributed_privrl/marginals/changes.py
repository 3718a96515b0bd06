"""Where a number lies in its bin after a step, given where it lay before.

A joint count of a number and what it becomes says from which bin to which it goes, and nothing of
what happens inside: of days in bins of two weeks, that the next purchase is in the same fortnight,
not that it is a day later. How far numbers move was counted by itself, and released, also where
they are drawn as they are. Both together say more: each bin is divided into parts, and the table of
all parts before and after a step is fitted to what bins have together, and to how many move how
far. All of it is post-processing of released counts.

Reference: Deming and Stephan 1940 (iterative proportional fitting).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.shapes import ColumnShape, drawn_numbers, falling

_PARTS, _FEWEST, _MOST = 480, 4, 24
"""Parts of all bins of a number, about; of one bin at least and at most."""
_FITS = 25
_EDGE = 1e-9
_NOTHING = 1e-300


@dataclass(frozen=True, eq=False)
class PartsOfSteps:
    """How rows are divided among the parts of a number's bins before and after a step.

    Args:
        moves: ``(K, P, K, P)``, bins and parts before the step, then after it.
        stays: ``(K, P)``, of those that do not move at all.
        never: ``(K, K)``, from which bins to which it never goes, as it would fall; none of a
            number that may.
    """

    moves: NDArray[np.float64]
    stays: NDArray[np.float64]
    never: NDArray[np.bool_]

    @property
    def rises(self) -> bool:
        """Whether the number never falls."""
        return bool(self.never.any())

    @cached_property
    def reached(self) -> NDArray[np.float64]:
        """What goes from each part to each bin, ``(K, P, K)``."""
        found = self.moves.sum(axis=3)
        own = np.arange(len(found))
        found[own, :, own] += self.stays
        return np.asarray(found)

    def part_of(self, places: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the part of each place in a bin, from 0 to 1, ``(N,)``."""
        parts = self.stays.shape[1]
        return np.asarray(np.minimum((places * parts).astype(np.int64), parts - 1))


@dataclass(frozen=True, eq=False)
class After:
    """Where a number lies in its bin after a step, given where it lay before."""

    parts: PartsOfSteps

    def scores(
        self,
        bins: NDArray[np.integer],
        others: NDArray[np.integer],
        places: NDArray[np.float64],
        noise: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return normal scores, ``(N,)``; see `coupling.Leaning.scores`."""
        table = self.parts
        before = table.part_of(places)
        stays = np.where(bins == others, table.stays[others, before], 0.0)
        shares = np.column_stack([table.moves[others, before, bins], stays])
        part, rest = _drawn(shares, noise)
        count = shares.shape[1] - 1
        found = (np.minimum(part, count - 1) + rest) / count
        if table.rises:  # a place below the one before would fall
            same, unseen = bins == others, shares.sum(axis=1) <= 0
            upper = np.where(unseen, 1.0, (before + 1) / count)
            within = same & (unseen | (part == before))
            found = np.where(within, places + rest * (upper - places), found)
        return _scores(np.where(part == count, places, found))


@dataclass(frozen=True, eq=False)
class Before:
    """Where a number lies in its bin before a step, given the bin that it goes to."""

    parts: PartsOfSteps

    def scores(
        self,
        bins: NDArray[np.integer],
        others: NDArray[np.integer],
        places: NDArray[np.float64],
        noise: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return normal scores, ``(N,)``; see `coupling.Leaning.scores`.

        Where it goes to in that bin is drawn afterwards, see `After`, so that ``places`` say
        nothing.
        """
        part, rest = _drawn(self.parts.reached[bins, :, others], noise)
        return _scores((part + rest) / self.parts.stays.shape[1])

    def likelihoods(
        self, bins: NDArray[np.integer], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how much likelier each bin after the step is, ``(N, K)``.

        See `coupling.Leaning.likelihoods`.
        """
        part = self.parts.part_of(ndtr(scores))
        return np.asarray(self._likelier[bins, part])

    @cached_property
    def _likelier(self) -> NDArray[np.float64]:
        reached = self.parts.reached
        own = reached.sum(axis=2, keepdims=True)
        usual = reached.sum(axis=1, keepdims=True)
        usual = usual / np.maximum(usual.sum(axis=2, keepdims=True), _NOTHING)
        even = np.broadcast_to(~self.parts.never[:, None, :], reached.shape).astype(np.float64)
        shares = np.divide(reached, own, out=np.zeros_like(reached), where=own > 0)
        return np.asarray(np.divide(shares, usual, out=even, where=usual > _EDGE))


def parts_of_steps(
    shape: ColumnShape,
    column: Column,
    changes: ColumnShape,
    change: Column,
    together: NDArray[np.float64],
) -> PartsOfSteps:
    """Return how a number goes from part to part of its bins.

    Of all tables that have what bins have together, and even parts in each bin, the one nearest to
    independent parts that has as many changes of each size as were released. A bin of changes
    counts as far as it differs from independent parts by more than its noise.

    Args:
        shape: of the number, before and after a step.
        column: of the number.
        changes: of its changes.
        change: column of them.
        together: ``(K, K)``, how rows that something follows are divided among its bins before
            and after.
    """
    assert column.cells is not None
    assert change.cells is not None
    bins, random = shape.size, np.random.default_rng(0)
    count = int(np.clip(_PARTS // bins, _FEWEST, _MOST))
    label = np.repeat(np.arange(bins), count)
    here, there = (
        drawn_numbers(
            column,
            shape,
            label,
            (np.tile(np.arange(count), bins) + random.random(len(label))) / count,
        )
        for _ in range(2)
    )
    apart = there[None, :] - here[:, None]
    if change.rises:  # within a part, too, it only rises
        np.fill_diagonal(apart, np.abs(np.diag(apart)))
    kinds = changes.bins[change.cells.cells_of(apart.ravel())]
    none = int(changes.bins[change.cells.cells_of(np.zeros(1))[0]])
    shares: NDArray[np.float64] = together / max(float(together.sum()), _NOTHING)
    moves = (shares / count**2)[np.ix_(label, label)]
    never = np.zeros(shares.shape, np.bool_)
    if change.rises:
        never, order = falling(shape, column.cells), np.arange(len(label))
        back = (label[:, None] == label) & (order[:, None] > order)  # though of one value
        moves[(apart < 0) | back] = 0.0
    stays = (np.diag(shares) / count**2)[label]

    def sums() -> NDArray[np.float64]:
        found = np.bincount(kinds, weights=moves.ravel(), minlength=changes.size)
        found[none] += stays.sum()
        return np.asarray(found, np.float64)

    wanted: NDArray[np.float64] | None = None
    for turn in range(_FITS + 1):
        if turn:  # parts alone come first: what they have is what changes differ from
            now = sums()
            wanted = _wanted(changes, now) if wanted is None else wanted
            ratio = _ratio(wanted, now)
            moves *= ratio[kinds].reshape(moves.shape)
            stays *= ratio[none]
        ratio = _ratio((shares.sum(axis=1) / count)[label], moves.sum(axis=1) + stays)
        moves *= ratio[:, None]
        stays *= ratio
        ratio = _ratio((shares.sum(axis=0) / count)[label], moves.sum(axis=0) + stays)
        moves *= ratio
        stays *= ratio
        blocks = moves.reshape(bins, count, bins, count)
        own = blocks.sum(axis=(1, 3)) + np.diag(stays.reshape(bins, count).sum(axis=1))
        ratio = _ratio(shares, own)
        blocks *= ratio[:, None, :, None]  # what was counted comes last, and holds
        stays *= np.diag(ratio)[label]
    return PartsOfSteps(moves.reshape(bins, count, bins, count), stays.reshape(bins, count), never)


def _wanted(changes: ColumnShape, expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of changes, nearer to what is expected the less they stand out from it."""
    total = float(changes.bin_masses.sum())
    _, joined = changes.bin_counts
    noise = changes.deviation / total * np.sqrt(joined)
    apart = changes.bin_masses / total - expected / max(float(expected.sum()), _NOTHING)
    found = expected + apart * (apart**2 / (apart**2 + noise**2 + _NOTHING))
    found = np.maximum(found, 0.0)
    return np.asarray(found * (expected.sum() / max(float(found.sum()), _NOTHING)))


def _ratio(wanted: NDArray[np.float64], now: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.divide(wanted, now, out=np.ones_like(now), where=now > _NOTHING))


def _drawn(
    shares: NDArray[np.float64], noise: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return which of some shares ``(N, P)`` was drawn, and where in it; none: they are even."""
    shares = np.where(shares.sum(axis=1, keepdims=True) > 0, shares, 1.0)
    ends = shares.cumsum(axis=1)
    aim = ndtr(noise) * ends[:, -1]
    above = (ends <= aim[:, None]).sum(axis=1)
    part = np.minimum(above, shares.shape[1] - 1).astype(np.int64)
    rows = np.arange(len(shares))
    own = np.maximum(shares[rows, part], _NOTHING)
    rest = np.clip((aim - (ends[rows, part] - shares[rows, part])) / own, 0.0, 1.0)
    return part, rest


def _scores(places: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(ndtri(np.clip(places, _EDGE, 1 - _EDGE)))
