"""What the networks of trajectory fragments share: fixed features, the condition.

A step is S numbers: observation, action, reward, next observation, terminal and truncated bit.
"""

import math
from typing import Protocol

import torch
from torch import Tensor, nn

from distributed_privrl.models.layers import Waves, linear
from distributed_privrl.models.sizes import STEP_FEATURES


class FragmentNetwork(Protocol):
    """Predicts the noise in fragments; rows never meet, padded steps are not seen."""

    def __call__(
        self, noisy: Tensor, step_condition: Tensor, condition: Tensor, mask: Tensor
    ) -> Tensor:
        """Return ``(N, H, S)``, zero at padded steps.

        Args:
            noisy: noisy steps ``(N, H, S)``.
            step_condition: diffusion step as a share of all steps ``(N,)``, in (0, 1].
            condition: linking transitions ``(N, S)``; zeros before an episode's first fragment.
            mask: ``(N, H)``; non-zero where a step is real, zero where it is padded.
        """
        ...


def sinusoids(values: Tensor, *, count: int, shortest: float, longest: float) -> Tensor:
    """Return sines and cosines of ``values``, ``(..., count)``.

    Args:
        values: ``(...)``.
        count: sines and cosines together; even.
        shortest: wavelength of the fastest wave.
        longest: wavelength of the slowest wave; those between are spaced geometrically.
    """
    ramp = torch.linspace(0, 1, count // 2, device=values.device, dtype=values.dtype)
    wavelengths = shortest * (longest / shortest) ** ramp
    phases = 2 * math.pi * values.unsqueeze(-1) / wavelengths
    return torch.cat((phases.sin(), phases.cos()), dim=-1)


def step_features(step_condition: Tensor) -> Tensor:
    """Return fixed features ``(N, STEP_FEATURES)`` of diffusion steps ``(N,)`` in (0, 1]."""
    return sinusoids(step_condition, count=STEP_FEATURES, shortest=0.05, longest=4.0)


def condition_features(condition: Tensor, waves: Waves) -> Tensor:
    """Return ``(N, S (1 + 2 F) + 1)``: the condition's waves, and whether it is not all zeros.

    Args:
        condition: ``(N, S)``; zeros before an episode's first fragment.
        waves: of its columns.
    """
    linked = (condition != 0).any(dim=-1, keepdim=True)
    return torch.cat((waves(condition), linked.to(condition.dtype)), dim=-1)


def embedding(inputs: int, hidden: int, outputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return an MLP of two layers with a SiLU between them."""
    return nn.Sequential(
        linear(inputs, hidden, generator), nn.SiLU(), linear(hidden, outputs, generator)
    )
