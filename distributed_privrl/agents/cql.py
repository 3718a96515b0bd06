"""Conservative Q-learning (CQL) for Box actions, on soft actor-critic.

Reference: Kumar, Zhou, Tucker, Levine, "Conservative Q-learning for offline reinforcement learning"
(2020), equation 4 and appendix F; hyper-parameters of CORL. No Lagrange multiplier.
"""

import copy
import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.networks import TwinCritic, polyak_update, without_weights
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import CQLConfig
from distributed_privrl.agents.squashed_gaussian import (
    SquashedGaussian,
    squashed_gaussian,
    temperature_loss,
)
from distributed_privrl.models.layers import mlp

_LOG_STD_RANGE = (-20.0, 2.0)
_LOG_STD_OFFSET = -1.0


class CQLNetworks(nn.Module):
    """The networks of CQL.

    Args:
        sizes: what they are made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(self, sizes: Sizes, *, config: CQLConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.actor = mlp((sizes.observation, *config.hidden, 2 * sizes.action), generator)
        self.critic = TwinCritic(sizes.observation + sizes.action, config.hidden, generator)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def distribution(self, observations: Tensor) -> SquashedGaussian:
        """Return the actor's distributions for ``(N, O)``."""
        return squashed_gaussian(
            self.actor(observations), log_std_range=_LOG_STD_RANGE, log_std_offset=_LOG_STD_OFFSET
        )


class CQLLosses(NamedTuple):
    """One number a row; each loss moves its own weights only, so their sum may go backward."""

    temperature: Tensor
    """(N,): holds the entropy at -A."""
    actor: Tensor
    """(N,): soft policy improvement against the lower critic."""
    critic: Tensor
    """(N,): squared Bellman error and conservative term, the sum of both critics."""


class CQLNoise(NamedTuple):
    """The draws of a row, by what they are for."""

    actor: Tensor
    """(N, A)."""
    next: Tensor
    """(N, A)."""
    sampled: Tensor
    """(N, K, A), for actions of the policy here."""
    next_sampled: Tensor
    """(N, K, A), for actions of the policy at the next observation."""
    uniform: Tensor
    """(N, K, A), in [-1, 1]."""

    @classmethod
    def of(cls, noise: Tensor, action_width: int) -> "CQLNoise":
        """Return the parts of standard normal ``noise`` ``(N, (3 K + 2) A)``."""
        actor, following, rest = noise.tensor_split((action_width, 2 * action_width), dim=1)
        parts = rest.reshape(len(rest), 3, -1, action_width)
        sampled, next_sampled, last = parts.unbind(dim=1)
        return cls(actor, following, sampled, next_sampled, torch.erf(last / math.sqrt(2)))


def cql_losses(networks: CQLNetworks, batch: Batch, config: CQLConfig) -> CQLLosses:
    """Return the three losses of each row, none of which couples rows.

    Args:
        networks: actor, twin critic, its target, temperature.
        batch: N encoded transitions; noise ``(N, (3 K + 2) A)``.
        config: hyper-parameters.

    Reference: Kumar et al., equation 4, with the sampled actions of appendix F; targets draw the
    next action, as in the authors' code (d3rlpy 2.8 takes the distribution's mean).
    """
    action_width = batch.actions.shape[1]
    noise = CQLNoise.of(batch.noise, action_width)
    temperature = networks.log_temperature.detach().exp()
    here = networks.distribution(batch.observations)
    with torch.no_grad():
        following = networks.distribution(batch.next_observations)
        next_actions, next_log = following.sample(noise.next)
        next_pairs = torch.cat((batch.next_observations, next_actions), dim=1)
        next_value = torch.minimum(*networks.target_critic(next_pairs))
        if config.entropy_backup:
            next_value = next_value - temperature * next_log
        bellman_target = batch.rewards + config.discount * batch.continues * next_value
        proposals, corrections = _proposals(here.detach(), following, noise)
    critic = torch.zeros_like(bellman_target)
    for values, proposed in _values(networks.critic, batch, proposals):
        highest = (proposed - corrections).logsumexp(dim=1)
        critic = critic + (values - bellman_target).square() + config.alpha * (highest - values)
    actions, log_probability = here.sample(noise.actor)
    pairs = torch.cat((batch.observations, actions), dim=1)
    lowest = torch.minimum(*without_weights(networks.critic, pairs))
    return CQLLosses(
        temperature=temperature_loss(networks.log_temperature, log_probability, -action_width),
        actor=temperature * log_probability - lowest,
        critic=critic,
    )


def _proposals(
    here: SquashedGaussian, following: SquashedGaussian, noise: CQLNoise
) -> tuple[Tensor, Tensor]:
    """Return actions ``(N, 3 K, A)`` and the logarithms of their densities ``(N, 3 K)``."""
    actions, log_here = here.sample(noise.sampled)
    next_actions, log_following = following.sample(noise.next_sampled)
    action_width = actions.shape[2]
    log_uniform = torch.full_like(log_here, -action_width * math.log(2))
    return (
        torch.cat((noise.uniform, actions, next_actions), dim=1),
        torch.cat((log_uniform, log_here, log_following), dim=1),
    )


def _values(critic: TwinCritic, batch: Batch, proposals: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each critic's values of the data's actions ``(N,)`` and of ``proposals``."""
    actions = torch.cat((batch.actions.unsqueeze(1), proposals), dim=1)
    observations = batch.observations.unsqueeze(1).expand(-1, actions.shape[1], -1)
    rows = torch.cat((observations, actions), dim=2).flatten(0, 1)
    both = (values.unflatten(0, actions.shape[:2]) for values in critic(rows))
    return [(values[:, 0], values[:, 1:]) for values in both]


@dataclass(frozen=True)
class CQL(Algorithm[CQLConfig, CQLNetworks]):
    """Conservative Q-learning for Box actions.

    Args:
        config: hyper-parameters.
    """

    config: CQLConfig = field(default_factory=CQLConfig)
    name: ClassVar[str] = "cql"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> CQLNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return CQLNetworks(sizes, config=self.config, generator=generator)

    def noise_width(self, sizes: Sizes) -> int:
        """Return the draws of an action, a next one, and three times K sampled ones."""
        return (3 * self.config.sampled_actions + 2) * sizes.action

    def losses(self, networks: CQLNetworks, batch: Batch, *, step: int) -> CQLLosses:
        """Return all three losses; see `Algorithm.losses`."""
        return cql_losses(networks, batch, self.config)

    def parameter_groups(self, networks: CQLNetworks) -> list[dict[str, Any]]:
        """Return critics, and actor and temperature with a learning rate of their own."""
        actor = [*networks.actor.parameters(), networks.log_temperature]
        return [
            {"params": [*networks.critic.parameters()]},
            {"params": actor, "lr": self.config.actor_learning_rate},
        ]

    def after_step(
        self, networks: CQLNetworks, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Move the target critics."""
        polyak_update(networks.target_critic, networks.critic, self.config.polyak)

    def acting(self, networks: CQLNetworks) -> Acting:
        """Return the actor, whose first A columns are the mean; see `Algorithm.acting`."""
        return Acting(networks.actor)
