"""Behaviour cloning (BC): imitates the data's actions, of any kind.

Reference: PrivORL's code base CORL for Box actions; Pomerleau, "Efficient training of artificial
neural networks for autonomous navigation" (1991).
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import BCConfig
from distributed_privrl.models.layers import mlp

_LOG_STD_RANGE = (-20.0, 2.0)


class BCNetworks(nn.Module):
    """The network of BC.

    Args:
        sizes: what it is made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(self, sizes: Sizes, *, config: BCConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.discrete = sizes.discrete
        self.actor = mlp((sizes.observation, *config.hidden, sizes.action), generator)
        gaussian = config.actor == "gaussian" and not sizes.discrete
        self.log_std = nn.Parameter(torch.zeros(sizes.action), requires_grad=gaussian)


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


def discrete_imitation_loss(logits: Tensor, actions: Tensor) -> Tensor:
    """Return the cross entropy of each action ``(N,)``.

    Args:
        logits: (N, A).
        actions: (N, A), one-hot.
    """
    return -(logits.log_softmax(dim=1) * actions).sum(dim=1)


def bc_loss(networks: BCNetworks, batch: Batch, config: BCConfig) -> Tensor:
    """Return the imitation loss of each row ``(N,)``: likelihood, or mean square over the action.

    Args:
        networks: the actor.
        batch: N encoded transitions.
        config: hyper-parameters.
    """
    output: Tensor = networks.actor(batch.observations)
    if networks.discrete:
        return discrete_imitation_loss(output, batch.actions)
    if config.actor == "gaussian":
        return gaussian_imitation_loss(output.tanh(), networks.log_std, batch.actions)
    return (output.tanh() - batch.actions).square().mean(dim=1)


@dataclass(frozen=True)
class BC(Algorithm[BCConfig, BCNetworks]):
    """Behaviour cloning.

    Args:
        config: hyper-parameters.
    """

    config: BCConfig = field(default_factory=BCConfig)
    name: ClassVar[str] = "bc"
    action_spaces: ClassVar[tuple[type[Any], ...]] = (Box, Discrete)

    def networks(self, sizes: Sizes, generator: torch.Generator) -> BCNetworks:
        """Return a new network; see `Algorithm.networks`."""
        return BCNetworks(sizes, config=self.config, generator=generator)

    def losses(self, networks: BCNetworks, batch: Batch, *, step: int) -> tuple[Tensor, ...]:
        """Return the one loss; see `Algorithm.losses`."""
        return (bc_loss(networks, batch, self.config),)

    def acting(self, networks: BCNetworks) -> Acting:
        """Return the actor; see `Algorithm.acting`."""
        return Acting(networks.actor)
