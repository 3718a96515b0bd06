"""Intervals over pairs: a recording's own rows and a generator's, judged alike.

A pair is the unit. Its two scores share a recording, so that they vary together; intervals keep
that. `benchmarks.ratios` is for samples that share nothing.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from benchmarks.protocol.ladder import Admission
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.intervals import Interval

LEAST_REAL = 25.0
"""Points of 100 that real rows must give for a share to be printed."""

WIDEST_SHARE = 0.2
"""A share whose interval is wider needs `MORE_PAIRS`."""

FEWEST_PAIRS, MORE_PAIRS = 5, 10


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What a table says of a cell.

    Args:
        judge: whose scores.
        difference: mean of synthetic minus real, in points.
        difference_interval: of it; None: a single pair.
        share: ratio of the means; None: real rows give less than `LEAST_REAL`.
        share_interval: of it; None: unbounded, or no share.
        pairs: behind it.
        pairs_wanted: that the protocol asks for.
    """

    judge: str
    difference: float
    difference_interval: Interval | None
    share: float | None
    share_interval: Interval | None
    pairs: int
    pairs_wanted: int


def paired_difference(
    synthetic: ArrayLike, real: ArrayLike, *, level: float = 0.95
) -> Interval | None:
    """Return Student's interval of the mean difference.

    Args:
        synthetic: (N,) scores, one a pair.
        real: (N,) scores of the same pairs.
        level: confidence.

    Returns:
        None for a single pair.

    Raises:
        ConfigError: the two have other lengths, no pair, or a score that is not finite.

    Example:
        >>> f"{paired_difference([41.0, 52.0, 63.0], [40.0, 50.0, 60.0]):.1f}"
        '-0.5 .. 4.5 (paired t, n=3)'
    """
    ours, theirs = _pairs(synthetic, real)
    count = len(ours)
    if count == 1:
        return None
    differences = ours - theirs
    reach = stats.t.ppf((1 + level) / 2, count - 1) * float(stats.sem(differences))
    middle = float(differences.mean())
    return Interval(middle - reach, middle + reach, f"paired t, n={count}")


def paired_share(synthetic: ArrayLike, real: ArrayLike, *, level: float = 0.95) -> Interval | None:
    """Return Fieller's interval of the ratio of two paired means.

    It is the set of ratios r for which the mean of ``synthetic - r real`` cannot be told from 0.

    Args:
        synthetic: (N,) scores, one a pair.
        real: (N,) scores of the same pairs.
        level: confidence.

    Returns:
        None for a single pair, and where the set is unbounded: the mean of ``real`` cannot be told
        from 0.

    Raises:
        ConfigError: see `paired_difference`.

    Reference: Fieller, "Some problems in interval estimation" (1954).
    """
    ours, theirs = _pairs(synthetic, real)
    count = len(ours)
    if count == 1:
        return None
    factor = stats.t.ppf((1 + level) / 2, count - 1) ** 2 / count
    (above, both), (_, below) = np.cov(ours, theirs).tolist()
    mean_above, mean_below = float(ours.mean()), float(theirs.mean())
    # a r^2 - 2 b r + c <= 0
    a = mean_below**2 - factor * below
    b = mean_above * mean_below - factor * both
    c = mean_above**2 - factor * above
    if a <= 0:
        return None
    root = math.sqrt(max(b * b - a * c, 0.0))  # not negative where a > 0, but for rounding
    return Interval((b - root) / a, (b + root) / a, f"paired Fieller, n={count}")


def compare(synthetic: ArrayLike, real: ArrayLike, *, admission: Admission) -> Comparison:
    """Return what a table may say of pairs that an admitted judge has scored.

    Args:
        synthetic: (N,) scores, one a pair.
        real: (N,) scores of the same pairs.
        admission: of the judge, by a ladder that it has ordered.

    Raises:
        ConfigError: see `paired_difference`.
    """
    ours, theirs = _pairs(synthetic, real)
    enough = float(theirs.mean()) >= LEAST_REAL
    interval = paired_share(ours, theirs) if enough else None
    narrow = interval is not None and interval.high - interval.low <= WIDEST_SHARE
    return Comparison(
        judge=admission.judge,
        difference=float((ours - theirs).mean()),
        difference_interval=paired_difference(ours, theirs),
        share=float(ours.mean() / theirs.mean()) if enough else None,
        share_interval=interval,
        pairs=len(ours),
        pairs_wanted=FEWEST_PAIRS if narrow or not enough else MORE_PAIRS,
    )


def _pairs(synthetic: ArrayLike, real: ArrayLike) -> tuple[NDArray[np.float64], ...]:
    ours, theirs = (np.asarray(part, dtype=np.float64) for part in (synthetic, real))
    if ours.ndim != 1 or ours.shape != theirs.shape or not len(ours):
        raise ConfigError(
            f"scores of pairs must be (N,) twice with N >= 1, got {ours.shape} and {theirs.shape}"
        )
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        raise ConfigError("scores of pairs must be finite")
    return ours, theirs
