"""EDAC: soft actor-critic with an ensemble of critics whose action gradients differ.

Reference: An, Moon, Kim, Song, "Uncertainty-based offline reinforcement learning with diversified
Q-ensemble" (2021), algorithm 1; hyper-parameters of CORL, which PrivORL uses.
"""

import copy
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.ensemble import EnsembleCritic
from distributed_privrl.agents.networks import polyak_update
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import EDACConfig
from distributed_privrl.agents.squashed_gaussian import (
    SquashedGaussian,
    squashed_gaussian,
    temperature_loss,
)
from distributed_privrl.models.layers import mlp

LOG_STD_RANGE = (-5.0, 2.0)
_HIDDEN_BIAS = 0.1
_LAST_LAYER = 1e-3
_SLOPE_FLOOR = 1e-10


class EDACNetworks(nn.Module):
    """The networks of EDAC.

    Args:
        sizes: what they are made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(self, sizes: Sizes, *, config: EDACConfig, generator: torch.Generator) -> None:
        super().__init__()
        pair = sizes.observation + sizes.action
        self.actor = mlp((sizes.observation, *config.hidden, 2 * sizes.action), generator)
        self.critic = EnsembleCritic(pair, config.hidden, config.critics, generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.zeros(()))
        *hidden, output = (layer for layer in self.actor if isinstance(layer, nn.Linear))
        with torch.no_grad():
            for layer in hidden:
                layer.bias.fill_(_HIDDEN_BIAS)
            for parameter in output.parameters():
                parameter.uniform_(-_LAST_LAYER, _LAST_LAYER, generator=generator)

    def distribution(self, observations: Tensor) -> SquashedGaussian:
        """Return the actor's distributions for ``(N, O)``."""
        return squashed_gaussian(self.actor(observations), log_std_range=LOG_STD_RANGE)


class EDACLosses(NamedTuple):
    """One number a row; each loss moves its own weights only, so their sum may go backward."""

    temperature: Tensor
    """(N,): holds the entropy at -A."""
    actor: Tensor
    """(N,): soft policy improvement against the lowest critic."""
    critic: Tensor
    """(N,): squared Bellman errors, the sum over critics, and their slopes' likeness."""


def slope_likeness(slopes: Tensor) -> Tensor:
    """Return the sum over pairs of critics of their slopes' cosine, over E - 1, for each row.

    Args:
        slopes: (E, N, A).

    The sum over pairs of <u_i, u_j> is |sum u_i|^2 - sum |u_i|^2.

    Reference: An et al., algorithm 1: the ensemble similarity of the diversity term.
    """
    norms: Tensor = torch.linalg.vector_norm(slopes, dim=2, keepdim=True)
    directions = slopes / (norms + _SLOPE_FLOOR)
    both = directions.sum(dim=0).square().sum(dim=1) - directions.square().sum(dim=(0, 2))
    return both / (len(slopes) - 1)


def edac_losses(
    networks: EDACNetworks,
    batch: Batch,
    config: EDACConfig,
    *,
    target_entropy: float | None = None,
) -> EDACLosses:
    """Return the three losses of each row, none of which couples rows.

    Args:
        networks: actor, critics, their targets, temperature.
        batch: N encoded transitions; noise ``(N, 2 A)``.
        config: hyper-parameters.
        target_entropy: of the actor; None: -A.

    Reference: An et al., algorithm 1.
    """
    action_width = batch.actions.shape[1]
    entropy = -action_width if target_entropy is None else target_entropy
    noise, next_noise = batch.noise.chunk(2, dim=1)
    temperature = networks.log_temperature.detach().exp()
    with torch.no_grad():
        next_actions, next_log = networks.distribution(batch.next_observations).sample(next_noise)
        next_pairs = torch.cat((batch.next_observations, next_actions), dim=1)
        next_value = networks.target_critic(next_pairs).amin(dim=0) - temperature * next_log
        bellman_target = batch.rewards + config.discount * batch.continues * next_value
    if config.eta:
        values, slopes = networks.critic.values_and_slopes(batch.pairs, action_width)
        likeness = config.eta * slope_likeness(slopes)
    else:
        values, likeness = networks.critic(batch.pairs), torch.zeros_like(bellman_target)
    actions, log_probability = networks.distribution(batch.observations).sample(noise)
    return EDACLosses(
        temperature=temperature_loss(networks.log_temperature, log_probability, entropy),
        actor=temperature * log_probability - networks.critic.lowest(batch.observations, actions),
        critic=(values - bellman_target).square().sum(dim=0) + likeness,
    )


@dataclass(frozen=True)
class EDAC(Algorithm[EDACConfig, EDACNetworks]):
    """Ensemble-diversified actor-critic.

    Args:
        config: hyper-parameters.
    """

    config: EDACConfig = field(default_factory=EDACConfig)
    name: ClassVar[str] = "edac"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> EDACNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return EDACNetworks(sizes, config=self.config, generator=generator)

    def noise_width(self, sizes: Sizes) -> int:
        """Return the draws of an action and of a next one."""
        return 2 * sizes.action

    def losses(self, networks: EDACNetworks, batch: Batch, *, step: int) -> EDACLosses:
        """Return all three losses; see `Algorithm.losses`."""
        return edac_losses(networks, batch, self.config)

    def after_step(
        self, networks: EDACNetworks, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Move the target critics."""
        polyak_update(networks.target_critic, networks.critic, self.config.polyak)

    def acting(self, networks: EDACNetworks) -> Acting:
        """Return the actor, whose first A columns are the mean; see `Algorithm.acting`."""
        return Acting(networks.actor)
