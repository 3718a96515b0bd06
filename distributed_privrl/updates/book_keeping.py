"""Per-unit clipping with one backward pass.

The backward pass computes gradients of activations only. With a linear layer's inputs a and output
gradients g, a unit's gradient is the sum over its rows and tokens k of g_k a_k^T. It is treated in
one of two ways, whichever costs less:

* few k: its squared norm follows from Gram matrices without ever forming it, and the clipped sum
  over units is one product of re-weighted g with a;
* many k: it is formed, by the product that replaces autograd's, and clipped as what it is.

Gradients of other layers, and of weights that layers share, are always formed (`layer_adapters`):
those of all uses of a weight add up before anything is measured.

Reference: Goodfellow 2015, arXiv:1510.01799; Bu et al. 2023 (book-keeping), arXiv:2210.00038.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.layer_adapters import adapter_of
from distributed_privrl.updates.layer_calls import (
    FormedVectors,
    LayerCall,
    Place,
    numbers_of,
    unshared,
)
from distributed_privrl.updates.local_update import RowLosses
from distributed_privrl.updates.parameters import FlatParameters
from distributed_privrl.updates.row_kernels import scale_rows_, squared_norms
from distributed_privrl.updates.unit_rows import UnitRows

# The largest ratio of (sum of the norms of a unit's addends in a layer) / (norm of their sum) that
# is trusted. Beyond it they cancel, and rounding of float32 sums would exceed what the noise pays
# for; so the unit is clipped by the sum of norms over this instead of by its norm. Vectors that are
# formed are measured after they were rounded.
CANCELLATION_LIMIT = 16.0
SAFETY = 1.0 - 2.0**-20
_MEASURED = 1 + 2.0**-30  # more than float64 rounds a norm of addends that cancel so far
_FORMED_NUMBERS = 2**26  # numbers of formed vectors held at once


def supports(module: nn.Module) -> bool:
    """Say whether each layer with trainable parameters has an adapter, and trains its weight."""
    for layer in module.modules():
        trained = [n for n, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if trained and ("weight" not in trained or adapter_of(layer) is None):
            return False
    return True


ClippedCall = tuple[LayerCall, int]
"""A layer's call with clipped gradients, and how many of its rows are one unit's."""


class BookKeeping:
    """Adds the clipped gradients of a micro-batch of units to a flat sum.

    Args:
        flat: the module's parameters; they are frozen, so that autograd skips weight gradients.
        form_all: each unit's clipped vector is formed, and rounded to the lattice by itself.

    Raises:
        ValueError: a trainable parameter in a layer without an adapter.
    """

    def __init__(self, flat: FlatParameters, *, form_all: bool = False) -> None:
        if not supports(flat.module):
            raise ValueError("book-keeping has no adapter for a layer with trainable parameters")
        self._form_all = form_all
        self._rows = 0  # of the forward pass that is recorded; none is while it is zero
        self._module = flat.module
        self._calls: dict[str, tuple[LayerCall, GradientEdge]] = {}
        self._held = flat.vector.new_empty(0)
        self._handles: list[RemovableHandle] = []
        places = _places(flat)
        for layer, place in places:
            self._handles.append(layer.register_forward_hook(self._recorder(place)))
        always = numbers_of(p for _, p in places if form_all or not p.by_products)
        self._most_units = _fitting(always)  # whose vectors fit into memory
        for parameter in flat.module.parameters():
            parameter.requires_grad_(False)

    def _recorder(self, place: Place) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        name, features = place.name, place.adapter.features

        def record(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not self._rows or not torch.is_grad_enabled():
                return
            (values,) = inputs
            own = values.shape[: values.dim() - features]  # rows and tokens
            if not own or own[0] != self._rows:
                raise ValueError(
                    f"layer {name!r} must have the batch's {self._rows} rows on its first axis,"
                    f" got {tuple(values.shape)}"
                )
            if name in self._calls:
                raise ValueError(f"layer {name!r} must be called once")
            if not output.requires_grad:
                output.requires_grad_(True)
            call = LayerCall(
                place=place,
                tokens=own[1:].numel(),
                inputs=values.detach().reshape(own.numel(), *values.shape[len(own) :]),
                gradients=output.new_empty(0, output.shape[-1]),
            )
            # The edge stands for the output in autograd without keeping its memory.
            self._calls[name] = call, get_gradient_edge(output)

        return record

    def add_clipped_gradients(
        self,
        row_losses: RowLosses,
        *,
        units: UnitRows,
        clip_norm: float | None,
        total: ExactSum,
    ) -> list[ClippedCall]:
        """Add each unit's clipped gradient to ``total``, or return what it follows from.

        Args:
            row_losses: computes the losses of some rows with the module; a unit's rows are
                adjacent, and each layer has the rows on its first axis.
            units: which rows are whose; a unit's vector is the sum over its rows.
            clip_norm: L2 bound for a unit's vector; None sums without clipping.
            total: added to in place.

        Returns:
            what `add_calls` is to add: no unit's gradient of those layers is formed.

        Raises:
            ValueError: a layer was called twice, with other rows, or for nothing.
        """
        clipped: list[ClippedCall] = []
        start = 0
        while start < len(units):
            part, rows = units.part(start, self._most_units)
            losses = self._forward(row_losses, part, rows)
            clips = clip_norm is not None
            formed = [call for call, _ in self._calls.values() if self._forms(call, part, clips)]
            fitting = _fitting(numbers_of(call.place for call in formed))
            if len(part) > fitting:
                self._most_units = fitting
                continue  # the same again, with fewer units
            clipped += self._add_units(losses, part, formed, clip_norm, total)
            start += len(part)
        return clipped

    def _forms(self, call: LayerCall, units: UnitRows, clips: bool) -> bool:
        """Say whether units' gradients of a call are formed; follows from public numbers alone."""
        return not call.place.by_products or (
            clips and (self._form_all or call.is_formed(units.each))
        )

    def _forward(self, row_losses: RowLosses, units: UnitRows, rows: slice) -> Tensor:
        """Return the losses, and record the layers' calls."""
        self._calls.clear()
        self._rows = units.rows
        try:
            return row_losses(self._module, rows)
        finally:
            self._rows = 0

    def _add_units(
        self,
        losses: Tensor,
        units: UnitRows,
        formed: list[LayerCall],
        clip_norm: float | None,
        total: ExactSum,
    ) -> list[ClippedCall]:
        vectors = FormedVectors(formed, units, self._memory(formed, units))
        calls = self._backward(losses, vectors)
        with torch.no_grad():
            if clip_norm is not None:
                calls = _clip(
                    unshared(calls), units=units, clip_norm=clip_norm, vectors=vectors.vectors
                )
            vectors.add_to(total)
        return [(call, units.each * call.tokens) for call in calls]

    def _memory(self, formed: list[LayerCall], units: UnitRows) -> Tensor:
        """Return where units' vectors are formed, ``(U, Q)``, kept between calls."""
        numbers = numbers_of(call.place for call in formed)
        if len(self._held) < len(units) * numbers:
            self._held = self._held.new_empty(len(units) * numbers)
        return self._held[: len(units) * numbers].view(len(units), numbers)

    def _backward(self, losses: Tensor, vectors: FormedVectors) -> list[LayerCall]:
        """Form ``vectors`` for the units' losses; return the other calls with gradients."""
        recorded = list(self._calls.values())
        self._calls.clear()
        total = losses.sum()  # and not ones as gradients, for which torch imports sympy
        if not vectors.names:
            gradients = torch.autograd.grad(total, [edge for _, edge in recorded])
            return [
                call._replace(gradients=gradient.flatten(end_dim=-2))
                for (call, _), gradient in zip(recorded, gradients, strict=True)
            ]
        # A gradient that is formed as soon as it is there is still in the cache, and not held.
        kept: list[LayerCall] = []
        for call, edge in recorded:
            edge.node.register_prehook(_taker(call, edge.output_nr, vectors, kept))
        torch.autograd.backward(total)
        if len(kept) + vectors.formed != len(recorded):
            raise ValueError("a layer's output has no part in the losses")
        return kept

    def add_calls(self, clipped: Sequence[ClippedCall], total: ExactSum) -> None:
        """Add the products of clipped calls, those of a layer one after the other."""
        layers: dict[tuple[str, int], list[LayerCall]] = {}
        for call, addends in clipped:
            layers.setdefault((call.place.name, addends), []).append(call)
        for (_, addends), calls in layers.items():
            ratio = CANCELLATION_LIMIT if addends > 1 else 1.0
            operands = [(call.gradients, call.inputs) for call in calls]
            weight, bias = calls[0].place.weight, calls[0].place.bias
            total.add_products(weight, operands, addends=addends, cancellation=ratio)
            for call in calls:
                if bias is not None:
                    total.add_sum(bias, call.gradients, addends=addends, cancellation=ratio)

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()


