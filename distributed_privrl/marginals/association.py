"""How two numbers go together, as a smooth function.

A joint count of two numbers has hundreds of cells, most of them lost in noise. What neighbouring
cells show together, a smooth function tells better: how fast values of one go with values of the
other, from place to place. All of it is post-processing of released counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from scipy.special import ndtri

from distributed_privrl.marginals.tables import Maps, Margin, blocks

FEWEST_BINS = 4
"""Numbers of fewer bins have no small, usual and large values."""
_KNOTS = np.array([-2.2, -1.5, -0.8, 0.0, 0.8, 1.5, 2.2])
"""Normal scores between which the function is bilinear."""
_SEARCHES, _SWEEPS, _CENTERINGS = 20, 30, 15
_LONGEST_STEP = 1.0
_GAP = 3.0
"""How much freer it is how rows without a number differ from others than how numbers do."""
_DAMPING, _STUBBORN = 1e-3, 1e5
_FLOOR = 1e-9


@dataclass(frozen=True, kw_only=True)
class Smoothness:
    """What is held of the function's slopes before a count is known.

    Args:
        deviation: of each slope.
        alike: correlation of neighbouring ones.
    """

    deviation: float
    alike: float


STIFF = Smoothness(deviation=1.0, alike=0.95)
SUPPLE = Smoothness(deviation=3.0, alike=0.8)


@dataclass(frozen=True, eq=False)
class BlockCounts:
    """Released counts of blocks of cells.

    Args:
        noisy: counts.
        deviation: of the noise of each.
        maps: the block of each bin of each column.
    """

    noisy: NDArray[np.float64]
    deviation: float
    maps: Maps


def associated(
    counts: Sequence[BlockCounts],
    smoothness: Smoothness,
    *,
    expected: NDArray[np.float64],
    margins: Sequence[Margin],
) -> NDArray[np.float64]:
    """Return what is expected of the cells ``(K, L)`` of two numbers that go together smoothly.

    Of all tables with the margins' sums that are ``expected`` times exp(sum of phi_ij f_i g_j), the
    one nearest to all noisy counts of the two, with smooth slopes phi: f and g are ramps of the
    bins' normal scores, from one knot to the next.

    Args:
        counts: of these two columns.
        smoothness: of the function.
        expected: without these counts, ``(K, L)``.
        margins: of both columns.

    Reference: Agresti, Categorical Data Analysis (linear-by-linear association); Eilers and Marx
    1996 (many knots, and a penalty on what is rough).
    """
    total = expected.sum()
    sums = [np.maximum(one.masses, _FLOOR * total) for one in margins]
    sums = [one * (total / one.sum()) for one in sums]
    start = np.maximum(expected, _FLOOR * total / expected.size)
    gaps = [one.gaps for one in margins]
    ramps = [_ramps(own, gap) for own, gap in zip(sums, gaps, strict=True)]
    features = np.stack([np.outer(f, g) for f in ramps[0] for g in ramps[1]])
    precision = _precision(smoothness, gaps)

    def table(phi: NDArray[np.float64]) -> NDArray[np.float64]:
        tilt = np.tensordot(phi, features, axes=1)
        return _with_sums(start * np.exp(tilt - tilt.max()), *sums)

    def apart(one: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return by how many deviations each count misses a table."""
        return np.concatenate(
            [((each.noisy - blocks(one, each.maps)) / each.deviation).ravel() for each in counts]
        )

    def misfit(phi: NDArray[np.float64], one: NDArray[np.float64]) -> float:
        return float((apart(one) ** 2).sum() + phi @ precision @ phi) / 2

    phi, damping = np.zeros(len(features)), _DAMPING
    best = table(phi)
    least = misfit(phi, best)
    for _ in range(_SEARCHES):  # Levenberg and Marquardt
        each_cell = _slopes(best, features)
        slopes = np.concatenate(
            [
                blocks(each_cell, each.maps, first=1).reshape(len(features), -1) / each.deviation
                for each in counts
            ],
            axis=1,
        )
        curvature = slopes @ slopes.T + precision
        gradient = slopes @ apart(best) - precision @ phi
        diagonal = np.diag(np.diag(curvature) + _FLOOR)
        before = least
        while damping < _STUBBORN:
            step = np.linalg.solve(curvature + damping * diagonal, gradient)
            trial = phi + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            found = table(trial)
            missed = misfit(trial, found)
            if missed < least:
                phi, best, least, damping = trial, found, missed, damping / 3
                break
            damping *= 10
        if before - least < 0.01:
            break
    return best


def _ramps(masses: NDArray[np.float64], gaps: bool) -> list[NDArray[np.float64]]:
    """Return functions of a number's bins ``(K,)``, each of which grows between two knots.

    Args:
        masses: of the bins.
        gaps: the last bin is of rows without a number: it has a function of its own.
    """
    if gaps:
        numbers = [np.append(one, 0.0) for one in _ramps(masses[:-1], False)]
        return [*numbers, np.append(np.zeros(len(masses) - 1), 1.0)]
    shares = masses / masses.sum()
    scores = ndtri(np.clip(np.cumsum(shares) - shares / 2, 1e-4, 1 - 1e-4))
    first, last = _KNOTS[0], _KNOTS[-1]
    between = [np.clip(scores, a, b) - a for a, b in pairwise(_KNOTS)]
    return [np.minimum(scores, first) - first, *between, np.maximum(scores, last) - last]


def _precision(smoothness: Smoothness, gaps: Sequence[bool]) -> NDArray[np.float64]:
    """Return the inverse covariance of all slopes, before a count is known.

    Args:
        smoothness: of the function.
        gaps: of each number, whether there may be none; that is like no number.
    """
    places = np.arange(len(_KNOTS) + 1)
    alike = smoothness.alike ** np.abs(np.subtract.outer(places, places))
    one, other = (block_diag(alike, _GAP**2) if gap else alike for gap in gaps)
    inverse: NDArray[np.float64] = np.linalg.inv(np.kron(one, other)) / smoothness.deviation**2
    return inverse


def _slopes(table: NDArray[np.float64], features: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how a table's cells grow with each slope, ``(F, K, L)``; its sums stay."""
    left, weighed = features.copy(), np.empty_like(features)
    rows, columns = table.sum(axis=1), table.sum(axis=0)
    for _ in range(_CENTERINGS):
        np.multiply(left, table, out=weighed)
        left -= (weighed.sum(axis=2) / rows)[:, :, None]
        np.multiply(left, table, out=weighed)
        left -= (weighed.sum(axis=1) / columns)[:, None, :]
    return np.multiply(left, table, out=weighed)


def _with_sums(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    table = table.copy()
    for _ in range(_SWEEPS):
        table *= (rows / np.maximum(np.add.reduce(table, axis=1), 1e-300))[:, None]
        table *= columns / np.maximum(np.add.reduce(table, axis=0), 1e-300)
    return table
