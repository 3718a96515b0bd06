"""One call of a linear layer, recorded: what its parameters' gradients follow from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.unit_rows import UnitRows

_FORMING_COST = 2  # of a number that is formed, scaled and added, in multiplications of a Gram
# A float32 sum of units with more addends each would hold too few units to be worth a product.
_MOST_ADDENDS = 16


class LinearCall(NamedTuple):
    """What the gradients of a linear layer follow from.

    Attributes:
        name: the layer's prefix among the parameters.
        tokens: T, places of each row at which the layer was applied.
        inputs: ``(R * T, I)``.
        gradients: of the output, ``(R * T, O)``; before the backward pass ``(0, O)``.
        has_bias: the layer has a bias.
    """

    name: str
    tokens: int
    inputs: Tensor
    gradients: Tensor
    has_bias: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Of the layer's weight, ``(O, I)``."""
        return self.gradients.shape[1], self.inputs.shape[1]

    @property
    def numbers(self) -> int:
        """Numbers of the layer's weight and bias."""
        outputs, inputs = self.shape
        return outputs * (inputs + self.has_bias)

    def is_formed(self, each: int) -> bool:
        """Say whether units' gradients are formed: cheaper, or too many addends for a float32 sum.

        Privacy: decides how a unit is clipped and added, so it follows from public numbers alone.

        Args:
            each: rows of a unit, a public number.
        """
        outputs, inputs = self.shape
        addends = each * self.tokens
        gram = addends**2 * (outputs + inputs)
        return gram > _FORMING_COST * outputs * inputs or addends > _MOST_ADDENDS


class FormedVectors:
    """Units' gradients of some layers: one after the other in a vector for each unit.

    Args:
        calls: of the layers.
        units: which rows are whose.
        memory: ``(U, Q)``, overwritten.
    """

    def __init__(self, calls: Sequence[LinearCall], units: UnitRows, memory: Tensor) -> None:
        self.vectors = memory
        self.names: dict[str, slice] = {}
        self.formed = 0
        self._units = units
        start = 0
        for call in calls:
            self.names[call.name] = slice(start, start + call.numbers)
            start += call.numbers

    def form(self, call: LinearCall) -> None:
        """Write the units' gradients of a layer."""
        outputs, inputs = call.shape
        columns, units = self.names[call.name], self._units.times(call.tokens)
        own = self.vectors[:, columns]
        weights, biases = own[:, : outputs * inputs], own[:, outputs * inputs :]
        weights = weights.view(len(units), outputs, inputs)
        self.formed += 1
        gradients = units.by_unit(call.gradients)
        torch.bmm(gradients.transpose(1, 2), units.by_unit(call.inputs), out=weights)
        if call.has_bias:
            torch.sum(gradients, dim=1, out=biases)

    def add_to(self, total: ExactSum, slices: dict[str, slice]) -> None:
        """Add the units' vectors, each rounded to the lattice, to the layers' places in a sum."""
        for name, columns in self.names.items():
            weight, bias = slices[f"{name}weight"], slices.get(f"{name}bias")
            total.add_rows(weight, self.vectors, columns.start)
            first = columns.start + weight.stop - weight.start
            if bias is not None and first < columns.stop:
                total.add_rows(bias, self.vectors, first)


def unshared(calls: Sequence[LinearCall]) -> list[LinearCall]:
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
