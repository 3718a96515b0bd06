"""Implicit Q-learning (IQL): three losses on one batch, and a plain training loop.

Reference: Kostrikov, Nair, Levine, "Offline reinforcement learning with implicit Q-learning"
(2021); hyper-parameters of CORL, which paper 000 uses (section VIII-A).
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from distributed_privrl.agents.networks import TwinCritic, polyak_update
from distributed_privrl.agents.policy import (
    ActionScale,
    Policy,
    encode_observations,
    fit_observations,
)
from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space, part_width
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.models.layers import mlp

_LOG_STD_RANGE = (-20.0, 2.0)
_BATCHES_DRAWN_TOGETHER = 256


@dataclass(frozen=True, kw_only=True)
class IQLConfig:
    """Hyper-parameters; the defaults are CORL's for Maze2D.

    Args:
        hidden: widths of the hidden layers of every network.
        batch_size: rows of a batch (N).
        learning_rate: of Adam; the actor's falls to 0 along a cosine.
        discount: of future rewards.
        expectile: of the state value; .5 is the mean, 1 the maximum.
        beta: inverse temperature of the advantage weights; 0 is behaviour cloning.
        polyak: step of the target critic towards the critic.
        maximum_weight: cap of the advantage weights.
        actor: ``gaussian`` has a standard deviation that does not depend on the state.

    Raises:
        ConfigError: a value is out of range.
    """

    hidden: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    learning_rate: float = 3e-4
    discount: float = 0.99
    expectile: float = 0.7
    beta: float = 3.0
    polyak: float = 0.005
    maximum_weight: float = 100.0
    actor: Literal["gaussian", "deterministic"] = "gaussian"

    def __post_init__(self) -> None:
        for name in ("batch_size", "learning_rate", "maximum_weight"):
            check_positive(name, getattr(self, name))
        for name in ("expectile", "polyak"):
            check_probability(name, getattr(self, name))
        check_probability("discount", self.discount, zero_allowed=True)
        if not self.beta >= 0:
            raise ConfigError(f"beta must be >= 0, got {self.beta!r}")
        if self.actor not in ("gaussian", "deterministic"):
            raise ConfigError(f"actor must be gaussian or deterministic, got {self.actor!r}")


class Batch(NamedTuple):
    """Encoded transitions: observations normalised, actions in [-1, 1]."""

    pairs: Tensor
    """(N, O + A): observation and action."""
    observations: Tensor
    """(N, O)."""
    actions: Tensor
    """(N, A)."""
    rewards: Tensor
    """(N,)."""
    next_observations: Tensor
    """(N, O)."""
    continues: Tensor
    """(N,): 0 after a terminal step, else 1."""


class IQLNetworks(nn.Module):
    """The networks of IQL.

    Args:
        observation_width: O.
        action_width: A.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        observation_width: int,
        action_width: int,
        *,
        config: IQLConfig,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.value = mlp((observation_width, *config.hidden, 1), generator)
        self.critic = TwinCritic(observation_width + action_width, config.hidden, generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor = mlp((observation_width, *config.hidden, action_width), generator)
        self.log_std = nn.Parameter(torch.zeros(action_width))


class IQLLosses(NamedTuple):
    """One number a row; each loss moves its own network only, so their sum may go backward."""

    value: Tensor
    """(N,): expectile regression of the state value."""
    critic: Tensor
    """(N,): squared Bellman error, the mean of both critics."""
    actor: Tensor
    """(N,): advantage-weighted imitation."""


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Return |expectile - 1(difference < 0)| difference^2, of the same shape.

    Reference: Kostrikov et al., equation 5.
    """
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return weight * difference.square()


def gaussian_imitation_loss(mean: Tensor, log_std: Tensor, actions: Tensor) -> Tensor:
    """Return the negative log-likelihood of each action ``(N,)``.

    Args:
        mean: (N, A).
        log_std: (A,).
        actions: (N, A).
    """
    log_std = log_std.clamp(*_LOG_STD_RANGE)
    squares = ((actions - mean) * torch.exp(-log_std)).square()
    constant = log_std.sum() + 0.5 * actions.shape[1] * math.log(2 * math.pi)
    return 0.5 * squares.sum(dim=1) + constant


def advantage_weights(advantage: Tensor, *, beta: float, maximum: float) -> Tensor:
    """Return min(exp(beta advantage), maximum), without a gradient.

    Reference: Kostrikov et al., equation 7.
    """
    return torch.exp(beta * advantage.detach()).clamp(max=maximum)


def iql_losses(networks: IQLNetworks, batch: Batch, config: IQLConfig) -> IQLLosses:
    """Return the three losses of each row, none of which couples rows.

    Args:
        networks: value, twin critic, its target, actor.
        batch: N encoded transitions.
        config: hyper-parameters.

    Reference: Kostrikov et al., equations 5 to 7 and algorithm 1.
    """
    with torch.no_grad():
        target_value = torch.minimum(*networks.target_critic(batch.pairs))
        next_value = networks.value(batch.next_observations).squeeze(-1)
        bellman_target = batch.rewards + config.discount * batch.continues * next_value
    advantage = target_value - networks.value(batch.observations).squeeze(-1)
    first, second = networks.critic(batch.pairs)
    squared_errors = (first - bellman_target).square() + (second - bellman_target).square()
    mean = networks.actor(batch.observations).tanh()
    if config.actor == "gaussian":
        imitation = gaussian_imitation_loss(mean, networks.log_std, batch.actions)
    else:
        imitation = (mean - batch.actions).square().sum(dim=1)
    weights = advantage_weights(advantage, beta=config.beta, maximum=config.maximum_weight)
    return IQLLosses(
        value=expectile_loss(advantage, config.expectile),
        critic=squared_errors / 2,
        actor=weights * imitation,
    )


def cosine_rate(initial: float, step: int, steps: int) -> float:
    """Return the learning rate after ``step`` of ``steps`` steps, from ``initial`` down to 0."""
    return initial * (1 + math.cos(math.pi * step / steps)) / 2


def train_iql(
    transitions: Transitions,
    *,
    observation_space: Space,
    action_space: Space,
    steps: int,
    streams: Streams,
    config: IQLConfig | None = None,
    on_evaluation: Callable[[int, Policy], None] | None = None,
    evaluate_every: int = 5000,
    progress: Callable[[int], None] | None = None,
) -> Policy:
    """Train IQL on ``transitions`` and return its policy.

    Observations are normalised by these transitions alone.

    Args:
        transitions: the training data.
        observation_space: Box, or Discrete (one-hot).
        action_space: Box with finite bounds.
        steps: gradient steps.
        streams: public random streams; the same streams give the same policy.
        config: hyper-parameters; default `IQLConfig`.
        on_evaluation: called with the step and the policy (which goes on learning) every
            ``evaluate_every`` steps.
        evaluate_every: gradient steps between calls of ``on_evaluation``.
        progress: called with the step after every step.

    Raises:
        ConfigError: no transitions, or spaces that IQL cannot use.
    """
    config = config or IQLConfig()
    check_positive("steps", steps)
    check_positive("evaluate_every", evaluate_every)
    if not len(transitions):
        raise ConfigError("transitions is empty: there is nothing to train on")
    normalisation = fit_observations(observation_space, transitions.observations)
    widths = part_width(observation_space), part_width(action_space)
    generator = torch.Generator().manual_seed(streams.integer("initial weights"))
    networks = IQLNetworks(*widths, config=config, generator=generator)
    policy = Policy(
        networks.actor,
        normalisation=normalisation,
        observation_space=observation_space,
        action_space=action_space,
    )
    batches = _batches(_packed(transitions, policy), widths, config.batch_size, streams)
    optimiser = _optimiser(networks, config)
    for step in range(1, steps + 1):
        losses = iql_losses(networks, next(batches), config)
        optimiser.zero_grad()
        torch.autograd.backward((losses.value + losses.critic + losses.actor).mean())
        optimiser.step()
        optimiser.param_groups[1]["lr"] = cosine_rate(config.learning_rate, step, steps)
        polyak_update(networks.target_critic, networks.critic, config.polyak)
        if on_evaluation is not None and step % evaluate_every == 0:
            on_evaluation(step, policy)
        if progress is not None:
            progress(step)
    return policy


def _optimiser(networks: IQLNetworks, config: IQLConfig) -> torch.optim.Optimizer:
    values = [*networks.value.parameters(), *networks.critic.parameters()]
    actor = [*networks.actor.parameters()]
    if config.actor == "gaussian":
        actor.append(networks.log_std)
    return torch.optim.Adam(
        [{"params": values}, {"params": actor}], lr=config.learning_rate, fused=True
    )


def _packed(transitions: Transitions, policy: Policy) -> Tensor:
    """Return all transitions as rows (observation, action, next observation, reward, continues)."""
    space, normalisation = policy.observation_space, policy.normalisation
    columns = (
        encode_observations(space, transitions.observations, normalisation),
        ActionScale.of(policy.action_space).to_unit(transitions.actions),
        encode_observations(space, transitions.next_observations, normalisation),
        transitions.rewards[:, None],
        1 - transitions.terminated[:, None].astype(np.float32),
    )
    return torch.from_numpy(np.concatenate(columns, axis=1, dtype=np.float32))


def _batches(
    rows: Tensor, widths: tuple[int, int], batch_size: int, streams: Streams
) -> Iterator[Batch]:
    """Yield batches drawn with replacement, one gather each."""
    observation_width, action_width = widths
    pair = observation_width + action_width
    generator = torch.Generator().manual_seed(streams.integer("batches"))
    while True:
        shape = (_BATCHES_DRAWN_TOGETHER, batch_size)
        for indices in torch.randint(len(rows), shape, generator=generator):
            batch = rows.index_select(0, indices)
            yield Batch(
                pairs=batch[:, :pair],
                observations=batch[:, :observation_width],
                actions=batch[:, observation_width:pair],
                rewards=batch[:, -2],
                next_observations=batch[:, pair:-2],
                continues=batch[:, -1],
            )
