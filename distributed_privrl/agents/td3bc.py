"""TD3+BC: deterministic policy gradients that stay near the data's actions.

Reference: Fujimoto, Gu, "A minimalist approach to offline reinforcement learning" (2021); TD3 is
Fujimoto, van Hoof, Meger (2018), algorithm 1. Hyper-parameters of CORL, which PrivORL uses.
"""

import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.networks import TwinCritic, polyak_update, without_weights
from distributed_privrl.agents.policy import Acting
from distributed_privrl.agents.settings import TD3BCConfig
from distributed_privrl.models.layers import mlp


class TD3BCNetworks(nn.Module):
    """The networks of TD3+BC.

    Args:
        sizes: what they are made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(self, sizes: Sizes, *, config: TD3BCConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.actor = mlp((sizes.observation, *config.hidden, sizes.action), generator)
        self.critic = TwinCritic(sizes.observation + sizes.action, config.hidden, generator)
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)


def td3bc_critic_loss(networks: TD3BCNetworks, batch: Batch, config: TD3BCConfig) -> Tensor:
    """Return the squared Bellman error of each row ``(N,)``, the sum of both critics.

    Args:
        networks: critics and targets.
        batch: N encoded transitions; noise ``(N, A)``.
        config: hyper-parameters.

    Reference: Fujimoto et al. (2018), algorithm 1.
    """
    with torch.no_grad():
        noise = (config.policy_noise * batch.noise).clamp(-config.noise_clip, config.noise_clip)
        next_actions = (networks.target_actor(batch.next_observations).tanh() + noise).clamp(-1, 1)
        next_pairs = torch.cat((batch.next_observations, next_actions), dim=1)
        next_value = torch.minimum(*networks.target_critic(next_pairs))
        bellman_target = batch.rewards + config.discount * batch.continues * next_value
    first, second = networks.critic(batch.pairs)
    squared_errors: Tensor = (first - bellman_target).square() + (second - bellman_target).square()
    return squared_errors


def td3bc_actor_loss(
    networks: TD3BCNetworks,
    batch: Batch,
    config: TD3BCConfig,
    *,
    value_scale: Tensor | None = None,
) -> Tensor:
    """Return what the actor lowers, for each row ``(N,)``.

    Args:
        networks: the actor and the first critic, which it does not move.
        batch: N encoded transitions.
        config: hyper-parameters.
        value_scale: mean absolute action value, ``()``; default: over these rows. It is the one
            thing that couples rows.

    Reference: Fujimoto, Gu (2021), section 5.
    """
    actions = networks.actor(batch.observations).tanh()
    pairs = torch.cat((batch.observations, actions), dim=1)
    values = without_weights(networks.critic.first, pairs).squeeze(-1)
    scale: Tensor = values.detach().abs().mean() if value_scale is None else value_scale
    loss: Tensor = (actions - batch.actions).square().mean(dim=1) - config.alpha / scale * values
    return loss


@dataclass(frozen=True)
class TD3BC(Algorithm[TD3BCConfig, TD3BCNetworks]):
    """TD3+BC.

    Args:
        config: hyper-parameters.
    """

    config: TD3BCConfig = field(default_factory=TD3BCConfig)
    name: ClassVar[str] = "td3bc"

    def networks(self, sizes: Sizes, generator: torch.Generator) -> TD3BCNetworks:
        """Return new networks; see `Algorithm.networks`."""
        return TD3BCNetworks(sizes, config=self.config, generator=generator)

    def noise_width(self, sizes: Sizes) -> int:
        """Return one draw a number of the action."""
        return sizes.action

    def losses(self, networks: TD3BCNetworks, batch: Batch, *, step: int) -> tuple[Tensor, ...]:
        """Return the critic's loss, every ``policy_delay`` steps the actor's too."""
        critic = td3bc_critic_loss(networks, batch, self.config)
        if step % self.config.policy_delay:
            return (critic,)
        return critic, td3bc_actor_loss(networks, batch, self.config)

    def after_step(
        self, networks: TD3BCNetworks, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Move the target networks when the actor moved."""
        if step % self.config.policy_delay == 0:
            polyak_update(networks.target_critic, networks.critic, self.config.polyak)
            polyak_update(networks.target_actor, networks.actor, self.config.polyak)

    def acting(self, networks: TD3BCNetworks) -> Acting:
        """Return the actor; see `Algorithm.acting`."""
        return Acting(networks.actor)
