"""What a step knows of the past: the level of a number, a mean of what it was so far.

A step knows the state that it begins in. What was before is lost, and where a number is missing,
the number is, too. People keep a level of their own, which no single value tells: a lasting trait,
with what changes from time to time around it. So the level is one more column of a step, known
before it and no part of a row that is drawn: the mean of the first values, then one that gives each
new value a seventh of the weight, so that it follows what wanders. Of a category it is the usual
one, and whether that is sure. The level that a trajectory has come to follows from what was drawn.

Reference: Roberts 1959 (exponentially weighted moving averages).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.drawing import NumberModel
from distributed_privrl.marginals.levels import updated, usual


@dataclass(eq=False)
class _Level:
    """What is known of a column's past, of trajectories that are drawn side by side.

    Args:
        column: that tells of it.
        levels: ``(N,)`` of a number, ``(N, K)`` of each category; nan: none yet.
        seen: of how many values they are, of the same shape.
        last: ``(N,)``, the numbers before; nan: none yet.
    """

    column: Column
    levels: NDArray[np.float64]
    seen: NDArray[np.int64]
    last: NDArray[np.float64]

    @classmethod
    def begin(cls, column: Column, count: int) -> "_Level":
        """Return what is known before so many trajectories begin."""
        shape = (count,) if column.cells is not None else (count, column.categories // 2)
        return cls(
            column, np.full(shape, np.nan), np.zeros(shape, np.int64), np.full(count, np.nan)
        )

    def select(self, kept: NDArray[np.bool_]) -> None:
        """Go on with some of the trajectories alone, ``(N,)``."""
        self.levels, self.seen, self.last = self.levels[kept], self.seen[kept], self.last[kept]

    def see(self, now: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take up values, ``(N,)``, and return the levels, or usual categories; see `usual`."""
        if self.column.cells is None:
            each = (now[:, None] == np.arange(self.levels.shape[1])).astype(np.float64)
            self.levels, self.seen = updated(self.levels, self.seen, each)
            return usual(self.levels, self.seen[:, 0], now.astype(np.int64)).astype(np.float64)
        if self.column.difference:
            now, self.last = now - self.last, now
        self.levels, self.seen = updated(self.levels, self.seen, now)
        return self.levels


@dataclass(eq=False)
class Memory:
    """The levels of trajectories that are drawn side by side.

    Args:
        model: which columns are levels, and their bins.
        levels: of each of these columns, by its place.
    """

    model: NumberModel
    levels: dict[int, _Level]

    @classmethod
    def begin(cls, model: NumberModel, count: int) -> "Memory":
        """Return what is known of so many trajectories before they begin."""
        columns = model.columns
        return cls(model, {i: _Level.begin(columns[i], count) for i in columns.of("memory")})

    def select(self, kept: NDArray[np.bool_]) -> None:
        """Go on with some of the trajectories alone, ``(N,)``."""
        for level in self.levels.values():
            level.select(kept)

    def see(self, numbers: Sequence[NDArray[np.float64]], bins: NDArray[np.int32]) -> None:
        """Take up a state, and write the bins of the levels, in place.

        Args:
            numbers: of each column, ``(N,)``, or categories from 0; those that have a level are
                read.
            bins: ``(N, V)``.
        """
        columns, shapes = self.model.columns, self.model.shapes
        for place, level in self.levels.items():
            found = level.see(numbers[remembered(columns, place)])
            bins[:, place] = shapes[place].bins[columns.recoded(place, found)]


def remembered(columns: TableColumns, place: int) -> int:
    """Return the column of the observation whose level a column is."""
    own = columns[place].place
    return next(i for i in columns.of("observation") if columns[i].place == own)
