"""Which rows of a micro-batch are whose."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class UnitRows:
    """Units with as many rows each, a unit's rows adjacent.

    All units of a micro-batch have the same number of rows, so that how one of them is computed
    follows from its own rows and from public numbers, whoever it meets there.

    Args:
        units: U.
        each: rows of a unit (K), at least one.

    Example:
        >>> import torch
        >>> UnitRows(2, 3).total(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
        tensor([ 6., 15.])
    """

    units: int
    each: int

    def __len__(self) -> int:
        return self.units

    @property
    def rows(self) -> int:
        """R = U x K."""
        return self.units * self.each

    def part(self, start: int, size: int) -> tuple["UnitRows", slice]:
        """Return at most ``size`` units from ``start``, and where their rows lie."""
        part = UnitRows(min(size, self.units - start), self.each)
        return part, slice(start * self.each, start * self.each + part.rows)

    def times(self, tokens: int) -> "UnitRows":
        """Return the same units with ``tokens`` rows for each row."""
        return UnitRows(self.units, self.each * tokens)

    def spread(self, values: Tensor) -> Tensor:
        """Return each unit's value for each of its rows, ``(U, ...) -> (R, ...)``."""
        return values if self.each == 1 else values.repeat_interleave(self.each, dim=0)

    def by_unit(self, values: Tensor) -> Tensor:
        """Return a view of the rows unit by unit, ``(R, ...) -> (U, K, ...)``."""
        return values.view(self.units, self.each, *values.shape[1:])

    def total(self, values: Tensor) -> Tensor:
        """Return the sum over each unit's rows, ``(R, ...) -> (U, ...)``."""
        return values if self.each == 1 else self.by_unit(values).sum(dim=1)
