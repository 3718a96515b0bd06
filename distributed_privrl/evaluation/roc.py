"""Receiver operating characteristics of scores, members being the positives."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

ROUNDING = 1e-12
"""What a rate may be above the one asked for, and still count as it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Roc:
    """A receiver operating characteristic, members being the positives.

    Args:
        false_positive_rates: (K,) rising from 0 to 1, a point for each distinct score.
        true_positive_rates: (K,) rising from 0 to 1.
    """

    false_positive_rates: NDArray[np.float64]
    true_positive_rates: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Area under the curve: P(a member scores higher), ties counted half."""
        return float(np.trapezoid(self.true_positive_rates, self.false_positive_rates))

    def true_positive_rate(self, at: float) -> float:
        """Return the largest true-positive rate of a threshold with at most ``at`` false ones."""
        return float(self.true_positive_rates[self.false_positive_rates <= at + ROUNDING].max())


def roc_curve(members: NDArray[np.float64], non_members: NDArray[np.float64]) -> Roc:
    """Return the ROC of scores, higher meaning "member".

    Args:
        members: (N,) scores of rows that the model was trained on: the positives.
        non_members: (M,) scores of rows of the same source that it was not.

    Raises:
        ConfigError: no scores on a side, or one that is not finite.

    Example:
        >>> roc = roc_curve(np.array([3.0, 1.0]), np.array([2.0, 0.0]))
        >>> roc.area, roc.true_positive_rate(0.1)
        (0.75, 0.5)
    """
    is_member, ends = _ranked(members, non_members)
    weights = np.stack([is_member, ~is_member]).astype(np.float64)
    true, false = rates_of(weights[:1], weights[1:], ends)
    return Roc(false_positive_rates=false[0], true_positive_rates=true[0])


def _ranked(
    members: NDArray[np.float64], non_members: NDArray[np.float64]
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    for name, scores in (("members", members), ("non_members", non_members)):
        if scores.ndim != 1 or not len(scores):
            raise ConfigError(f"{name} must be (N,) with N >= 1, got shape {scores.shape}")
        if not np.isfinite(scores).all():
            raise ConfigError(f"{name} hold scores that are not finite: leave those rows out")
    order, ends = by_falling_score(np.concatenate([members, non_members]))
    return order < len(members), ends


def by_falling_score(scores: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return positions by falling score, and where each run of equal scores ends."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    return order, np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))


def rates_of(
    member_weights: NDArray[np.float64],
    non_member_weights: NDArray[np.float64],
    ends: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return true- and false-positive rates (R, K) of weights (R, N + M) by falling score."""
    rates = []
    for weights in (member_weights, non_member_weights):
        sums = np.cumsum(weights, axis=1)
        points = sums[:, ends] / sums[:, -1:]
        rates.append(np.concatenate([np.zeros((len(points), 1)), points], axis=1))
    return rates[0], rates[1]
