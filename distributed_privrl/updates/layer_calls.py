"""One call of a layer, recorded: what its parameters' gradients follow from."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.layer_adapters import LayerAdapter
from distributed_privrl.updates.unit_rows import UnitRows

_FORMING_COST = 2  # of a number that is formed, scaled and added, in multiplications of a Gram
# A float32 sum of units with more addends each would hold too few units to be worth a product.
_MOST_ADDENDS = 16


class Place(NamedTuple):
    """Where a layer's parameters lie among all, and how their gradients are made.

    Attributes:
        name: of the layer.
        adapter: forms gradients.
        weight: of the flat vector; layers that share a weight have the same.
        bias: of the flat vector; None: the layer has none.
        by_products: gradients need not be formed: they may follow from products.
    """

    name: str
    adapter: LayerAdapter
    weight: slice
    bias: slice | None
    by_products: bool

    @property
    def slices(self) -> list[slice]:
        """Of weight and bias."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]


class LayerCall(NamedTuple):
    """What the gradients of a layer follow from.

    Attributes:
        place: of the layer.
        tokens: T, places of each row at which the layer was applied.
        inputs: ``(R * T, I)``; ``(R * T,)`` of an embedding.
        gradients: of the output, ``(R * T, O)``; before the backward pass ``(0, O)``.
    """

    place: Place
    tokens: int
    inputs: Tensor
    gradients: Tensor

    @property
    def has_bias(self) -> bool:
        """Say whether the layer has a bias."""
        return self.place.bias is not None

    def is_formed(self, each: int) -> bool:
        """Say whether units' gradients are formed: cheaper, or too many addends for a float32 sum.

        Privacy: decides how a unit is clipped and added, so it follows from public numbers alone.

        Args:
            each: rows of a unit, a public number.
        """
        if not self.place.by_products:
            return True
        outputs, inputs = self.gradients.shape[1], self.inputs.shape[1]
        addends = each * self.tokens
        gram = addends**2 * (outputs + inputs)
        return gram > _FORMING_COST * outputs * inputs or addends > _MOST_ADDENDS


def columns_of(places: Iterable[Place]) -> dict[int, tuple[slice, slice]]:
    """Return each parameter's slice, and its columns in a formed vector, by the slice's start.

    A parameter that several layers share has one place, where their gradients add up.
    """
    columns: dict[int, tuple[slice, slice]] = {}
    start = 0
    for place in places:
        for own in place.slices:
            if own.start not in columns:
                columns[own.start] = own, slice(start, start + own.stop - own.start)
                start += own.stop - own.start
    return columns


def numbers_of(places: Iterable[Place]) -> int:
    """Return how many numbers a formed vector of these layers has (Q)."""
    return sum(own.stop - own.start for own, _ in columns_of(places).values())


class FormedVectors:
    """Units' gradients of some layers: one parameter after the other in a vector for each unit.

    Args:
        calls: of the layers.
        units: which rows are whose.
        memory: ``(U, Q)``, overwritten.
    """

    def __init__(self, calls: Sequence[LayerCall], units: UnitRows, memory: Tensor) -> None:
        self.vectors = memory
        self.names = {call.place.name for call in calls}
        self.formed = 0
        self._units = units
        self._columns = columns_of(call.place for call in calls)
        self._begun: set[int] = set()

    def form(self, call: LayerCall) -> None:
        """Write the units' gradients of a layer; add them where a parameter has some already."""
        place, units = call.place, self._units.times(call.tokens)
        gradients, inputs = units.by_unit(call.gradients), units.by_unit(call.inputs)
        self.formed += 1
        own, begin = self._own(place.weight)
        weights = own.view(len(units), *place.adapter.shape)
        place.adapter.form(gradients, inputs, weights, begin=begin)
        if place.bias is not None:
            biases, begin = self._own(place.bias)
            if begin:
                torch.sum(gradients, dim=1, out=biases)
            else:
                biases += gradients.sum(dim=1)

    def _own(self, parameter: slice) -> tuple[Tensor, bool]:
        """Return a parameter's part of the vectors, and whether nothing was written there yet."""
        begin = parameter.start not in self._begun
        self._begun.add(parameter.start)
        return self.vectors[:, self._columns[parameter.start][1]], begin

    def add_to(self, total: ExactSum) -> None:
        """Add the units' vectors, each rounded to the lattice, to the layers' places in a sum."""
        for parameter, columns in self._columns.values():
            total.add_rows(parameter, self.vectors, columns.start)


def unshared(calls: Sequence[LayerCall]) -> list[LayerCall]:
    """Return calls whose contiguous gradients may be scaled in place one by one.

    Autograd hands the same tensor to both addends of a sum: scaled twice, its layers would learn
    at the square of the clipping factor.
    """
    seen: set[int] = set()
    own = []
    for call in calls:
        gradients = call.gradients.contiguous()
        pointer = gradients.untyped_storage().data_ptr()
        if pointer in seen:
            gradients = gradients.clone()
        seen.add(pointer)
        own.append(call._replace(gradients=gradients))
    return own
