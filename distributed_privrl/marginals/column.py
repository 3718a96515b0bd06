"""A column of a table of steps: what of a transition it holds, in which public cells."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.spaces import group_values
from distributed_privrl.marginals.cells import NumberCells

Part = Literal[
    "observation",
    "action",
    "reward",
    "next_observation",
    "end",
    "previous",
    "memory",
    "time",
    "unit",
]
NextObservation = Literal["absolute", "difference", "counted"]
"""Numbers after a step as they are, as changes, or both, of which released counts leave one.

A change of a category of many values is that it stays, or else what it becomes.
"""
STAYS = 0
"""The category of a change that says so; the others are those of the column, each one more."""
ENDS = ("goes on", "terminates", "is cut")
"""What the categories of an end mean."""
TERMINATES = ENDS.index("terminates")


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table.

    Args:
        name: e.g. ``observation_0``, ``next_observation_0``, ``action``, ``end``.
        part: of a step that it belongs to.
        place: of a number or category within its part, from 0; of several columns, the first.
        categories: how many there are; 0: a number.
        start: the category that is counted first.
        width: columns of 0 and 1 in its part that hold the category together, one alone for a flag;
            0: the part holds it, or the number, as it is.
        cells: of a number.
        like: the column whose cells and counts stand for this one's: those of an observation for
            the same number after the step; None: it has its own.
        difference: the number is the change from the observation, or the level of such changes; of
            a category, `STAYS` or what it has become, counted from 1.
        within: ends of the number that changes; what lies beyond counts as these.
        rises: a number after a step is never below the one before it.
    """

    name: str
    part: Part
    place: int = 0
    categories: int = 0
    start: int = 0
    width: int = 0
    cells: NumberCells | None = None
    like: int | None = None
    difference: bool = False
    within: tuple[float, float] | None = None
    rises: bool = False

    @property
    def size(self) -> int:
        """Number of cells or categories."""
        return self.categories if self.cells is None else self.cells.size

    @property
    def gaps(self) -> bool:
        """Whether there may be no number, which is nan.

        The column after it in its part says so, or a level has none yet.
        """
        return self.cells is not None and self.cells.gaps

    @property
    def filler(self) -> float:
        """The number that stands where there is none: the one of its range nearest to 0."""
        assert self.cells is not None
        low, high = self.within or (self.cells.low, self.cells.high)
        return float(np.clip(0.0, low, high))

    @property
    def counted(self) -> int:
        """Integers that are counted for the column alone: cells, and values beside them."""
        if self.like is not None:
            return 0
        return self.size + (0 if self.cells is None else self.cells.counted_values)

    def values(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return the column's numbers or categories, ``(N,)``, in rows of its part.

        A category that is none of the column's is outside ``start .. start + categories - 1``. A
        gap is nan, and inf what is neither a number nor a gap.
        """
        if self.gaps:
            flags = group_values(part[:, self.place + 1 : self.place + 2])
            with np.errstate(all="ignore"):  # some kinds of nan complain of a cast
                numbers = part[:, self.place].astype(np.float64)
            found = np.where((flags == 0) & np.isfinite(numbers), numbers, np.inf)
            return np.where(flags == 1, np.nan, found)
        if self.width:
            return group_values(part[:, self.place : self.place + self.width])
        return part if part.ndim == 1 else part[:, self.place]

    def held(self, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return drawn numbers, or categories from 0, ``(N,)`` as a Box holds them, ``(N, C)``."""
        if self.gaps:
            missing = np.isnan(drawn)
            return np.column_stack([np.where(missing, self.filler, drawn), missing])
        if self.width > 1:
            return np.asarray(drawn[:, None] == np.arange(self.width), np.float64)
        return drawn[:, None]
