"""One call of a linear layer, recorded: what its parameters' gradients follow from."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from distributed_privrl.rounds.local_update import SUM_EVERY_ROWS
from distributed_privrl.rounds.row_kernels import add_rows_
from distributed_privrl.rounds.unit_rows import UnitRows

_FORMING_COST = 2  # of a number that is formed, scaled and added, in multiplications of a Gram


class LinearCall(NamedTuple):
    """What the gradients of a linear layer follow from.

    Attributes:
        name: the layer's prefix among the parameters.
        tokens: T, places of each row at which the layer was applied.
        inputs: ``(R * T, I)``.
        gradients: of the output, ``(R * T, O)``.
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

    def part(self, rows: slice) -> "LinearCall":
        """Return the call for some of its rows."""
        own = slice(rows.start * self.tokens, rows.stop * self.tokens)
        return self._replace(inputs=self.inputs[own], gradients=self.gradients[own])

    def is_formed(self, units: UnitRows) -> bool:
        """Say whether units' gradients are formed: cheaper, or too many tokens for one sum."""
        outputs, inputs = self.shape
        gram = (units.most * self.tokens) ** 2 * (outputs + inputs)
        return gram > _FORMING_COST * outputs * inputs or self.inputs.shape[0] > SUM_EVERY_ROWS


class FormedVectors:
    """Units' gradients of some layers, formed: one after the other in a vector for each unit.

    Args:
        calls: of the layers.
        units: which rows are whose.
        memory: ``(M, Q)`` with M >= U, overwritten.
    """

    def __init__(self, calls: Sequence[LinearCall], units: UnitRows, memory: Tensor) -> None:
        self.vectors = memory[: len(units)]
        self._calls = calls
        start = 0
        for call in calls:
            start = self._form(call, units.times(call.tokens), start)

    def _form(self, call: LinearCall, units: UnitRows, start: int) -> int:
        """Write the units' gradients of a layer to the columns from ``start``; return the end."""
        outputs, inputs = call.shape
        middle, end = start + outputs * inputs, start + call.numbers
        weights = self.vectors[:, start:middle].view(len(units), outputs, inputs)
        if units.equal:
            gradients = units.padded(call.gradients)
            torch.bmm(gradients.transpose(1, 2), units.padded(call.inputs), out=weights)
            if call.has_bias:
                torch.sum(gradients, dim=1, out=self.vectors[:, middle:end])
            return end
        for unit, rows in enumerate(units.slices):
            own = call.gradients[rows]
            torch.mm(own.t(), call.inputs[rows], out=weights[unit])
            if call.has_bias:
                torch.sum(own, dim=0, out=self.vectors[unit, middle:end])
        return end

    def add_to(self, accumulator: Tensor, slices: dict[str, slice]) -> None:
        """Add their sum over units, formed in float64, to the layers' places in ``accumulator``."""
        start = 0
        for call in self._calls:
            first = slices[f"{call.name}weight"].start  # the bias follows
            numbers = call.numbers
            add_rows_(accumulator[first : first + numbers], self.vectors, start)
            start += numbers


def unshared(calls: Sequence[LinearCall], others: Sequence[LinearCall]) -> list[LinearCall]:
    """Return calls whose contiguous gradients may be scaled in place one by one.

    Autograd hands the same tensor to both addends of a sum: scaled twice, its layers would learn
    at the square of the clipping factor.

    Args:
        calls: whose gradients will be scaled.
        others: whose gradients must stay as they are.
    """
    seen = {call.gradients.untyped_storage().data_ptr() for call in others}
    own = []
    for call in calls:
        gradients = call.gradients.contiguous()
        pointer = gradients.untyped_storage().data_ptr()
        if pointer in seen:
            gradients = gradients.clone()
        seen.add(pointer)
        own.append(call._replace(gradients=gradients))
    return own
