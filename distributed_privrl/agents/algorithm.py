"""What every agent shares: a batch, hyper-parameters, and what an algorithm has to say.

All losses of a step are taken at the same weights, and one optimiser steps once: gradients of one
loss never reach what another trains, and parameters without a gradient stay where they are.
"""

import abc
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from distributed_privrl.agents.names import check_actions
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import AgentConfig
from distributed_privrl.data.spaces import Space


class Batch(NamedTuple):
    """Encoded transitions: observations normalised, actions in [-1, 1] or one-hot."""

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
    noise: Tensor = torch.empty(0)
    """(N, Z): standard normal draws of each row, as many as the losses need."""


class Sizes(NamedTuple):
    """What the networks are made for."""

    observation: int
    """O, numbers of an encoded observation."""
    action: int
    """A, numbers of an encoded action."""
    discrete: bool = False
    """Whether actions are one-hot."""


def cosine_rate(initial: float, step: int, steps: int) -> float:
    """Return the learning rate after ``step`` of ``steps`` steps, from ``initial`` down to 0."""
    return initial * (1 + math.cos(math.pi * step / steps)) / 2


ConfigT = TypeVar("ConfigT", bound=AgentConfig)
NetworksT = TypeVar("NetworksT", bound=nn.Module)


@dataclass(frozen=True)
class Algorithm(abc.ABC, Generic[ConfigT, NetworksT]):
    """An agent's networks, losses and update rule; a training loop supplies the rest.

    Args:
        config: hyper-parameters.
    """

    config: ConfigT

    name: ClassVar[str]
    """What a configuration calls it."""
    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    """The kinds of action space that it knows."""

    @abc.abstractmethod
    def networks(self, sizes: Sizes, generator: torch.Generator) -> NetworksT:
        """Return new networks.

        Args:
            sizes: what they are made for.
            generator: source of the initial weights.
        """

    def noise_width(self, sizes: Sizes) -> int:
        """Return Z, the normal draws that the losses of a row need."""
        return 0

    @abc.abstractmethod
    def losses(self, networks: NetworksT, batch: Batch, *, step: int) -> tuple[Tensor, ...]:
        """Return the losses that move weights at ``step`` (from 1), one number a row ``(N,)``.

        Each moves its own network only, so their sum may go backward.
        """

    def parameter_groups(self, networks: NetworksT) -> list[dict[str, Any]]:
        """Return Adam's parameter groups."""
        return [{"params": [one for one in networks.parameters() if one.requires_grad]}]

    def after_step(
        self, networks: NetworksT, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Move target networks and learning rates after ``step`` of ``steps`` minibatches."""
        return

    @abc.abstractmethod
    def acting(self, networks: NetworksT) -> Acting:
        """Return those of ``networks`` that a policy acts by; they may go on learning."""

    def check_actions(self, space: Space) -> None:
        """Do nothing if ``space`` is one that the algorithm knows.

        Raises:
            ConfigError: another kind of action space; the message names who knows it.
        """
        check_actions(self.name, self.action_spaces, space)
