"""The pessimistic model: private dynamics as an environment, thousands of rows in parallel.

Everything here is post-processing of the ensemble and of public facts.

Reference: PriMORL, section 4.3 and algorithm 4.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple

import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds, check_bounds_columns
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.methods.primorl.start_states import StartStates

Penalty = Literal["max_aleatoric", "max_pairwise_difference", "none"]


class Range(NamedTuple):
    """Where the values of some columns lie, ``(W,)`` each."""

    low: Tensor
    high: Tensor

    def clip(self, values: Tensor) -> Tensor:
        """Return ``values`` ``(..., W)`` moved inside."""
        return torch.minimum(torch.maximum(values, self.low), self.high)

    def to(self, device: str) -> "Range":
        """Return the same on ``device``."""
        return Range(self.low.to(device), self.high.to(device))


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelFacts:
    """What is public about an ensemble's inputs and targets.

    Args:
        input_offset: (O + A,), of observation and action.
        input_scale: (O + A,).
        target_offset: (O + 1,), of state difference and reward.
        target_scale: (O + 1,).
        observations: bounds.
        actions: bounds.
        reward: bounds, (1,) each.
    """

    input_offset: Tensor
    input_scale: Tensor
    target_offset: Tensor
    target_scale: Tensor
    observations: Range
    actions: Range
    reward: Range

    @classmethod
    def of(cls, encoder: TransitionEncoder, bounds: Bounds) -> "ModelFacts":
        """Return the facts of rows that ``encoder`` makes, with public ``bounds``.

        Raises:
            ConfigError: not Boxes, rows without state differences, coded rewards or actions, or
                bounds of other columns.
        """
        spaces, coding = (encoder.observation_space, encoder.action_space), encoder.coding
        if not all(isinstance(space, Box) for space in spaces):
            raise ConfigError(f"a dynamics model needs Box spaces, got {spaces[0]} and {spaces[1]}")
        if coding.next_observation != "difference" or coding.reward_levels or coding.action_margin:
            raise ConfigError(
                "a dynamics model needs rows with next_observation='difference', plain rewards and"
                f" plain actions, got {coding}"
            )
        check_bounds_columns(bounds, encoder.layout)
        blocks = encoder.layout.blocks
        parts = {
            name: tuple(
                torch.from_numpy(side[block]).float()
                for side in (encoder.scaling.offset, encoder.scaling.scale)
            )
            for name, block in blocks.items()
        }
        inputs, targets = ("observation", "action"), ("next_observation", "reward")

        def joined(names: tuple[str, str], side: int) -> Tensor:
            return torch.cat([parts[name][side] for name in names])

        def limits(name: str) -> Range:
            sides = (bounds.low[blocks[name]], bounds.high[blocks[name]])
            return Range(*(torch.from_numpy(side).float() for side in sides))

        return cls(
            input_offset=joined(inputs, 0),
            input_scale=joined(inputs, 1),
            target_offset=joined(targets, 0),
            target_scale=joined(targets, 1),
            observations=limits("observation"),
            actions=limits("action"),
            reward=limits("reward"),
        )

    def to(self, device: str) -> "ModelFacts":
        """Return the same on ``device``."""
        return ModelFacts(**{own.name: getattr(self, own.name).to(device) for own in fields(self)})

    @property
    def observation_width(self) -> int:
        """The number O of columns of an observation."""
        return len(self.observations.low)


class Step(NamedTuple):
    """What a model says of M rows."""

    next_observations: Tensor
    """(M, O), raw, inside the public bounds."""
    rewards: Tensor
    """(M,), raw, inside the public bounds; without a penalty."""
    uncertainty: Tensor
    """(M,), of standardised targets."""


def max_aleatoric(log_variance: Tensor) -> Tensor:
    """Return the largest Frobenius norm of a member's standard deviations ``(M,)``.

    Of the deviations, not of the covariance as the formula has it: a penalty in units of the
    targets, as MOPO's code takes it.

    Args:
        log_variance: (N, M, T), of standardised targets.

    Reference: PriMORL, section 4.3.2, u_MA; Yu et al. 2020.
    """
    return log_variance.exp().sum(dim=2).sqrt().amax(dim=0)


def max_pairwise_difference(mean: Tensor) -> Tensor:
    """Return the largest distance between two members' means ``(M,)``; 0 for a single member.

    Args:
        mean: (N, M, T), of standardised targets.

    Reference: PriMORL, section 4.3.2, u_MPD; Kidambi et al. 2020.
    """
    largest = mean.new_zeros(mean.shape[1])
    for index in range(1, len(mean)):
        distances = torch.linalg.vector_norm(mean[index:] - mean[:-index], dim=2)
        largest = torch.maximum(largest, distances.amax(dim=0))
    return largest


@dataclass(frozen=True, kw_only=True, eq=False)
class PessimisticModel:
    """An ensemble as a model of an environment, its rewards lowered by lambda u.

    It computes where ensemble and facts are. Members and noise are drawn on the CPU, so that they
    are the same on every device.

    Args:
        ensemble: standardised (observation, action) ``(M, I)`` to the mean and log-variance
            ``(N, M, T)`` of the standardised (state difference, reward).
        facts: offsets, scales and bounds.
        penalty: which uncertainty u.
        penalty_weight: lambda, in units of the reward.
        terminates: next observations (M, O) to terminal (M,), where the rule is public; None:
            nothing is terminal.

    Raises:
        ConfigError: a weight that is negative or not finite, or an unknown penalty.
    """

    ensemble: nn.Module
    facts: ModelFacts
    penalty: Penalty = "max_aleatoric"
    penalty_weight: float = 0.0
    terminates: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.penalty_weight < float("inf"):
            raise ConfigError(f"penalty_weight must be >= 0, got {self.penalty_weight!r}")
        if self.penalty not in ("max_aleatoric", "max_pairwise_difference", "none"):
            raise ConfigError(
                "penalty must be max_aleatoric, max_pairwise_difference or none, got"
                f" {self.penalty!r}"
            )

    def predict(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance ``(N, M, T)`` of the standardised targets.

        Args:
            observations: (M, O), raw.
            actions: (M, A), raw.
        """
        facts = self.facts
        inputs = torch.cat((observations, actions), dim=1)
        found: tuple[Tensor, Tensor] = self.ensemble(
            (inputs - facts.input_offset) / facts.input_scale
        )
        return found

    def uncertainty(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return u ``(M,)`` of what `predict` returned."""
        if self.penalty == "max_aleatoric":
            return max_aleatoric(log_variance)
        if self.penalty == "max_pairwise_difference":
            return max_pairwise_difference(mean)
        return mean.new_zeros(mean.shape[1])

    @torch.no_grad()
    def sample(self, observations: Tensor, actions: Tensor, generator: torch.Generator) -> Step:
        """Return a draw from the model: each row's from one member, chosen uniformly.

        Args:
            observations: (M, O), raw.
            actions: (M, A), raw.
            generator: source of members and noise.
        """
        facts, rows, device = self.facts, len(observations), observations.device
        mean, log_variance = self.predict(observations, actions)
        member = torch.randint(len(mean), (rows,), generator=generator).to(device)
        chosen = (member, torch.arange(rows, device=device))
        noise = torch.randn(rows, mean.shape[2], generator=generator).to(device)
        standardised = torch.addcmul(mean[chosen], (0.5 * log_variance[chosen]).exp(), noise)
        targets = torch.addcmul(facts.target_offset, facts.target_scale, standardised)
        difference, rewards = targets[:, :-1], targets[:, -1:]
        return Step(
            next_observations=facts.observations.clip(observations + difference),
            rewards=facts.reward.clip(rewards).squeeze(1),
            uncertainty=self.uncertainty(mean, log_variance),
        )

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return next observations (M, O), rewards minus lambda u (M,), and terminated (M,).

        Args:
            observations: (M, O), raw.
            actions: (M, A), raw.
            generator: source of members and noise.

        Reference: PriMORL, equation 2; algorithm 4, line 7.
        """
        found = self.sample(observations, actions, generator)
        after = found.next_observations
        over = torch.zeros(len(after), dtype=torch.bool, device=after.device)
        if self.terminates is not None:
            over = self.terminates(after)
        return after, found.rewards - self.penalty_weight * found.uncertainty, over


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelEnvironment:
    """The pessimistic model with its start states: an `agents.sac.BatchEnvironment`.

    Args:
        model: steps.
        start_states: where rows begin; never private rows.
    """

    model: PessimisticModel
    start_states: StartStates

    def reset(self, count: int, generator: torch.Generator) -> Tensor:
        """Return start observations ``(count, O)``, raw, inside the public bounds."""
        bounds = self.model.facts.observations
        return bounds.clip(self.start_states.sample(count, generator).to(bounds.low.device))

    def step(
        self, observations: Tensor, actions: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what `PessimisticModel.step` does."""
        return self.model.step(observations, actions, generator)
