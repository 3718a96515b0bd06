"""Intervals of ratios of means."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from distributed_privrl.evaluation.intervals import Interval


def ratio_interval(values: ArrayLike, reference: ArrayLike) -> Interval | None:
    """Return an interval of the ratio of two means, by Fieller's theorem.

    Degrees of freedom are those of the smaller sample, which holds however far the two variances
    lie apart.

    Args:
        values: (N,) independent results, N >= 2.
        reference: (M,) independent results of what they are compared with, M >= 2.

    Returns:
        None where there are too few values, or where the reference cannot be told from zero, so
        that no bounded interval holds.

    Reference: Fieller, "Some problems in interval estimation" (1954).

    Example:
        >>> f"{ratio_interval([40.0, 50.0, 60.0], [99.0, 100.0, 101.0]):.2f}"
        '0.25 .. 0.75 (Fieller, n=3 and 3)'
    """
    samples = [np.asarray(part, dtype=np.float64) for part in (values, reference)]
    counts = [len(part) for part in samples]
    if min(counts) < 2:
        return None
    reach = stats.t.ppf(0.975, min(counts) - 1)
    above, below = (float(part.mean()) for part in samples)
    errors = [reach * float(stats.sem(part)) for part in samples]
    square = below**2 - errors[1] ** 2
    if below <= 0 or square <= 0:
        return None
    root = math.sqrt((above * below) ** 2 - square * (above**2 - errors[0] ** 2))
    low, high = ((above * below + sign * root) / square for sign in (-1, 1))
    return Interval(low, high, f"Fieller, n={counts[0]} and {counts[1]}")
