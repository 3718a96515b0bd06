"""The loss of a fragment's tokens, each given those before it."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distributed_privrl.data.fragments import FragmentLayout
from distributed_privrl.methods.privorl.step_loss import live_steps
from distributed_privrl.methods.privorl.step_tokens import StepTokens


@dataclass(frozen=True, kw_only=True)
class TokenLoss:
    """The negative log-likelihood of a fragment's steps over H, and that of its first observation.

    As in `step_loss.StepLoss`: all steps weigh alike, those after an end do not count, and a first
    observation counts at an episode's first step alone, with a weight of its own.

    Args:
        layout: where the parts of a fragment lie in its row.
        tokens: makes categories of steps.
        first_weight: of an episode's first observation, where a step has 1/H.
    """

    layout: FragmentLayout
    tokens: StepTokens
    first_weight: float

    @property
    def draw_count(self) -> int:
        """Nothing is drawn for it."""
        return 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, W)``; ``draws`` is ``(M, 0)``."""
        condition, steps, _ = self.layout.split(rows)
        linked, start = fragment_start(condition)
        begun = steps[:, :1, : self.tokens.width]
        observations = torch.cat((begun, self.tokens.reached(steps)), dim=1)
        of_observations, of_others = module(
            self.tokens.observed(observations), self.tokens.others(steps), start
        )
        of_steps = of_observations[:, 1:].sum(dim=-1) + of_others.sum(dim=-1)
        own = (live_steps(steps) * of_steps).sum(dim=1) / self.layout.horizon
        first = (~linked).to(rows.dtype) * of_observations[:, 0].sum(dim=-1)
        total: Tensor = own + self.first_weight * first
        return total


def fragment_start(condition: Tensor) -> tuple[Tensor, Tensor]:
    """Return which fragments follow another one ``(N,)``, and what stands before tokens ``(N, 2)``.

    Args:
        condition: linking steps ``(N, S)``, zeros where an episode begins.

    Returns:
        whether there is one; and 1 where there is none, beside the clock from -1 to 1.
    """
    linked = (condition != 0).any(dim=1)
    clock = torch.where(linked, condition[:, -1], -1.0)
    return linked, torch.stack(((~linked).to(condition.dtype), clock), dim=1)
