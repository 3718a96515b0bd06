"""A judge without a simulator: three estimates of a policy's return, with intervals over units."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories
from distributed_privrl.evaluation.intervals import FEWEST_RESAMPLED, Interval
from distributed_privrl.evaluation.off_policy.estimators import (
    Episodes,
    Floats,
    doubly_robust,
    effective_episodes,
    importance_weights,
    normalised_weights,
    returns,
    weighted_importance_sampling,
)
from distributed_privrl.evaluation.off_policy.models import (
    MOST_ACTIONS,
    Cells,
    Choices,
    FittedQ,
    LoggedRows,
    Prior,
    fit_behaviour,
)
from distributed_privrl.evaluation.returns import ActingPolicy

RESAMPLES = 200
ESTIMATORS = ("fitted Q", "weighted importance sampling", "doubly robust")
_LEAST_SHARE_KNOWN = 0.95
_SHARES = ("effective_episodes", "mean_weight", "unseen")

Probabilities = Callable[[NDArray[Any]], Floats]
"""Observations ``(N, O)`` to the probability of each discrete action ``(N, A)``."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure, and the same of each resample of the units.

    Args:
        value: itself; NaN where no episode says anything of it.
        resampled: (B,) the figure of each resample; none if there are fewer than ten units.
    """

    value: float
    resampled: Floats

    @property
    def known(self) -> bool:
        """Whether there is a figure."""
        return math.isfinite(self.value)

    @property
    def interval(self) -> Interval | None:
        """The percentile interval of 95 %; None where too few resamples have a figure."""
        known = self.resampled[np.isfinite(self.resampled)]
        if not len(known) or len(known) < _LEAST_SHARE_KNOWN * len(self.resampled):
            return None
        low, high = np.percentile(known, (2.5, 97.5))
        return Interval(float(low), float(high), "bootstrap over units")

    def minus(self, other: "Estimate") -> "Estimate":
        """Return the difference, resample by resample."""
        return Estimate(self.value - other.value, self.resampled - other.resampled)

    @classmethod
    def mean(cls, estimates: Sequence["Estimate"]) -> "Estimate":
        """Return the mean, resample by resample."""
        return cls(
            float(np.mean([one.value for one in estimates])),
            np.mean([one.resampled for one in estimates], axis=0),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Judgement:
    """What the logged episodes say of a policy.

    Args:
        estimates: of its return, by estimator (`ESTIMATORS`).
        effective_episodes: how many equally weighted episodes carry the importance weights.
        mean_weight: of the episodes, before it is normalised; 1 if they hold their share of those
            that follow the policy, far less if the rare heavy ones are missing.
        unseen: share of its actions that their cell's rows never show.
    """

    estimates: dict[str, Estimate]
    effective_episodes: float
    mean_weight: float
    unseen: float

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; figures that are not known are None."""
        return {
            "estimates": {
                name: {
                    "value": _or_none(one.value),
                    "resampled": list(map(_or_none, one.resampled)),
                }
                for name, one in self.estimates.items()
            },
            **{name: getattr(self, name) for name in _SHARES},
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Judgement":
        """Return what `to_json` was called of."""
        return cls(
            estimates={
                name: Estimate(_or_nan(one["value"]), np.array(one["resampled"], np.float64))
                for name, one in values["estimates"].items()
            },
            **{name: float(values[name]) for name in _SHARES},
        )


class Judge:
    """Values policies on logged episodes.

    Observations and actions of a Box are put into cells, once. Who acted, and what actions are
    worth, is fitted on the very episodes, anew on each resample of the units. Two judges of the
    same episodes draw the same resamples, so that figures can be subtracted resample by resample.

    Args:
        trajectories: episodes, each with its unit; empty ones are left out.
        observation_space: Box or Discrete.
        action_space: Discrete or Box.
        resamples: of the units.

    Raises:
        ConfigError: actions are neither, or there is no episode.

    Privacy: exact functions of real rows, for ``private/`` alone. Weights that are fitted or
    normalised on real rows have no bounded sensitivity, so no noise makes these figures releasable.
    """

    def __init__(
        self,
        trajectories: Trajectories,
        *,
        observation_space: Space,
        action_space: Space,
        resamples: int = RESAMPLES,
    ) -> None:
        check_judgeable(action_space)
        trajectories = trajectories.select(np.flatnonzero(trajectories.lengths))
        if not len(trajectories):
            raise ConfigError("there is no episode to judge policies by: name a dataset with some")
        steps = trajectories.transitions(TRAJECTORY)
        streams = Streams(0).child("off-policy estimates")
        self._observations, self._following = steps.observations, steps.next_observations
        cells = Cells.fit(observation_space, steps.observations, streams)
        ended = trajectories.terminated[trajectories.offsets[1:] - 1]
        episodes = Episodes(
            rewards=steps.rewards.astype(np.float64),
            offsets=trajectories.offsets,
            truncated=~ended,
        )
        self.actions = Cells.fit(
            action_space, steps.actions, streams, most=MOST_ACTIONS, name="cells of actions"
        )
        self.rows = LoggedRows(
            episodes=episodes,
            cells=cells.of(steps.observations),
            actions=self.actions.of(steps.actions),
            following=cells.of(steps.next_observations),
            continues=(~steps.terminated).astype(np.float64),
            cell_count=cells.number,
            action_count=self.actions.number,
        )
        units, self._unit = np.unique(trajectories.unit_ids, return_inverse=True)
        self.units = len(units)
        self._resamples = resamples if self.units >= FEWEST_RESAMPLED else 0
        self._streams = streams

    @cached_property
    def _counts(self) -> list[Floats]:
        """How often each episode counts (K,), in all and then in each resample."""
        generator = self._streams.numpy("resamples")
        drawn = generator.exponential(size=(self._resamples, self.units))
        return [counts[self._unit] for counts in (np.ones(self.units), *drawn)]

    @cached_property
    def _behaviour(self) -> Floats:
        return fit_behaviour(self.rows)

    def mean_return(self) -> Estimate:
        """Return the mean return of the episodes as they are: of who acted."""
        earned = returns(self.rows.episodes)
        return _estimate([counts @ earned / counts.sum() for counts in self._counts])

    def who_acted(self) -> Judgement:
        """Return the judgement of the fitted behaviour policy, to be held against the mean return.

        Where its fitted Q is far from it, cells are too coarse or steps are too unlike.
        """
        rows = self.rows
        return self._judged(
            Choices.of(self._behaviour[rows.cells], self._behaviour[rows.following], rows)
        )

    def judged(self, policy: Probabilities) -> Judgement:
        """Return what the episodes say of a policy.

        Args:
            policy: gives the probabilities of actions.
        """
        now, following = policy(self._observations), policy(self._following)
        return self._judged(Choices.of(now, following, self.rows))

    def _judged(self, policy: Choices) -> Judgement:
        rows, episodes = self.rows, self.rows.episodes
        fitted_q = FittedQ(rows, policy)
        empty = rows.pair_counts(np.ones(len(rows.pairs))).ravel() == 0
        unseen = policy.now @ empty.astype(np.float64)
        products = importance_weights(
            policy.taken / self._behaviour.ravel()[rows.pairs] + unseen, episodes
        )
        generator = self._streams.numpy("prior")
        found: list[tuple[float, float, float]] = []
        for counts in self._counts:
            prior = Prior.draw(rows, generator) if found else None
            shares = normalised_weights(products, episodes, counts)
            values = fitted_q.fit(counts[episodes.episode], prior)
            found.append(
                (
                    counts @ values.start / counts.sum(),
                    weighted_importance_sampling(shares, episodes),
                    doubly_robust(
                        shares,
                        episodes,
                        counts,
                        action_values=values.action_values,
                        state_values=values.state_values,
                        tail_values=values.tail_values,
                    ),
                )
            )
        columns = zip(*found, strict=True)
        return Judgement(
            estimates={
                name: _estimate(column) for name, column in zip(ESTIMATORS, columns, strict=True)
            },
            effective_episodes=effective_episodes(products, episodes),
            mean_weight=float(products[episodes.last].mean()),
            unseen=float(unseen.mean()),
        )


def check_judgeable(action_space: Space) -> None:
    """Check that policies with such actions can be valued.

    Raises:
        ConfigError: they are neither Discrete nor a Box.
    """
    if not isinstance(action_space, Discrete | Box):
        raise ConfigError(
            "off-policy estimates are for Discrete and Box actions, of which they make tables of"
            f" values, got {action_space}: judge such agents in an environment (--env)"
        )


def decided(policy: ActingPolicy, actions: Cells) -> Probabilities:
    """Return a policy that always takes one action as one that gives probabilities.

    Args:
        policy: acts on observations.
        actions: of the judge, by which actions of a Box are told apart; or of a Discrete space.
    """
    one_hot = np.eye(actions.number)

    def probabilities(observations: NDArray[Any]) -> Floats:
        found: Floats = one_hot[actions.of(np.asarray(policy.act(observations)))]
        return found

    return probabilities


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _estimate(values: Any) -> Estimate:
    """Return the figure of all units, the first of ``values``, with those of the resamples."""
    first, *resampled = map(float, values)
    return Estimate(first, np.asarray(resampled, dtype=np.float64))
