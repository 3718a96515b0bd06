"""Per-unit clipping of linear layers with one backward pass.

For a linear layer with inputs a and output gradients g, a unit's gradient is the sum over its
copies k of g_k a_k^T, so its squared norm follows from Gram matrices without ever forming it, and
the clipped sum over units is one product of re-weighted g with a. The backward pass computes
gradients of activations only; weight gradients, a third of the work, are replaced by that product.

Reference: Goodfellow 2015, arXiv:1510.01799; Bu et al. 2023 (book-keeping), arXiv:2210.00038.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from distributed_privrl.rounds.parameters import FlatParameters
from distributed_privrl.rounds.row_kernels import scale_rows_, squared_norms

# The largest ratio of (sum of the norms of a unit's copies) / (norm of their sum) that is trusted.
# Beyond it the copies cancel and float32 sums of them could exceed the clip norm, so the unit is
# clipped by this bound instead of by its norm.
CANCELLATION_LIMIT = 1e3
SAFETY = 1.0 - 2.0**-20


def supports(module: nn.Module) -> bool:
    """Say whether every trainable parameter belongs to an ``nn.Linear`` used for 2-D inputs."""
    linear = {
        id(p) for layer in module.modules() if type(layer) is nn.Linear for p in layer.parameters()
    }
    return all(id(p) in linear for p in module.parameters() if p.requires_grad)


class BookKeeping:
    """Adds the clipped gradients of a micro-batch of units to a flat accumulator.

    Args:
        flat: the module's parameters; they are frozen, so that autograd skips weight gradients.

    Raises:
        ValueError: a trainable parameter outside ``nn.Linear``.
    """

    def __init__(self, flat: FlatParameters) -> None:
        if not supports(flat.module):
            raise ValueError("book-keeping needs all trainable parameters in nn.Linear layers")
        self._flat = flat
        self._calls: list[tuple[str, Tensor, GradientEdge]] = []
        self._handles: list[RemovableHandle] = []
        for name, layer in flat.module.named_modules():
            if type(layer) is nn.Linear and any(p.requires_grad for p in layer.parameters()):
                self._handles.append(
                    layer.register_forward_hook(self._recorder(f"{name}." if name else ""))
                )
        for parameter in flat.module.parameters():
            parameter.requires_grad_(False)

    def _recorder(self, name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not torch.is_grad_enabled():
                return
            if inputs[0].dim() != 2 or any(name == seen for seen, _, _ in self._calls):
                raise ValueError(f"layer {name!r} must be called once, with a 2-D input")
            if not output.requires_grad:
                output.requires_grad_(True)
            # The edge stands for the output in autograd without keeping its memory.
            self._calls.append((name, inputs[0].detach(), get_gradient_edge(output)))

        return record

    def add_clipped_gradients(
        self,
        row_losses: Callable[[nn.Module], Tensor],
        *,
        copies: int,
        clip_norm: float | None,
        accumulator: Tensor,
    ) -> None:
        """Add each unit's clipped gradient to ``accumulator``.

        Args:
            row_losses: computes the losses ``(U * copies,)`` with the module, copies adjacent.
            copies: rows averaged for each unit before clipping (noise multiplicity).
            clip_norm: L2 bound for a unit's mean gradient; None sums without clipping.
            accumulator: flat ``(P,)``, added to in place.
        """
        self._calls.clear()
        losses = row_losses(self._flat.module)
        outputs = [edge for _, _, edge in self._calls]
        gradients = torch.autograd.grad(losses.sum() / copies, outputs)
        layers = [
            (name, inputs, gradient)
            for (name, inputs, _), gradient in zip(self._calls, _unshared(gradients), strict=True)
        ]
        self._calls.clear()
        with torch.no_grad():
            if clip_norm is not None:
                layers = _clip(layers, copies=copies, clip_norm=clip_norm, has_bias=self._has_bias)
            self._add_products(layers, accumulator)

    def _has_bias(self, name: str) -> bool:
        return f"{name}bias" in self._flat.slices

    def _add_products(self, layers: list[tuple[str, Tensor, Tensor]], accumulator: Tensor) -> None:
        for name, inputs, gradients in layers:
            weight = accumulator[self._flat.slices[f"{name}weight"]]
            weight.view(gradients.shape[1], inputs.shape[1]).addmm_(gradients.t(), inputs)
            if self._has_bias(name):
                accumulator[self._flat.slices[f"{name}bias"]].add_(gradients.sum(dim=0))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def _unshared(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Return contiguous gradients that may be scaled in place one by one.

    Autograd hands the same tensor to both addends of a sum: scaled twice, its layers would learn
    at the square of the clipping factor.
    """
    seen: set[int] = set()
    own = []
    for gradient in gradients:
        gradient = gradient.contiguous()
        pointer = gradient.untyped_storage().data_ptr()
        own.append(gradient.clone() if pointer in seen else gradient)
        seen.add(pointer)
    return own


