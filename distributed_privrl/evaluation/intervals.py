"""Intervals of 95 % of means, which say how they were made."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams

FEWEST_RESAMPLED = 10
"""Below it a bootstrap interval is far too narrow: of three values it is their range."""


@dataclass(frozen=True)
class Interval:
    """An interval of 95 %, and how it was made.

    Args:
        low: its lower end.
        high: its upper end.
        method: what made it, of how many values.

    Example:
        >>> f"{mean_interval([1.0, 2.0, 3.0]):.1f}"
        '-0.5 .. 4.5 (t, n=3)'
    """

    low: float
    high: float
    method: str

    def __format__(self, numbers: str) -> str:
        """Return both ends in the format ``numbers``, and the method."""
        return f"{self.low:{numbers}} .. {self.high:{numbers}} ({self.method})"


def mean_interval(values: ArrayLike) -> Interval | None:
    """Return an interval of the mean of ``values``: Student's, or of ten and more a bootstrap's.

    Values that are all equal have an interval of no width, which says so.

    Args:
        values: (N,) independent results, such as one figure a training seed.

    Returns:
        None where a single value says nothing of how far results lie apart.

    Raises:
        ConfigError: no values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ConfigError(f"values must be (N,) with N >= 1, got shape {sample.shape}")
    count = len(sample)
    if count == 1:
        return None
    if np.ptp(sample) == 0:
        return Interval(float(sample[0]), float(sample[0]), f"all equal, n={count}")
    from scipy import stats  # slow to import: not for a refusal

    if count < FEWEST_RESAMPLED:
        low, high = stats.t.interval(0.95, count - 1, loc=sample.mean(), scale=stats.sem(sample))
        return Interval(float(low), float(high), f"t, n={count}")
    generator = Streams(0).numpy("bootstrap")
    found = stats.bootstrap((sample,), np.mean, method="percentile", rng=generator)
    low, high = found.confidence_interval
    return Interval(float(low), float(high), f"percentile bootstrap, n={count}")


def spread(values: ArrayLike) -> str:
    """Say in words how far single results lie apart, and how their interval was made.

    Args:
        values: (N,) independent results, such as one figure a training seed.
    """
    sample = np.asarray(values, dtype=np.float64)
    interval = mean_interval(sample)
    if interval is None:
        return "1 seed, no interval"
    if len(sample) >= FEWEST_RESAMPLED:
        return f"{len(sample)} seeds; 95 %: {interval:.1f}"
    listed = ", ".join(f"{value:.1f}" for value in sample)
    return f"{len(sample)} seeds: {listed}; 95 %: {interval:.1f}"
