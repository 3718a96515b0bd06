"""Implicit Q-learning (IQL): three losses on one batch.

Reference: Kostrikov, Nair, Levine, "Offline reinforcement learning with implicit Q-learning"
(2021); hyper-parameters of CORL, which PrivORL uses (section VIII-A).
"""

import copy
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes, cosine_rate
from distributed_privrl.agents.bc import gaussian_imitation_loss
from distributed_privrl.agents.networks import TwinCritic, polyak_update
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import IQLConfig
from distributed_privrl.models.layers import mlp


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


@dataclass(frozen=True)
class IQL(Algorithm[IQLConfig, IQLNetworks]):
    """Implicit Q-learning.

    Args:
        config: hyper-parameters.
    """

    config: IQLConfig = field(default_factory=IQLConfig)
    name: ClassVar[str] = "iql"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> IQLNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return IQLNetworks(sizes.observation, sizes.action, config=self.config, generator=generator)

    def losses(self, networks: IQLNetworks, batch: Batch, *, step: int) -> IQLLosses:
        """Return all three losses; see `Algorithm.losses`."""
        return iql_losses(networks, batch, self.config)

    def parameter_groups(self, networks: IQLNetworks) -> list[dict[str, Any]]:
        """Return values, and the actor, whose learning rate falls."""
        values = [*networks.value.parameters(), *networks.critic.parameters()]
        actor = [*networks.actor.parameters()]
        if self.config.actor == "gaussian":
            actor.append(networks.log_std)
        return [{"params": values}, {"params": actor}]

    def after_step(
        self, networks: IQLNetworks, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Lower the actor's learning rate, move the target critic."""
        optimiser.param_groups[1]["lr"] = cosine_rate(self.config.learning_rate, step, steps)
        polyak_update(networks.target_critic, networks.critic, self.config.polyak)

    def acting(self, networks: IQLNetworks) -> Acting:
        """Return the actor; see `Algorithm.acting`."""
        return Acting(networks.actor)