def _clip(
    layers: list[tuple[str, Tensor, Tensor]],
    *,
    copies: int,
    clip_norm: float,
    has_bias: Callable[[str], bool],
) -> list[tuple[str, Tensor, Tensor]]:
    """Scale the output gradients so that each unit's vector has norm at most ``clip_norm``.

    Norms are float64; after scaling, which rounds, they are measured again and rescaled. A unit
    with a non-finite number anywhere becomes zero in every layer.
    """
    input_norms = [squared_norms(inputs) + has_bias(name) for name, inputs, _ in layers]
    gradient_norms = [squared_norms(gradients) for _, _, gradients in layers]
    norms = _unit_norms(layers, input_norms, gradient_norms, copies, has_bias)
    bad = ~torch.isfinite(norms)
    if bool(bad.any()):
        rows = bad.repeat_interleave(copies)[:, None]
        layers = [
            (name, inputs.masked_fill(rows, 0), gradients.masked_fill(rows, 0))
            for name, inputs, gradients in layers
        ]
        input_norms = [torch.where(rows[:, 0], 0.0, values) for values in input_norms]
        norms = torch.where(bad, 0.0, norms)
    norms = _rescale(layers, input_norms, norms, copies, clip_norm, has_bias)
    if bool((norms > clip_norm).any()):
        _rescale(layers, input_norms, norms, copies, clip_norm, has_bias)
    return layers


def _rescale(
    layers: list[tuple[str, Tensor, Tensor]],
    input_norms: list[Tensor],
    norms: Tensor,
    copies: int,
    clip_norm: float,
    has_bias: Callable[[str], bool],
) -> Tensor:
    """Scale by ``min(1, clip_norm / norm)`` in place and return the norms that result."""
    factors = torch.clamp(clip_norm * SAFETY / norms.clamp(min=1e-300), max=1.0)
    rows = factors.repeat_interleave(copies)
    gradient_norms = [
        scale_rows_(gradients, rows.to(gradients.dtype)) for _, _, gradients in layers
    ]
    return _unit_norms(layers, input_norms, gradient_norms, copies, has_bias)


def _unit_norms(
    layers: list[tuple[str, Tensor, Tensor]],
    input_norms: list[Tensor],
    gradient_norms: list[Tensor],
    copies: int,
    has_bias: Callable[[str], bool],
) -> Tensor:
    """Return an upper bound, tight unless copies cancel, on each unit's norm ``(U,)``."""
    squares = torch.stack(
        [a * g for a, g in zip(input_norms, gradient_norms, strict=True)]
    )  # (layers, U * copies)
    if copies == 1:
        return squares.sum(dim=0).sqrt()
    triangle = squares.sum(dim=0).sqrt().view(-1, copies).sum(dim=1)
    total = torch.zeros_like(triangle)
    for name, inputs, gradients in layers:
        a = inputs.view(-1, copies, inputs.shape[1]).double()
        g = gradients.view(-1, copies, gradients.shape[1]).double()
        gram = torch.bmm(a, a.transpose(1, 2)) + has_bias(name)
        total += (gram * torch.bmm(g, g.transpose(1, 2))).sum(dim=(1, 2))
    exact = torch.maximum(total, torch.zeros_like(total)).sqrt()
    # NaN must survive the maximum, so that the unit is found and set to zero.
    return torch.maximum(exact, triangle / CANCELLATION_LIMIT) * (1 + 2.0**-40)
