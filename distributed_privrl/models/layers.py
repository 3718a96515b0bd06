"""Linear layers and plain MLPs whose initial weights come from a given generator."""

import itertools
from collections.abc import Sequence

import torch
from torch import nn


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
