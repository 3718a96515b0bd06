"""Action values of Discrete actions: what discrete CQL and BCQ share.

Reference: van Hasselt, Guez, Silver, "Deep reinforcement learning with double Q-learning" (2016).
"""

import copy
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from gymnasium.spaces import Discrete
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from distributed_privrl.agents.algorithm import Algorithm, Batch, Sizes
from distributed_privrl.agents.networks import polyak_update
from distributed_privrl.agents.settings import DiscreteValueConfig
from distributed_privrl.models.layers import mlp


class DiscreteValueNetworks(nn.Module):
    """Action values and their target.

    Args:
        sizes: what they are made for.
        config: sizes.
        generator: source of the initial weights.
    """

    def __init__(
        self, sizes: Sizes, *, config: DiscreteValueConfig, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.values = mlp((sizes.observation, *config.hidden, sizes.action), generator)
        self.target_values = copy.deepcopy(self.values).requires_grad_(False)


ConfigT = TypeVar("ConfigT", bound=DiscreteValueConfig)
NetworksT = TypeVar("NetworksT", bound=DiscreteValueNetworks)


@dataclass(frozen=True)
class DiscreteValueAlgorithm(Algorithm[ConfigT, NetworksT]):
    """Knows Discrete actions and moves the target of its action values.

    Args:
        config: hyper-parameters.
    """

    action_spaces: ClassVar[tuple[type[Any], ...]] = (Discrete,)

    def after_step(
        self, networks: NetworksT, optimiser: torch.optim.Optimizer, *, step: int, steps: int
    ) -> None:
        """Move the target network if ``step`` is one at which it moves."""
        if step % self.config.target_interval == 0:
            polyak_update(networks.target_values, networks.values, self.config.polyak)


def double_q_loss(
    values: Tensor, next_scores: Tensor, next_values: Tensor, batch: Batch, discount: float
) -> Tensor:
    """Return the Huber loss of the Bellman error of each row ``(N,)``.

    Args:
        values: (N,), of the data's actions.
        next_scores: (N, A), which choose the next action.
        next_values: (N, A), of the target network, which value it.
        batch: N encoded transitions.
        discount: of future rewards.
    """
    with torch.no_grad():
        chosen = next_scores.argmax(dim=1, keepdim=True)
        next_value = next_values.gather(1, chosen).squeeze(1)
        bellman_target = batch.rewards + discount * batch.continues * next_value
    return smooth_l1_loss(values, bellman_target, reduction="none")
