"""The residual MLP that denoises transitions."""

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.layers import Waves, linear

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": torch.relu, "silu": F.silu}


class FourierFeatures(nn.Module):
    """Maps a noise level c to (c, sin 2 pi f c, cos 2 pi f c) with fixed random frequencies f.

    Args:
        features: number of sines and cosines together; even.
        generator: source of the frequencies, N(0, 1).

    Raises:
        ConfigError: ``features`` is odd or below 2.
    """

    frequencies: Tensor

    def __init__(self, features: int, *, generator: torch.Generator) -> None:
        super().__init__()
        if features < 2 or features % 2:
            raise ConfigError(f"fourier_features must be an even number >= 2, got {features}")
        frequencies = torch.randn(features // 2, generator=generator, device=generator.device)
        self.register_buffer("frequencies", frequencies)

    def forward(self, noise_condition: Tensor) -> Tensor:
        """Return the features ``(N, 1 + features)`` of ``noise_condition`` ``(N,)``."""
        value = noise_condition.unsqueeze(-1)
        phase = value * (2 * math.pi * self.frequencies)
        return torch.cat((value, phase.sin(), phase.cos()), dim=-1)


class ResidualMLPDenoiser(nn.Module):
    """The noise prediction network of PrivORL-n: an MLP with skip connections.

    Only ``nn.Linear`` layers hold trainable parameters and each runs once a forward pass, so that
    per-row gradient norms can be read off their inputs and output gradients.

    Args:
        row_width: numbers in a row (R).
        width: width of the residual blocks.
        depth: number of residual blocks.
        time_width: width of the noise level's embedding.
        fourier_features: random Fourier features of the noise level, beside its raw value.
        column_frequencies: sines and cosines of each number, beside the number; see `Waves`.
        activation: nonlinearity inside the blocks.
        normalise: put a LayerNorm without parameters before each nonlinearity.
        generator: source of the initial weights and of the frequencies.

    Raises:
        ConfigError: a size is not positive, or the activation is unknown.

    Reference: PrivORL, appendix F-A (6.46 million parameters at the defaults and R = 11).
    """

    def __init__(
        self,
        row_width: int,
        *,
        width: int = 1024,
        depth: int = 6,
        time_width: int = 128,
        fourier_features: int = 16,
        column_frequencies: int = 0,
        activation: Literal["relu", "silu"] = "relu",
        normalise: bool = False,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        for name, value in (("row_width", row_width), ("width", width), ("time_width", time_width)):
            check_positive(name, value)
        check_positive("depth", depth)
        if activation not in _ACTIVATIONS:
            raise ConfigError(f"activation must be relu or silu, got {activation!r}")
        self.row_width = row_width
        self.width = width
        self.normalise = normalise
        self._activation = _ACTIVATIONS[activation]
        self.waves = Waves(column_frequencies)
        self.input = linear(self.waves.width(row_width), time_width, generator)
        self.time = nn.Sequential(
            FourierFeatures(fourier_features, generator=generator),
            linear(fourier_features + 1, time_width, generator),
            nn.SiLU(),
            linear(time_width, time_width, generator),
        )
        self.widen = linear(time_width, width, generator)
        self.blocks = nn.ModuleList(linear(width, width, generator) for _ in range(depth))
        self.output = linear(width, row_width, generator)

    def forward(self, noisy: Tensor, noise_condition: Tensor) -> Tensor:
        """Return the network's output ``(N, R)``.

        Args:
            noisy: rows ``(N, R)``.
            noise_condition: encoded noise level of each row ``(N,)``.
        """
        hidden = self.widen(self.input(self.waves(noisy)) + self.time(noise_condition))
        for block in self.blocks:
            hidden = hidden + block(self._activate(hidden))
        output: Tensor = self.output(self._activate(hidden))
        return output

    def _activate(self, hidden: Tensor) -> Tensor:
        if self.normalise:
            hidden = F.layer_norm(hidden, (self.width,))
        return self._activation(hidden)
