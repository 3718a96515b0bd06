"""The loss of a fragment's steps, each given the step before it, and what networks are shown."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distributed_privrl.data.fragments import END_BITS, FragmentLayout

_FAR = 3.0
"""Standardised numbers of the step before are shown up to here, as -1 to 1."""


@dataclass(frozen=True, kw_only=True)
class StepLoss:
    """The negative log-likelihood of a fragment's steps over H, and that of its first observation.

    The divisor is the same for every fragment, so that all steps weigh alike: a mean over the steps
    that a fragment has would make ends too likely, most of all where trajectories are short. Steps
    after an end do not count. An observation counts at an episode's first step alone, because
    every other one is where the step before led to, and there with a weight of its own: all that
    follows begins from it.

    Args:
        layout: where the parts of a fragment lie in its row.
        observations: variables of an observation, the first of a step.
        first_weight: of an episode's first observation, where a step has 1/H.
        tick: what a step adds to the clock.
    """

    layout: FragmentLayout
    observations: int
    first_weight: float
    tick: float

    @property
    def draw_count(self) -> int:
        """Nothing is drawn for it."""
        return 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, W)``; ``draws`` is ``(M, 0)``."""
        condition, steps, _ = self.layout.split(rows)
        before = torch.cat((condition.unsqueeze(1), steps[:, :-1]), dim=1)
        linked = (condition != 0).any(dim=1)
        first = torch.zeros(steps.shape[:2], dtype=rows.dtype, device=rows.device)
        first[:, 0] = (~linked).to(rows.dtype)
        passed = torch.arange(self.layout.horizon, dtype=rows.dtype, device=rows.device)
        start = torch.where(linked, condition[:, -1], -1.0)
        clock = (start[:, None] + self.tick * passed).clamp(max=1.0)
        losses = module(steps, step_context(before, first, clock))
        own = (live_steps(steps) * losses[..., self.observations :].sum(dim=-1)).sum(
            dim=1
        ) / self.layout.horizon
        begun = first[:, 0] * losses[:, 0, : self.observations].sum(dim=-1)
        total: Tensor = own + self.first_weight * begun
        return total


def live_steps(steps: Tensor) -> Tensor:
    """Return 1 for each step ``(..., H)`` up to an end and with it, 0 for those after it.

    Args:
        steps: ``(..., H, S)``.
    """
    ends = (steps[..., -END_BITS:] > 0).any(dim=-1)
    return 1 - torch.nn.functional.pad(ends, (1, -1)).to(steps.dtype).cummax(dim=-1).values


def step_context(before: Tensor, first: Tensor, clock: Tensor) -> Tensor:
    """Return what networks are shown beside a step's own columns, ``(..., S + 1)``.

    Args:
        before: the step before, or anything at an episode's first step, ``(..., S)``.
        first: 1 at an episode's first step, 0 elsewhere, ``(...)``.
        clock: how much of the time limit has passed, from -1 to 1, ``(...)``.
    """
    shown = before[..., :-1].clamp(-_FAR, _FAR) / _FAR * (1 - first).unsqueeze(-1)
    return torch.cat((shown, first.unsqueeze(-1), clock.unsqueeze(-1)), dim=-1)
