"""Intervals of 95 % of means and of ratios of means, which say how they were made."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams

FEWEST_RESAMPLED = 10
"""Below it a bootstrap interval is far too narrow: of three values it is their range."""


def bootstrap_interval(
    values: ArrayLike,
    *,
    generator: np.random.Generator,
    confidence: float = 0.95,
    resamples: int = 10_000,
) -> tuple[float, float]:
    """Return a percentile bootstrap interval of the mean of ``values``.

    Args:
        values: (N,) independent results, such as one figure a training seed.
        generator: source of the resampling.
        confidence: probability that the interval is meant to cover the mean with.
        resamples: number of resampled means.

    Raises:
        ConfigError: no values, or a number is out of range.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not len(sample):
        raise ConfigError(f"values must be (N,) with N >= 1, got shape {sample.shape}")
    check_probability("confidence", confidence)
    check_positive("resamples", resamples)
    means = sample[generator.integers(len(sample), size=(resamples, len(sample)))].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)


def t_interval(values: ArrayLike, *, confidence: float = 0.95) -> tuple[float, float]:
    """Return Student's interval of the mean of ``values``, for samples too few to resample.

    Args:
        values: (N,) independent results, N >= 2, as if drawn from a normal distribution.
        confidence: probability that the interval is meant to cover the mean with.

    Raises:
        ConfigError: fewer than two values, or ``confidence`` out of range.

    Example:
        >>> low, high = t_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or len(sample) < 2:
        raise ConfigError(f"values must be (N,) with N >= 2, got shape {sample.shape}")
    check_probability("confidence", confidence)
    import scipy.stats  # slow to import: not for a refusal

    reach = scipy.stats.t.ppf((1 + confidence) / 2, len(sample) - 1) * scipy.stats.sem(sample)
    return float(sample.mean() - reach), float(sample.mean() + reach)


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

    Args:
        values: (N,) independent results, such as one figure a training seed.

    Returns:
        None where a single value says nothing of how far results lie apart.

    Raises:
        ConfigError: no values.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim == 1 and len(sample) == 1:
        return None
    if len(sample) < FEWEST_RESAMPLED:
        return Interval(*t_interval(sample), f"t, n={len(sample)}")
    ends = bootstrap_interval(sample, generator=Streams(0).numpy("bootstrap"))
    return Interval(*ends, f"percentile bootstrap, n={len(sample)}")


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
    import scipy.stats

    reach = scipy.stats.t.ppf(0.975, min(counts) - 1)
    above, below = (float(part.mean()) for part in samples)
    errors = [reach * float(scipy.stats.sem(part)) for part in samples]
    square = below**2 - errors[1] ** 2
    if below <= 0 or square <= 0:
        return None
    root = math.sqrt((above * below) ** 2 - square * (above**2 - errors[0] ** 2))
    low, high = ((above * below + sign * root) / square for sign in (-1, 1))
    return Interval(low, high, f"Fieller, n={counts[0]} and {counts[1]}")


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
