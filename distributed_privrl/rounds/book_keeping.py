"""Per-unit clipping of linear layers with one backward pass.

The backward pass computes gradients of activations only. With a layer's inputs a and output
gradients g, a unit's gradient is the sum over its rows and tokens k of g_k a_k^T. It is treated in
one of two ways, whichever costs less:

* few k: its squared norm follows from Gram matrices without ever forming it, and the clipped sum
  over units is one product of re-weighted g with a;
* many k: it is formed, by the product that replaces autograd's, and clipped as what it is.

Reference: Goodfellow 2015, arXiv:1510.01799; Bu et al. 2023 (book-keeping), arXiv:2210.00038.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from distributed_privrl.rounds.linear_calls import FormedVectors, LinearCall, unshared
from distributed_privrl.rounds.local_update import SUM_EVERY_ROWS, SUM_EVERY_VECTORS
from distributed_privrl.rounds.parameters import FlatParameters
from distributed_privrl.rounds.row_kernels import scale_rows_, squared_norms
from distributed_privrl.rounds.unit_rows import UnitRows

# The largest ratio of (sum of the norms of a unit's k addends) / (norm of their sum) that is
# trusted is this over k. Beyond it they cancel and float32 sums of them could exceed the clip norm
# (by k 2^-24 of the sum of norms, so by 2^-12 of the clip norm below it); so the unit is clipped by
# this bound instead of by its norm. Vectors that are formed are measured after they were rounded.
CANCELLATION_LIMIT = 2.0**12
SAFETY = 1.0 - 2.0**-20
_FORMED_NUMBERS = 2**26  # numbers of formed vectors held at once


def supports(module: nn.Module) -> bool:
    """Say whether every trainable parameter belongs to an ``nn.Linear``."""
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
        self._rows = 0  # of the forward pass that is recorded; none is while it is zero
        self._calls: dict[str, tuple[Tensor, GradientEdge]] = {}
        self._held = flat.vector.new_empty(0)
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
            if not self._rows or not torch.is_grad_enabled():
                return
            (values,) = inputs
            if values.dim() < 2 or values.shape[0] != self._rows:
                raise ValueError(
                    f"layer {name!r} must have the batch's {self._rows} rows on its first axis,"
                    f" got {tuple(values.shape)}"
                )
            if name in self._calls:
                raise ValueError(f"layer {name!r} must be called once")
            if not output.requires_grad:
                output.requires_grad_(True)
            # The edge stands for the output in autograd without keeping its memory.
            self._calls[name] = values.detach(), get_gradient_edge(output)

        return record

    def add_clipped_gradients(
        self,
        row_losses: Callable[[nn.Module], Tensor],
        *,
        units: UnitRows,
        clip_norm: float | None,
        accumulator: Tensor,
    ) -> int:
        """Add each unit's clipped gradient to ``accumulator``.

        Args:
            row_losses: computes the losses ``(R,)`` with the module; a unit's rows are adjacent,
                and each layer has them on its first axis.
            units: which rows are whose; a unit's vector is the mean over its rows.
            clip_norm: L2 bound for a unit's vector; None sums without clipping.
            accumulator: flat ``(P,)``, added to in place.

        Returns:
            how much of `SUM_EVERY_ROWS` float32 additions this was.

        Raises:
            ValueError: a layer was called twice, or with other rows.
        """
        calls = self._backward(row_losses, units)
        with torch.no_grad():
            if clip_norm is None:
                for call in calls:
                    self._add_product(call, accumulator)
                return units.rows
            formed, kept = _divided(calls, units)
            kept = unshared(kept, formed)
            memory = self._memory(formed, units)
            for part, rows in units.parts(len(memory)):
                whole = part is units
                self._add_part(
                    formed if whole else [call.part(rows) for call in formed],
                    kept if whole else [call.part(rows) for call in kept],
                    part,
                    memory,
                    clip_norm,
                    accumulator,
                )
        additions = len(units) * (SUM_EVERY_ROWS // SUM_EVERY_VECTORS) if formed else 0
        return max(additions, units.rows, *(call.inputs.shape[0] for call in kept))

    def _add_part(
        self,
        formed: list[LinearCall],
        kept: list[LinearCall],
        units: UnitRows,
        memory: Tensor,
        clip_norm: float,
        accumulator: Tensor,
    ) -> None:
        vectors = FormedVectors(formed, units, memory)
        clipped = _clip(kept, units=units, clip_norm=clip_norm, vectors=vectors.vectors)
        for call in clipped:
            self._add_product(call, accumulator)
        vectors.add_to(accumulator, self._flat.slices)

    def _memory(self, formed: list[LinearCall], units: UnitRows) -> Tensor:
        """Return where the vectors of some units are formed, ``(M, Q)``, kept between calls."""
        numbers = sum(call.numbers for call in formed)
        rows = min(len(units), max(1, _FORMED_NUMBERS // numbers)) if formed else len(units)
        if len(self._held) < rows * numbers:
            self._held = self._held.new_empty(rows * numbers)
        return self._held[: rows * numbers].view(rows, numbers)

    def _backward(
        self, row_losses: Callable[[nn.Module], Tensor], units: UnitRows
    ) -> list[LinearCall]:
        """Return what each layer's gradients of the units' mean losses follow from."""
        self._calls.clear()
        self._rows = units.rows
        try:
            losses = row_losses(self._flat.module)
        finally:
            self._rows = 0
        counts = torch.from_numpy(units.counts).to(losses)
        outputs = [edge for _, edge in self._calls.values()]
        gradients = torch.autograd.grad(losses, outputs, units.spread(1 / counts))
        calls = [
            LinearCall(
                name=name,
                tokens=inputs.shape[1:-1].numel(),
                inputs=inputs.flatten(end_dim=-2),
                gradients=gradient.flatten(end_dim=-2),
                has_bias=f"{name}bias" in self._flat.slices,
            )
            for (name, (inputs, _)), gradient in zip(self._calls.items(), gradients, strict=True)
        ]
        self._calls.clear()
        return calls

    def _add_product(self, call: LinearCall, accumulator: Tensor) -> None:
        place = accumulator[self._flat.slices[f"{call.name}weight"]]
        place.view(call.shape).addmm_(call.gradients.t(), call.inputs)
        if call.has_bias:
            accumulator[self._flat.slices[f"{call.name}bias"]].add_(call.gradients.sum(dim=0))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def _divided(calls: list[LinearCall], units: UnitRows) -> tuple[list[LinearCall], list[LinearCall]]:
    """Return the calls whose units' gradients are formed, and the others."""
    formed: list[LinearCall] = []
    kept: list[LinearCall] = []
    for call in calls:
        (formed if call.is_formed(units) else kept).append(call)
    return formed, kept


