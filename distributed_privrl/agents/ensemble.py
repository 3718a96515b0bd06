"""An ensemble of critics as one batched network, with its slopes along the action written out.

A network with ReLU and one output is piecewise linear: the gradient of its value in each layer's
sums is a product of weights and of the signs that ReLU saw. These gradients are computed once, and
serve three times: as slopes along the action, in the slopes' own gradient, and in the values'.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_HIDDEN_BIAS = 0.1
_LAST_LAYER = 3e-3


class EnsembleCritic(nn.Module):
    """E action values of (observation, action), initialised as EDAC's authors do.

    Args:
        inputs: width of (observation, action).
        hidden: widths of the hidden layers; at least one.
        members: E.
        generator: source of the initial weights.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], members: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for width, outputs in itertools.pairwise((inputs, *hidden, 1)):
            last = len(self.weights) == len(hidden)
            weight = torch.empty(members, width, outputs)
            bound = _LAST_LAYER if last else width**-0.5
            self.weights.append(weight.uniform_(-bound, bound, generator=generator))
            bias = torch.full((members, 1, outputs), _HIDDEN_BIAS)
            self.biases.append(bias.uniform_(-bound, bound, generator=generator) if last else bias)

    def forward(self, pairs: Tensor) -> Tensor:
        """Return the values ``(E, N)`` of (observation, action) rows ``(N, O + A)``."""
        return _forward(pairs, [*self.weights], [*self.biases])[0]

    def values_and_slopes(self, pairs: Tensor, action_width: int) -> tuple[Tensor, Tensor]:
        """Return the values ``(E, N)`` and their gradients along the action ``(E, N, A)``.

        Args:
            pairs: (N, O + A), observation and action; no gradient reaches it.
            action_width: A.

        On a CPU one member is computed after the other: what a layer leaves stays in the cache for
        the next one. Elsewhere all are one product a layer.
        """
        together = 1 if pairs.device.type == "cpu" else len(self.weights[0])
        parts = [torch.split(one, together) for one in (*self.weights, *self.biases)]
        found = [
            _ValuesAndSlopes.apply(pairs, action_width, *own)[:2]  # type: ignore[no-untyped-call]
            for own in zip(*parts, strict=True)
        ]
        values, slopes = (torch.cat(one) for one in zip(*found, strict=True))
        return values, slopes

    def lowest(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the value of each row's lowest critic ``(N,)``.

        Its gradient reaches ``actions`` alone, not the weights.

        Args:
            observations: (N, O).
            actions: (N, A).

        Only that critic's gradient is computed, for its own rows: together one pass of one critic.
        """
        with torch.no_grad():
            pairs = torch.cat((observations, actions), dim=1)
            values, hidden = _forward(pairs, [*self.weights], [*self.biases])
            value, member = values.min(dim=0)
            order = member.argsort(stable=True)
            counts = torch.bincount(member, minlength=len(values)).cpu().tolist()
            slopes = torch.empty_like(actions)
            for own, rows in enumerate(torch.split(order, counts)):
                if not len(rows):
                    continue
                weights = [one[own : own + 1] for one in self.weights]
                seen = [layer[own, rows].unsqueeze(0) for layer in hidden]
                first = _value_gradients(weights, seen)[0]
                slopes[rows] = _along_action(first, weights[0], actions.shape[1])[0]
        return value + (slopes * (actions - actions.detach())).sum(dim=1)


def _forward(
    pairs: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Return the values ``(E, N)`` and the outputs of the hidden layers ``(E, N, H)``."""
    hidden = []
    output = pairs.expand(len(weights[0]), *pairs.shape)
    for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
        output = torch.baddbmm(bias, output, weight).relu_()
        hidden.append(output)
    return torch.baddbmm(biases[-1], output, weights[-1]).squeeze(-1), hidden


def _value_gradients(weights: Sequence[Tensor], hidden: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of the value in the sums of each hidden layer ``(E, N, H)``."""
    gradient = weights[-1].transpose(1, 2).expand_as(hidden[-1])
    gradients = [_where_active(gradient, hidden[-1])]
    for weight, output in zip(weights[-2:0:-1], hidden[-2::-1], strict=True):
        gradient = torch.bmm(gradients[-1], weight.transpose(1, 2))
        gradients.append(_where_active(gradient, output))
    return gradients[::-1]


def _where_active(gradient: Tensor, output: Tensor) -> Tensor:
    """Return ``gradient``, zero where ReLU's ``output`` is: ReLU's own backward pass."""
    result: Tensor = torch.ops.aten.threshold_backward(gradient, output, 0)
    return result


def _along_action(gradient: Tensor, first_weight: Tensor, action_width: int) -> Tensor:
    """Return ``(E, N, A)`` of the gradient in the first layer's sums."""
    return torch.bmm(gradient, first_weight[:, -action_width:].transpose(1, 2))


class _ValuesAndSlopes(torch.autograd.Function):
    """Values and slopes; then the hidden layers' outputs and the value's gradients in their sums.

    With h the outputs and t the gradients of the value in the sums, values change by h_(k-1)^T t_k
    with layer k's weights. With v the gradient of the loss in t_(k-1) before ReLU, slopes change by
    v_(k-1)^T t_k. So for c the gradient of the loss in the values one product,
    (c h_(k-1) + v_(k-1))^T t_k, is the gradient in the weights of both.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(pairs: Tensor, action_width: int, *parameters: Tensor) -> tuple[Tensor, ...]:
        layers = len(parameters) // 2
        weights, biases = parameters[:layers], parameters[layers:]
        values, hidden = _forward(pairs, weights, biases)
        gradients = _value_gradients(weights, hidden)
        slopes = _along_action(gradients[0], weights[0], action_width)
        return values, slopes, *hidden, *gradients

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pairs, ctx.action_width, *parameters = inputs
        weights = parameters[: len(parameters) // 2]
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(pairs, *weights, *output[2:])

    @staticmethod
    def backward(
        ctx: Any, values_gradient: Tensor, slopes_gradient: Tensor, *_: Any
    ) -> tuple[Any, ...]:
        pairs, *saved = ctx.saved_tensors
        layers = (len(saved) + 2) // 3
        weights, hidden, gradients = (
            saved[:layers],
            saved[layers : -layers + 1],
            saved[1 - layers :],
        )
        share = values_gradient.unsqueeze(-1)
        biases = [torch.bmm(values_gradient.unsqueeze(1), gradient) for gradient in gradients]
        biases.append(share.sum(dim=1, keepdim=True))
        first = torch.bmm((share * pairs).transpose(1, 2), gradients[0])
        actions = slice(-ctx.action_width, None)
        first[:, actions] += torch.bmm(slopes_gradient.transpose(1, 2), gradients[0])
        found = [first]
        upstream = torch.bmm(slopes_gradient, weights[0][:, actions])
        for weight, output, gradient in zip(weights[1:-1], hidden, gradients[1:], strict=False):
            upstream = _where_active(upstream, output)
            both = torch.addcmul(upstream, share, output)
            found.append(torch.bmm(both.transpose(1, 2), gradient))
            upstream = torch.bmm(upstream, weight)
        both = torch.addcmul(_where_active(upstream, hidden[-1]), share, hidden[-1])
        found.append(both.sum(dim=1).unsqueeze(-1))
        return None, None, *found, *biases