def _places(flat: FlatParameters) -> list[tuple[nn.Module, Place]]:
    """Return each layer with trainable parameters, and where these lie."""
    named = flat.module.named_parameters()
    slices = {id(p): flat.slices[name] for name, p in named if name in flat.slices}
    found = []
    for name, layer in flat.module.named_modules():
        own = {
            n: slices[id(p)] for n, p in layer.named_parameters(recurse=False) if p.requires_grad
        }
        adapter = adapter_of(layer)
        if own and adapter is not None:
            found.append((name, layer, adapter, own))
    uses = Counter(one.start for *_, own in found for one in own.values())
    return [
        (
            layer,
            Place(
                name=name,
                adapter=adapter,
                weight=own["weight"],
                bias=own.get("bias"),
                by_products=adapter.by_products and all(uses[o.start] == 1 for o in own.values()),
            ),
        )
        for name, layer, adapter, own in found
    ]


def _fitting(numbers: int) -> int:
    """Return how many units' formed vectors, of so many numbers each, are held at once."""
    return max(1, _FORMED_NUMBERS // max(1, numbers))


def _taker(
    call: LayerCall, output: int, vectors: FormedVectors, kept: list[LayerCall]
) -> Callable[[tuple[Tensor, ...]], None]:
    """Return what is told a call's output gradient in the backward pass."""

    def take(gradients: tuple[Tensor, ...]) -> None:
        own = call._replace(gradients=gradients[output].flatten(end_dim=-2))
        if call.place.name in vectors.names:
            vectors.form(own)
        else:
            kept.append(own)

    return take


def _clip(
    calls: list[LayerCall], *, units: UnitRows, clip_norm: float, vectors: Tensor
) -> list[LayerCall]:
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
    for _ in range(2):
        if not bool((norms > clip_norm).any()):
            return calls
        norms = _rescale(calls, input_norms, norms, units, clip_norm, vectors)
    # Inputs near the largest float leave gradients of a few denormal steps, which do not scale.
    above = ~(norms <= clip_norm)
    if bool(above.any()):
        for i, call in enumerate(calls):
            rows = units.times(call.tokens).spread(above)
            calls[i] = call._replace(gradients=call.gradients.masked_fill(rows[:, None], 0))
        vectors[above] = 0
    return calls


def _rescale(
    calls: list[LayerCall],
    input_norms: list[Tensor],
    norms: Tensor,
    units: UnitRows,
    clip_norm: float,
    vectors: Tensor,
) -> Tensor:
    """Scale units beyond the clip norm below it, in place, and return the norms that result.

    Privacy: a unit within it is multiplied by exactly 1: nobody else's norm changes its bits.
    """
    factors = torch.where(norms > clip_norm, clip_norm * SAFETY / norms, 1.0)
    gradient_norms = []
    for call in calls:
        rows = units.times(call.tokens).spread(factors)
        gradient_norms.append(scale_rows_(call.gradients, rows.to(call.gradients.dtype)))
    squares = scale_rows_(vectors, factors.to(vectors.dtype))
    return _unit_norms(calls, input_norms, gradient_norms, units, squares)


def _unit_norms(
    calls: list[LayerCall],
    input_norms: list[Tensor],
    gradient_norms: list[Tensor],
    units: UnitRows,
    squares: Tensor,
) -> Tensor:
    """Return an upper bound, tight unless addends cancel, on each unit's norm ``(U,)``.

    In each layer it is at least a `CANCELLATION_LIMIT`-th of the sum of the addends' norms.
    """
    total = squares
    for call, inputs, gradients in zip(calls, input_norms, gradient_norms, strict=True):
        own, products = units.times(call.tokens), inputs * gradients
        if own.each == 1:
            total = total + products
            continue
        a, g = own.by_unit(call.inputs).double(), own.by_unit(call.gradients).double()
        gram = torch.bmm(a, a.transpose(1, 2)) + call.has_bias
        exact = (gram * torch.bmm(g, g.transpose(1, 2))).sum(dim=(1, 2))
        least = (own.total(products.sqrt()) / CANCELLATION_LIMIT).square()
        # NaN must survive the maximum, so that the unit is found and set to zero.
        total = total + torch.maximum(exact, least)
    return total.sqrt() * _MEASURED
