"""Noisy counts made consistent (equation 3), and the transition estimate from them (equation 5)."""

import numba
import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError


@numba.njit(cache=True, nogil=True)
def _threshold(row, start, upper):  # type: ignore[no-untyped-def]
    """Return t with ``sum max(0, row - t) = upper``: Newton's steps from the left, then exact."""
    threshold, active = start, row.shape[0]
    while True:
        total, count = 0.0, 0
        for value in row:
            above = value > threshold
            total += value if above else 0.0
            count += 1 if above else 0
        if count >= active or count == 0:  # rounding must not let it grow and go round in circles
            return threshold
        threshold, active = (total - upper) / count, count


@numba.njit(cache=True, nogil=True)
def _project(noisy_next, noisy_pair, slack, projected, totals):  # type: ignore[no-untyped-def]
    successors = noisy_next.shape[1]
    for i in range(noisy_next.shape[0]):
        row = noisy_next[i]
        total = 0.0
        for value in row:
            total += value
        lower, upper = noisy_pair[i] - slack / 2, noisy_pair[i] + slack / 2
        shift = 0.0
        if total > upper:
            shift = -_threshold(row, (total - upper) / successors, upper)
        elif total < lower:
            shift = (lower - total) / successors
        total = 0.0
        for j in range(successors):
            value = max(0.0, row[j] + shift)
            projected[i, j] = value
            total += value
        totals[i] = total


@numba.njit(cache=True, nogil=True)
def _moments(projected, totals, threshold, values, uniform, means, variances):  # type: ignore[no-untyped-def]
    for i in range(projected.shape[0]):
        if totals[i] <= threshold:
            means[i], variances[i] = uniform
            continue
        mean = 0.0
        for j in range(values.shape[0]):
            mean += projected[i, j] * values[j]
        mean /= totals[i]
        variance = 0.0
        for j in range(values.shape[0]):
            deviation = values[j] - mean
            variance += projected[i, j] * deviation * deviation
        means[i], variances[i] = mean, variance / totals[i]


def project_counts(
    noisy_next: NDArray[np.float64],
    noisy_pair: NDArray[np.float64],
    slack: float,
    *,
    out: NDArray[np.float64] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the counts nearest to the noisy ones whose sums agree with the pairs' noisy counts.

    For each row y with pair count p, the x >= 0 that minimises max |x - y| subject to
    |sum x - p| <= slack / 2. Let L and U = p -+ slack / 2. Then

    * ``L <= sum y <= U``: x = y, the only point at distance 0.
    * ``sum y > U``: distance t allows exactly the x with max(0, y - t) <= x <= y + t. Their least
      sum, f(t) = sum max(0, y - t), is continuous and falls strictly from sum y to 0 <= U, so
      f(t) = U has one solution, the least possible t; x >= max(0, y - t) with sum x <= U = f(t)
      leaves x = max(0, y - t) alone. Newton's method on the convex, piecewise linear f from the
      left is monotone and ends at the solution after at most S steps.
    * ``sum y < L``: distance t allows sums up to sum y + S t, so the least t is (L - sum y) / S,
      and only x = y + t reaches L.

    So the solution is unique in every case.

    Args:
        noisy_next: ``(N, S)``, noisy counts of each successor, cut at 0.
        noisy_pair: ``(N,)``, noisy counts of each state and action, cut at 0.
        slack: E, how far the sums may be apart, twice; at least 0.
        out: ``(N, S)``, where to write the counts; may be ``noisy_next``.

    Returns:
        the counts ``(N, S)`` and their sums ``(N,)``.

    Raises:
        ConfigError: shapes that do not fit, a negative or non-finite count, a negative slack.

    Privacy:
        A function of noisy counts alone: post-processing.

    Reference: DP-VAPVI, equations 3 and 4.
    """
    if noisy_next.ndim != 2 or noisy_next.shape[1] == 0:
        raise ConfigError(f"noisy_next must be (N, S) with S > 0, got {noisy_next.shape}")
    if noisy_pair.shape != noisy_next.shape[:1]:
        raise ConfigError(f"noisy_pair must be ({len(noisy_next)},), got {noisy_pair.shape}")
    if not (np.isfinite(slack) and slack >= 0):
        raise ConfigError(f"slack must be finite and at least 0, got {slack!r}")
    for name, counts in (("noisy_next", noisy_next), ("noisy_pair", noisy_pair)):
        if counts.size and not (counts.min() >= 0 and counts.max() < np.inf):
            raise ConfigError(f"{name} must be finite and cut at 0, got {counts.min()}")
    projected = np.empty_like(noisy_next) if out is None else out
    totals = np.empty(len(noisy_next))
    _project(noisy_next, noisy_pair, float(slack), projected, totals)
    return projected, totals


def transition_moments(
    counts: NDArray[np.float64],
    totals: NDArray[np.float64],
    values: NDArray[np.float64],
    *,
    threshold: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and variance of ``values`` under the estimated transitions of each row.

    The estimate is counts / total where the total is above ``threshold`` (E), uniform elsewhere.

    Args:
        counts: ``(N, S)``, projected.
        totals: ``(N,)``, their sums.
        values: ``(S,)``, of the successors.
        threshold: E; totals up to it may be noise alone.

    Returns:
        means ``(N,)`` and variances ``(N,)``.

    Raises:
        ConfigError: ``values`` has not one value a successor.

    Reference: DP-VAPVI, equation 5 and algorithm 1, lines 4 and 5.
    """
    if values.shape != counts.shape[1:]:
        raise ConfigError(f"values must be {counts.shape[1:]}, got {values.shape}")
    means, variances = np.empty(len(totals)), np.empty(len(totals))
    uniform = (float(values.mean()), float(values.var()))
    _moments(counts, totals, threshold, values, uniform, means, variances)
    return means, variances