def _clip(
    calls: list[LinearCall], *, units: UnitRows, clip_norm: float, vectors: Tensor
) -> list[LinearCall]:
    """Scale the output gradients so that each unit's vector has norm at most ``clip_norm``.

    Norms are float64; after scaling, which rounds, they are measured again and rescaled. A unit
    with a non-finite number anywhere becomes zero in every layer.

    Args:
        calls: of the layers whose gradients are not formed; scaled in place.
        units: which rows are whose.
        clip_norm: L2 bound of a unit's vector.
        vectors: the other layers' part of each unit's vector ``(U, Q)``; scaled in place.

    Returns:
        the calls.
    """
    input_norms = [squared_norms(call.inputs) + call.has_bias for call in calls]
    gradient_norms = [squared_norms(call.gradients) for call in calls]
    norms = _unit_norms(calls, input_norms, gradient_norms, units, squared_norms(vectors))
    bad = ~torch.isfinite(norms)
    if bool(bad.any()):
        for i, call in enumerate(calls):
            rows = units.times(call.tokens).spread(bad)
            calls[i] = call._replace(
                inputs=call.inputs.masked_fill(rows[:, None], 0),
                gradients=call.gradients.masked_fill(rows[:, None], 0),
            )
            input_norms[i] = torch.where(rows, 0.0, input_norms[i])
        vectors[bad] = 0
        norms = torch.where(bad, 0.0, norms)
    norms = _rescale(calls, input_norms, norms, units, clip_norm, vectors)
    if bool((norms > clip_norm).any()):
        _rescale(calls, input_norms, norms, units, clip_norm, vectors)
    return calls


def _rescale(
    calls: list[LinearCall],
    input_norms: list[Tensor],
    norms: Tensor,
    units: UnitRows,
    clip_norm: float,
    vectors: Tensor,
) -> Tensor:
    """Scale by ``min(1, clip_norm / norm)`` in place and return the norms that result."""
    factors = torch.clamp(clip_norm * SAFETY / norms.clamp(min=1e-300), max=1.0)
    gradient_norms = []
    for call in calls:
        rows = units.times(call.tokens).spread(factors)
        gradient_norms.append(scale_rows_(call.gradients, rows.to(call.gradients.dtype)))
    squares = scale_rows_(vectors, factors.to(vectors.dtype))
    return _unit_norms(calls, input_norms, gradient_norms, units, squares)


def _unit_norms(
    calls: list[LinearCall],
    input_norms: list[Tensor],
    gradient_norms: list[Tensor],
    units: UnitRows,
    squares: Tensor,
) -> Tensor:
    """Return an upper bound, tight unless addends cancel, on each unit's norm ``(U,)``."""
    exact, least = [torch.zeros_like(squares)], torch.zeros_like(squares)
    for call, inputs, gradients in zip(calls, input_norms, gradient_norms, strict=True):
        own, products = units.times(call.tokens), inputs * gradients
        if own.most == 1:
            exact.append(products)
            continue
        a, g = own.padded(call.inputs).double(), own.padded(call.gradients).double()
        gram = torch.bmm(a, a.transpose(1, 2)) + call.has_bias
        exact.append((gram * torch.bmm(g, g.transpose(1, 2))).sum(dim=(1, 2)))
        least += (own.total(products.sqrt()) * (own.most / CANCELLATION_LIMIT)).square()
    # NaN must survive the maximum, so that the unit is found and set to zero.
    total = torch.maximum(torch.stack(exact).sum(dim=0), least) + squares
    return total.sqrt() * (1 + 2.0**-40)
