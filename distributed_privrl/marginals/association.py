"""How two numbers go together, as a smooth function with few parameters.

A joint count of two numbers has hundreds of cells, most of them lost in noise. What the cells show
together, nine parameters tell better: whether small, usual and large values of one go with small,
usual and large ones of the other. All of it is post-processing of released counts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.marginals.tables import Margin

FEWEST_BINS = 4
"""Numbers of fewer bins have no small, usual and large values."""
_SEARCHES, _SWEEPS = 20, 30
_STEP, _LONGEST_STEP = 1e-3, 1.0
_DAMPING, _STUBBORN = 1e-3, 1e5
_PRIOR = 2.0
"""Deviation of each parameter, before a count is known."""
_FLOOR = 1e-9


def associated(
    noisy: NDArray[np.float64],
    deviation: float,
    *,
    expected: NDArray[np.float64],
    margins: Sequence[Margin],
) -> NDArray[np.float64]:
    """Return what is expected of the cells ``(K, L)`` of two numbers that go together smoothly.

    Of all tables with the margins' sums that are ``expected`` times exp(sum of phi_ij f_i g_j), the
    one nearest to the noisy counts: f and g are piecewise linear in the bins' normal scores, for
    small, usual and large values.

    Args:
        noisy: released counts, ``(K, L)``.
        deviation: of the noise of a cell.
        expected: without this count, of the same shape.
        margins: of both columns.

    Reference: Agresti, Categorical Data Analysis (linear-by-linear association).
    """
    total = expected.sum()
    sums = [np.maximum(one.masses, _FLOOR * total) for one in margins]
    sums = [one * (total / one.sum()) for one in sums]
    start = np.maximum(expected, _FLOOR * total / expected.size)
    features = np.stack(
        [np.outer(f, g) for f in _ramps(sums[0]) for g in _ramps(sums[1])]
    )  # (9, K, L)

    def table(phi: NDArray[np.float64]) -> NDArray[np.float64]:
        tilt = np.tensordot(phi, features, axes=1)
        return _with_sums(start * np.exp(tilt - tilt.max()), *sums)

    def misfit(phi: NDArray[np.float64], one: NDArray[np.float64]) -> float:
        return float(((noisy - one) ** 2).sum() / deviation**2 + (phi**2).sum() / _PRIOR**2) / 2

    phi, damping = np.zeros(len(features)), _DAMPING
    best = table(phi)
    least = misfit(phi, best)
    for _ in range(_SEARCHES):  # Levenberg and Marquardt
        moved = phi + _STEP * np.eye(len(phi))
        slopes = np.stack([(table(one) - best).ravel() / _STEP for one in moved])
        curvature = slopes @ slopes.T / deviation**2 + np.eye(len(phi)) / _PRIOR**2
        gradient = slopes @ (noisy - best).ravel() / deviation**2 - phi / _PRIOR**2
        diagonal = np.diag(np.diag(curvature) + _FLOOR)
        before = least
        while damping < _STUBBORN:
            step = np.linalg.solve(curvature + damping * diagonal, gradient)
            trial = phi + np.clip(step, -_LONGEST_STEP, _LONGEST_STEP)
            found = table(trial)
            if misfit(trial, found) < least:
                phi, best, least, damping = trial, found, misfit(trial, found), damping / 3
                break
            damping *= 10
        if before - least < 0.01:
            break
    return best


def _ramps(masses: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Return functions of a number's bins ``(K,)``, that grow among small, usual, large values."""
    shares = masses / masses.sum()
    scores = norm.ppf(np.clip(np.cumsum(shares) - shares / 2, 1e-4, 1 - 1e-4))
    return [np.minimum(scores, -1) + 1, np.clip(scores, -1, 1), np.maximum(scores, 1) - 1]


def _with_sums(
    table: NDArray[np.float64], rows: NDArray[np.float64], columns: NDArray[np.float64]
) -> NDArray[np.float64]:
    for _ in range(_SWEEPS):
        table = table * (rows / np.maximum(table.sum(axis=1), 1e-300))[:, None]
        table = table * (columns / np.maximum(table.sum(axis=0), 1e-300))
    return table
