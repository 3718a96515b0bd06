"""Linear layers and plain MLPs with weights from a given generator, and fixed waves."""

import itertools
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.sizes import waves_width


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Return a linear layer initialised as torch does by default, from ``generator``.

    Args:
        inputs: width of the input.
        outputs: width of the output.
        generator: source of the initial weights, U(-1/sqrt(inputs), 1/sqrt(inputs)).
    """
    layer = nn.Linear(inputs, outputs, device="meta").to_empty(device=generator.device)
    bound = inputs**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def mlp(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Return linear layers of the given ``widths`` with ReLU between them.

    Args:
        widths: widths of input, hidden layers and output; at least two.
        generator: source of the initial weights.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(widths):
        layers += [linear(inputs, outputs, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def check_weights(weights: Iterable[Tensor], *, needed: int, finite: bool = True) -> None:
    """Check weights that a file holds, before networks are made for them.

    Args:
        weights: all of them.
        needed: numbers that the networks have, at least.
        finite: refuse weights that are no finite numbers.

    Raises:
        ConfigError: there are fewer, or one is not finite.
    """
    held = 0
    for one in weights:
        held += one.numel()
        if finite and not torch.isfinite(one).all():
            raise ConfigError("its weights are not all finite numbers")
    if held < needed:
        raise ConfigError(f"it has {held} weights, and describes networks of {needed}")


class Waves(nn.Module):
    """Maps numbers x to (x, sin 2 pi f x, cos 2 pi f x) at frequencies f = 1/4, 1/2, 1, 2, ...

    Without them an MLP learns slowly what changes sharply with a column, such as a wall.

    Args:
        frequencies: number of them; 0 passes the numbers through.

    Raises:
        ConfigError: a negative number of frequencies.

    Reference: Tancik et al., "Fourier features let networks learn high frequency functions in low
    dimensional domains" (2020).
    """

    frequencies: Tensor

    def __init__(self, frequencies: int) -> None:
        super().__init__()
        if frequencies < 0:
            raise ConfigError(f"column_frequencies must be >= 0, got {frequencies}")
        self.register_buffer("frequencies", 0.25 * 2.0 ** torch.arange(frequencies))

    def width(self, columns: int) -> int:
        """Return the features of ``columns`` numbers."""
        return waves_width(columns, len(self.frequencies))

    def forward(self, rows: Tensor) -> Tensor:
        """Return ``(..., R (1 + 2 F))`` features of ``rows`` ``(..., R)``."""
        if not len(self.frequencies):
            return rows
        phase = (rows.unsqueeze(-1) * (2 * math.pi * self.frequencies)).flatten(start_dim=-2)
        return torch.cat((rows, phase.sin(), phase.cos()), dim=-1)
