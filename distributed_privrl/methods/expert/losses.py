"""The losses of a run's agent, row by row."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from distributed_privrl.agents.algorithm import Algorithm, Batch


@dataclass(frozen=True, kw_only=True)
class AgentLoss:
    """An agent's losses, summed, of each encoded row; rows never meet in it.

    The target network is part of the module and not trained: it comes behind the parameters.

    Args:
        algorithm: losses.
        columns: name, start and stop of each part of a row.
        reward_offset: of the reward's column, as the agent counts rewards.
        reward_scale: of the reward's column, as the agent counts rewards.
    """

    algorithm: Algorithm[Any, Any]
    columns: tuple[tuple[str, int, int], ...]
    reward_offset: float
    reward_scale: float
    draw_count: int = 0

    def batch(self, rows: Tensor) -> Batch:
        """Return encoded rows ``(M, D)`` as the agent reads them.

        Rewards are scaled and not shifted: what an episode earns must not depend on its length
        where rewards do not.
        """
        part = {name: rows[:, start:stop] for name, start, stop in self.columns}
        actions = (part["action"] + 1) / 2
        return Batch(
            pairs=torch.cat((part["observation"], actions), dim=1),
            observations=part["observation"],
            actions=actions,
            rewards=part["reward"][:, 0] * self.reward_scale + self.reward_offset,
            next_observations=part["next_observation"],
            continues=(1 - part["terminal"][:, 0]) / 2,
        )

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the loss of each row, ``(M, D), (M, 0) -> (M,)``."""
        losses = self.algorithm.losses(module, self.batch(rows), step=1)
        total: Tensor = functools.reduce(torch.add, losses)
        return total
