"""Public cells of a number: fine where numbers are small, at round ends, atoms by themselves.

Nobody has looked at the rows. Cells are even over the public range and, nearer and nearer to zero,
ever finer, so that a heavy tail and a narrow bulk both find cells that fit; their ends are numbers
that people write down (1, 2, 5, 10, ...), because rules are made at such numbers. The ends of the
range, where clipped values lie, and zero have cells of their own.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

EVEN_CELLS = 48
"""Cells of equal width over the public range, at least; at most 2.5 times as many."""
FINEST = 4096
"""The finest cells are no narrower than this part of the range."""
FEW_VALUES = 128
"""A number of so few values has a cell for each."""
MOST_VALUES = 8192
"""Up to so many values, each is counted by itself beside its cell."""
_MARKS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
_ROUNDING = 1e-9


@dataclass(frozen=True)
class NumberCells:
    """Cells of a number between public ends.

    Args:
        low: the least value; smaller ones count as this one.
        high: the largest value.
        step: values are ``low + k step``; 0: any number.
        gaps: rows may have no number, which is nan; they are in a last cell of their own.

    Raises:
        ConfigError: the range is empty or not finite, or no whole number of steps.
    """

    low: float
    high: float
    step: float = 0.0
    gaps: bool = False

    def __post_init__(self) -> None:
        width = self.high - self.low
        if not (math.isfinite(width) and width > 0 and self.step >= 0):
            raise ConfigError(
                f"cells need finite low < high and a step of 0 or more, got {self.low},"
                f" {self.high}, {self.step}"
            )
        if self.step and abs(width / self.step - round(width / self.step)) > 1e-6:
            raise ConfigError(f"{self.low} to {self.high} is no whole number of steps {self.step}")

    @property
    def value_count(self) -> int:
        """How many values there are; 0: any number."""
        return round((self.high - self.low) / self.step) + 1 if self.step else 0

    @property
    def counted_values(self) -> int:
        """How many values are counted by themselves, beside the cells: none, or all, and gaps."""
        own = FEW_VALUES < self.value_count <= MOST_VALUES
        return self.value_count + self.gaps if own else 0

    @cached_property
    def numbers(self) -> "NumberCells":
        """The same without the cell of gaps."""
        return replace(self, gaps=False)

    @property
    def size(self) -> int:
        """The number C of cells."""
        return len(self.edges[0])

    @cached_property
    def edges(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Least and largest number of each cell, ``(C,)``, rising; equal: an atom.

        Cells of a number with a step hold the values from the one to the other, both included;
        others hold the numbers between, and an end only where no atom has it. Gaps are nan.
        """
        if self.gaps:
            low, high = self.numbers.edges
            return np.append(low, np.nan), np.append(high, np.nan)
        if self.step:
            last = np.append(self._first_values[1:], self.value_count) - 1
            first = self._first_values.astype(np.float64)
            return self.low + first * self.step, self.low + last.astype(np.float64) * self.step
        starts, stops = self._intervals_and_atoms
        order = np.lexsort((stops, starts))
        return starts[order], stops[order]

    @cached_property
    def widths(self) -> NDArray[np.float64]:
        """The width of each cell, ``(C,)``: a value with a step is as wide as that; 0 for atoms."""
        low, high = self.edges
        return high - low + self.step

    @cached_property
    def atoms(self) -> NDArray[np.bool_]:
        """Which cells hold one value alone, ``(C,)``; gaps are none."""
        low, high = self.edges
        return np.asarray(low == high)

    @cached_property
    def marked(self) -> NDArray[np.bool_]:
        """Which cells hold zero or an end of the range alone, ``(C,)``."""
        return np.asarray(self.atoms & np.isin(self.edges[0], self._atom_values))

    @cached_property
    def roundness(self) -> NDArray[np.float64]:
        """How round the least number of each cell is, ``(C,)``: log10 of what divides it."""
        numbers, best = self.edges[0], np.full(self.size, -math.inf)
        top = math.floor(math.log10(self.high - self.low))
        for power in range(top - 6, top + 1):
            for mark in (1, 2, 5):
                unit = mark * 10.0**power
                divides = np.abs(numbers / unit - np.rint(numbers / unit)) < 1e-6
                best = np.where(divides, np.maximum(best, math.log10(unit)), best)
        return best

    def cells_of(self, values: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the cell of each finite value, ``(N,)``, and of nan where there are gaps."""
        if self.gaps:
            missing = np.isnan(values)
            cells = self.numbers.cells_of(np.where(missing, self.low, values))
            return np.where(missing, self.size - 1, cells)
        if self.step:
            places = self.values_of(values)
            return np.searchsorted(self._first_values, places, side="right") - 1
        clipped = np.clip(values.astype(np.float64), self.low, self.high)
        intervals = len(self._points) - 1
        within = np.searchsorted(self._points, clipped, side="right") - 1
        cells = self._ranks[np.minimum(within, intervals - 1)]
        for place, atom in enumerate(self._atom_values):
            cells = np.where(clipped == atom, self._ranks[intervals + place], cells)
        return np.asarray(cells, np.int64)

    def values_of(self, values: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return which value each number is nearest to, from 0, ``(N,)``; needs a step.

        Gaps come after the last value.
        """
        if self.gaps:
            missing = np.isnan(values)
            found = self.numbers.values_of(np.where(missing, self.low, values))
            return np.where(missing, self.value_count, found)
        clipped = np.clip(values.astype(np.float64), self.low, self.high)
        return np.rint((clipped - self.low) / self.step).astype(np.int64)

    def first_value(self, cell: int) -> int:
        """Return the first value of a cell, from 0; needs a step."""
        return int(self._first_values[cell])

    @cached_property
    def _first_values(self) -> NDArray[np.int64]:
        """The first value of each cell, from 0, ``(C,)``; needs a step."""
        count = self.value_count
        if count <= FEW_VALUES:
            return np.arange(count)
        atoms = np.rint((self._atom_values - self.low) / self.step).astype(np.int64)
        points = np.ceil((self._points - self.low) / self.step - _ROUNDING).astype(np.int64)
        firsts = np.concatenate([[0], points, atoms, atoms + 1])
        return np.unique(firsts[(firsts >= 0) & (firsts < count)])

    @cached_property
    def _points(self) -> NDArray[np.float64]:
        """Where cells end, ``(P,)``, rising, from the least value to the largest."""
        width = self.high - self.low
        even = max(_round_below(width / EVEN_CELLS), self.step)
        least = max(self.step, width / FINEST)
        powers = range(math.floor(math.log10(least)), math.ceil(math.log10(width)))
        fine = np.array([mark * 10.0**power for power in powers for mark in _MARKS])
        fine = fine[(fine >= least * (1 - _ROUNDING)) & (fine < width)]
        points = np.concatenate(
            [
                np.arange(math.ceil(self.low / even), math.floor(self.high / even) + 1) * even,
                fine,
                -fine,
                self._atom_values,
            ]
        )
        points = np.unique(points[(points >= self.low) & (points <= self.high)])
        apart = np.append(True, np.diff(points) > least / 2)
        apart |= np.isin(points, self._atom_values)
        kept: NDArray[np.float64] = points[apart]
        return kept

    @cached_property
    def _atom_values(self) -> NDArray[np.float64]:
        zero = [0.0] if self.low < 0 < self.high else []
        return np.array([self.low, *zero, self.high])

    @cached_property
    def _intervals_and_atoms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        points, atoms = self._points, self._atom_values
        return np.concatenate([points[:-1], atoms]), np.concatenate([points[1:], atoms])

    @cached_property
    def _ranks(self) -> NDArray[np.int64]:
        """The cell of each interval, then of each atom."""
        starts, stops = self._intervals_and_atoms
        order = np.lexsort((stops, starts))
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        return ranks


def _round_below(number: float) -> float:
    """Return the largest of 1, 2, 5, 10, ... times a power of ten that is not above ``number``."""
    power = 10.0 ** math.floor(math.log10(number))
    return max(mark * power for mark in (1, 2, 5) if mark * power <= number * (1 + _ROUNDING))
