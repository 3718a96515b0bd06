"""What a policy would earn where others acted, as one number a unit that a release may sum.

Everything that is fitted is fitted on released rows. A unit's number then depends on its own
episodes alone, and clipping bounds it.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from gymnasium.spaces import Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, part_width
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions
from distributed_privrl.evaluation.off_policy.estimators import (
    Episodes,
    Floats,
    importance_weights,
    returns,
)
from distributed_privrl.evaluation.off_policy.judge import Probabilities
from distributed_privrl.evaluation.off_policy.models import Cells, Choices, FittedQ, LoggedRows

LARGEST_WEIGHT = 1.0
"""Of the product of an episode's ratios: what lies above is cut off. docs/design/0006-values.md."""


class UnitFigures(NamedTuple):
    """What the episodes of a unit say."""

    value: float
    """Mean estimate of what the policy would have earned in them."""
    earned: float
    """Their mean return."""


def check_countable(action_space: Space) -> None:
    """Check that actions are such as a value that may leave is made of.

    Raises:
        ConfigError: they are not Discrete.
    """
    if not isinstance(action_space, Discrete):
        raise ConfigError(
            f"policy_value is for Discrete actions, got {action_space}: `privrl evaluate --offline`"
            " judges agents of a Box, for the owner alone"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ReleasedModels:
    """Who acted, and what actions are worth under a policy, fitted on released rows.

    Args:
        cells: of observations.
        behaviour: (C, A) probability of each action; above 0 everywhere.
        values: (H + 1, C, A) value of an action with so many steps to go.
        start: of the actions' space.
        agreement: share of the released rows whose action the policy takes, too.
    """

    cells: Cells
    behaviour: Floats
    values: Floats
    start: int
    agreement: float

    @classmethod
    def fit(
        cls,
        rows: Transitions,
        policy: Probabilities,
        *,
        observation_space: Space,
        action_space: Space,
        horizon: int,
        streams: Streams,
    ) -> Self:
        """Return the models.

        Args:
            rows: that were released; proper ones.
            policy: that is judged.
            observation_space: Box or Discrete.
            action_space: Discrete.
            horizon: steps of an episode.
            streams: public randomness.
        """
        assert isinstance(action_space, Discrete)
        cells, number = Cells.fit(observation_space, rows.observations, streams), len(rows)
        logged = LoggedRows(
            episodes=Episodes(
                rewards=rows.rewards.astype(np.float64),
                offsets=np.arange(number + 1),
                truncated=np.ones(number, np.bool_),
            ),
            cells=cells.of(rows.observations),
            actions=rows.actions - int(action_space.start),
            following=cells.of(rows.next_observations),
            continues=(~rows.terminated).astype(np.float64),
            cell_count=cells.number,
            action_count=part_width(action_space),
        )
        choices = Choices.of(policy(rows.observations), policy(rows.next_observations), logged)
        counts = logged.pair_counts(np.ones(number))
        usual = counts.sum(axis=0) + 1.0
        return cls(
            cells=cells,
            behaviour=(counts + usual / usual.sum()) / (counts.sum(axis=1, keepdims=True) + 1.0),
            values=FittedQ(logged, choices).tables(horizon),
            start=int(action_space.start),
            agreement=float(choices.taken.mean()),
        )

    @property
    def horizon(self) -> int:
        """Steps of an episode."""
        return len(self.values) - 1

    def figures(self, episodes: Trajectories, policy: Probabilities) -> UnitFigures:
        """Return what the episodes of one unit say.

        The estimate of an episode is doubly robust: the fitted value of its first state, and at
        each step what happened beside what was expected, weighted by how likely the policy would
        have come there; weights above `LARGEST_WEIGHT` are cut off.

        Args:
            episodes: of the unit; proper ones, none of them empty; steps after the horizon are left
                out.
            policy: that is judged.

        Privacy: private. The numbers depend on the unit's episodes alone, to the last bit: nothing
            is fitted or normalised here, and other units' rows are not in the same batch, whose
            size the rounding of networks and sums may depend on.

        Reference: Jiang, Li, "Doubly robust off-policy value evaluation for reinforcement learning"
            (2016), equation 10, in its unrolled form; Espeholt et al., "IMPALA" (2018), cut the
            ratios off likewise.
        """
        logged, rows = _within(episodes, self.horizon)
        before, after = self.cells.near(rows.observations), self.cells.near(rows.next_observations)
        cells, following = self.cells.of(before), self.cells.of(after)
        actions = rows.actions - self.start
        now, then = policy(before), policy(after)
        ratios = now[np.arange(len(actions)), actions] / self.behaviour[cells, actions]
        weights = np.minimum(importance_weights(ratios, logged), LARGEST_WEIGHT)
        to_go = self.horizon - logged.step
        expected = self.values[to_go, cells, actions]
        later = (then * self.values[to_go - 1, following]).sum(axis=1) * ~rows.terminated
        first = logged.offsets[:-1]
        surprises = np.add.reduceat(weights * (logged.rewards + later - expected), first)
        starts = (now[first] * self.values[self.horizon, cells[first]]).sum(axis=1)
        return UnitFigures(float((starts + surprises).mean()), float(returns(logged).mean()))


def _within(trajectories: Trajectories, horizon: int) -> tuple[Episodes, Transitions]:
    """Return the first ``horizon`` steps of each trajectory."""
    lengths = np.minimum(trajectories.lengths, horizon)
    rows = trajectories.transitions(TRAJECTORY)
    step = np.arange(len(rows.rewards)) - np.repeat(trajectories.offsets[:-1], trajectories.lengths)
    kept = rows.select(step < horizon)
    ends = np.cumsum(lengths)
    episodes = Episodes(
        rewards=kept.rewards.astype(np.float64),
        offsets=np.concatenate([[0], ends]),
        truncated=~kept.terminated[ends - 1],
    )
    return episodes, kept
