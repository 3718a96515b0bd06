"""Plain networks of the agents: an actor's mean, twin critics, a state value."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from distributed_privrl.models.layers import mlp


class TwinCritic(nn.Module):
    """Two independent action values.

    Args:
        inputs: width of (observation, action).
        hidden: widths of the hidden layers.
        generator: source of the initial weights.
    """

    def __init__(self, inputs: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.first = mlp((inputs, *hidden, 1), generator)
        self.second = mlp((inputs, *hidden, 1), generator)

    def forward(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return both values, ``(N,)`` each, of (observation, action) rows ``(N, O + A)``."""
        return self.first(pairs).squeeze(-1), self.second(pairs).squeeze(-1)


def without_weights(network: nn.Module, inputs: Tensor) -> Any:
    """Return ``network(inputs)``, whose gradient reaches ``inputs`` but not the weights."""
    weights = {name: value.detach() for name, value in network.named_parameters()}
    return torch.func.functional_call(network, weights, (inputs,))


@torch.no_grad()
def polyak_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the parameters of ``target`` towards ``source`` by ``rate``, in place."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), rate)


def actor_widths(network: nn.Sequential) -> list[int]:
    """Return the widths that `models.layers.mlp` was given for ``network``."""
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    return [linears[0].in_features, *(layer.out_features for layer in linears)]
