"""Which rows of a micro-batch are whose."""

import itertools
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class UnitRows:
    """Units whose rows are adjacent, ``counts[u]`` of unit u.

    ``rows`` is their sum, ``most`` the largest, and ``equal`` says whether all are the same.

    Args:
        counts: rows of each unit, ``(U,)``, at least one of each.

    Example:
        >>> UnitRows(np.array([1, 2])).total(torch.tensor([1.0, 2.0, 3.0]))
        tensor([1., 5.])
    """

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self.counts = counts
        self.rows = int(counts.sum())
        self.most = int(counts.max(initial=1))
        self.equal = self.rows == len(counts) * self.most
        self._multiples: dict[int, UnitRows] = {}

    def __len__(self) -> int:
        return len(self.counts)

    def part(self, start: int, size: int) -> tuple["UnitRows", slice]:
        """Return at most ``size`` units from ``start``, and where their rows lie."""
        if start == 0 and size >= len(self):
            return self, slice(0, self.rows)
        part, first = UnitRows(self.counts[start : start + size]), int(self.counts[:start].sum())
        return part, slice(first, first + part.rows)

    def times(self, tokens: int) -> "UnitRows":
        """Return the same units with ``tokens`` rows for each row."""
        if tokens == 1:
            return self
        if tokens not in self._multiples:
            self._multiples[tokens] = UnitRows(self.counts * tokens)
        return self._multiples[tokens]

    @cached_property
    def slices(self) -> list[slice]:
        """Where each unit's rows lie."""
        ends = [0, *np.cumsum(self.counts).tolist()]
        return [slice(*pair) for pair in itertools.pairwise(ends)]

    def spread(self, values: Tensor) -> Tensor:
        """Return each unit's value for each of its rows, ``(U, ...) -> (R, ...)``."""
        if self.most == 1:
            return values
        if self.equal:
            return values.repeat_interleave(self.most, dim=0)
        return values.repeat_interleave(torch.from_numpy(self.counts).to(values.device), dim=0)

    def padded(self, values: Tensor) -> Tensor:
        """Return the rows unit by unit, zeros where a unit has fewer: ``(R, ...) -> (U, K, ...)``.

        A view where all units have the same number of rows.
        """
        shape = (len(self), self.most, *values.shape[1:])
        if self.equal:
            return values.view(shape)
        own = np.arange(self.most) < self.counts[:, None]
        padded = values.new_zeros(shape)
        padded[torch.from_numpy(own).to(values.device)] = values
        return padded

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over each unit's rows, ``(R, ...) -> (U, ...)``."""
        return values if self.most == 1 else self.padded(values).sum(dim=1)
