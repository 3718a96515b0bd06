"""Estimators of a policy's value as functions of arrays; what they need is fitted elsewhere.

Reference: Precup, Sutton, Singh, "Eligibility traces for off-policy policy evaluation" (2000);
Thomas, Brunskill, "Data-efficient off-policy policy evaluation for reinforcement learning" (2016).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

Floats = NDArray[np.float64]

_LARGEST_LOG = 600.0
"""Products of ratios are held between e^-600 and e^600, or are 0."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episodes:
    """Logged episodes: their rows one after the other.

    Args:
        rewards: (N,).
        offsets: (K + 1,) where each of K episodes begins, the last N; none is empty.
        truncated: (K,) bool: its recording stopped, it had not ended.

    Raises:
        ConfigError: the arrays do not fit together, or there is no episode.
    """

    rewards: Floats
    offsets: NDArray[np.int64]
    truncated: NDArray[np.bool_]

    def __post_init__(self) -> None:
        if len(self.offsets) < 2 or self.offsets[0] != 0 or not (np.diff(self.offsets) > 0).all():
            raise ConfigError("offsets must start at 0 and rise, for one episode at least")
        if len(self.rewards) != self.offsets[-1] or len(self.truncated) != len(self.offsets) - 1:
            raise ConfigError(
                f"rewards {self.rewards.shape} and truncated {self.truncated.shape} must be"
                f" ({self.offsets[-1]},) and ({len(self.offsets) - 1},)"
            )

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Steps of each episode (K,)."""
        return np.diff(self.offsets)

    @cached_property
    def horizon(self) -> int:
        """Steps of the longest episode."""
        return int(self.lengths.max())

    @cached_property
    def episode(self) -> NDArray[np.int64]:
        """Episode of each row (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def step(self) -> NDArray[np.int64]:
        """Step of each row (N,) in its episode, from 0."""
        return np.arange(len(self.rewards)) - self.offsets[self.episode]

    @cached_property
    def last(self) -> NDArray[np.int64]:
        """The last row of each episode (K,)."""
        return self.offsets[1:] - 1


def returns(episodes: Episodes) -> Floats:
    """Return the undiscounted return of each episode (K,)."""
    return np.add.reduceat(episodes.rewards, episodes.offsets[:-1])


def importance_weights(ratios: Floats, episodes: Episodes) -> Floats:
    """Return the product of the ratios up to each row (N,), within its episode.

    Args:
        ratios: (N,) probability of the action taken under the policy that is judged, over that
            under the policy that acted.
        episodes: whose rows they are.

    Example:
        >>> pair = Episodes(
        ...     rewards=np.zeros(3), offsets=np.array([0, 2, 3]), truncated=np.zeros(2, bool)
        ... )
        >>> importance_weights(np.array([2.0, 3.0, 0.5]), pair).round(6).tolist()
        [2.0, 6.0, 0.5]
    """
    possible = ratios > 0
    logs = np.log(np.where(possible, ratios, 1.0))
    total = np.cumsum(logs)
    before = (total - logs)[episodes.offsets[:-1]]
    blocked = (~possible).astype(np.int64)
    impossible = np.cumsum(blocked)
    impossible_before = (impossible - blocked)[episodes.offsets[:-1]]
    products = np.exp(np.clip(total - before[episodes.episode], -_LARGEST_LOG, _LARGEST_LOG))
    return np.where(impossible > impossible_before[episodes.episode], 0.0, products)


def normalised_weights(weights: Floats, episodes: Episodes, counts: Floats) -> Floats:
    """Return the share that each row (N,) has in all episodes' weights at its step.

    An episode that has ended keeps its last weight: nothing that happens afterwards depends on who
    acts.

    Args:
        weights: (N,) of `importance_weights`.
        episodes: whose rows they are.
        counts: (K,) how often each episode counts.

    Returns:
        (N,); NaN at steps where all weights are 0.
    """
    counted = weights * counts[episodes.episode]
    horizon = episodes.horizon
    running = np.bincount(episodes.step, weights=counted, minlength=horizon)
    ended = np.bincount(episodes.lengths, weights=counted[episodes.last], minlength=horizon + 1)
    totals = running + np.cumsum(ended)[:horizon]
    with np.errstate(invalid="ignore", divide="ignore"):
        return counted / totals[episodes.step]


def weighted_importance_sampling(shares: Floats, episodes: Episodes) -> float:
    """Return the per-decision weighted importance sampling estimate of the return.

    Args:
        shares: (N,) of `normalised_weights`.
        episodes: whose rows they are.

    Reference: Precup, Sutton, Singh, section 3; weights are normalised at each step.
    """
    return float(shares @ episodes.rewards)


def doubly_robust(
    shares: Floats,
    episodes: Episodes,
    counts: Floats,
    *,
    action_values: Floats,
    state_values: Floats,
    tail_values: Floats,
) -> float:
    """Return the weighted doubly robust estimate of the return.

    Args:
        shares: (N,) of `normalised_weights`.
        episodes: whose rows they are.
        counts: (K,) how often each episode counts.
        action_values: (N,) fitted value of the action taken, with the steps that are left.
        state_values: (N,) fitted value of the state under the policy that is judged.
        tail_values: (K,) fitted value of the state where an episode's recording stopped; 0 where
            it ended.

    Reference: Thomas, Brunskill, equation 10 (WDR); the tail values what was not recorded.
    """
    before = np.empty_like(shares)
    before[1:] = shares[:-1]
    before[episodes.offsets[:-1]] = counts / counts.sum()
    rows = shares * (episodes.rewards - action_values) + before * state_values
    return float(rows.sum() + shares[episodes.last] @ tail_values)


def effective_episodes(weights: Floats, episodes: Episodes) -> float:
    """Return how many equally weighted episodes say as much: (sum w)^2 / sum w^2 of last weights.

    Args:
        weights: (N,) of `importance_weights`.
        episodes: whose rows they are.

    Reference: Kong, "A note on importance sampling using standardized weights" (1992).
    """
    last = weights[episodes.last]
    if not last.any():
        return 0.0
    last = last / last.max()
    return float(last.sum() ** 2 / (last @ last))
