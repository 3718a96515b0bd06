"""Discriminators, stacked, and the generator: what PATE-GAN trains.

Reference: Jordon, Yoon and van der Schaar 2019, section 4; paper 000, appendix E (sizes).
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from distributed_privrl.models.layers import mlp

LIMIT = 8.0
"""Generated numbers stay within so many scales of their column; real ones reach two or three."""


class Discriminators(nn.Module):
    """Discriminators of one shape, their parameters stacked; none touches another's.

    A member's logits and gradients are its own slices of batched products, so that what one
    member learns, numbers that are not finite included, changes no bit of the others.

    Args:
        row_width: D.
        hidden: widths of the hidden layers, each followed by ReLU.
        members: E.
        generator: source of the initial parameters.
    """

    def __init__(
        self, row_width: int, hidden: Sequence[int], members: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for inputs, outputs in itertools.pairwise((row_width, *hidden, 1)):
            bound = inputs**-0.5
            for kept, shape in (
                (self.weights, (members, inputs, outputs)),
                (self.biases, (members, 1, outputs)),
            ):
                kept.append(torch.empty(shape).uniform_(-bound, bound, generator=generator))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the logits ``(E, B)`` that rows ``(E, B, D)`` are real."""
        output = rows
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            output = torch.baddbmm(bias, output.relu() if layer else output, weight)
        return output.squeeze(-1)

    def start_from(self, parameters: Tensor) -> None:
        """Give every member the parameters of one discriminator, as `FlatParameters` has them."""
        start = 0
        with torch.no_grad():
            for stacked in self.parameters():
                stop = start + stacked[0].numel()
                stacked.copy_(parameters[start:stop].view_as(stacked[0]).expand_as(stacked))
                start = stop

    @property
    def finite(self) -> Tensor:
        """Which members have finite parameters, ``(E,)``."""
        of_each = [
            one.detach().isfinite().flatten(start_dim=1).all(dim=1) for one in self.parameters()
        ]
        return torch.stack(of_each).all(dim=0)


class Generator(nn.Module):
    """Makes standardised rows of normal numbers.

    Args:
        latent: normal numbers of a row.
        hidden: widths of the hidden layers, each followed by ReLU.
        row_width: D.
        generator: source of the initial parameters.
    """

    def __init__(
        self, latent: int, hidden: Sequence[int], row_width: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.layers = mlp((latent, *hidden, row_width), generator)

    def forward(self, normals: Tensor) -> Tensor:
        """Return rows ``(B, D)`` of ``normals`` ``(B, latent)``, within `LIMIT`."""
        output: Tensor = self.layers(normals)
        return LIMIT * torch.tanh(output / LIMIT)
