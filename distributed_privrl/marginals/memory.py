"""What a step knows of a number's past: its level, a mean of what it was so far.

A step knows the state that it begins in. What was before is lost, and where a number is missing,
the number is, too. People keep a level of their own, which no single value tells: a lasting trait,
with what changes from time to time around it. So the level is one more column of a step, known
before it and no part of a row that is drawn: the mean of the first values, then one that gives each
new value a seventh of the weight, so that it follows what wanders. The level that a trajectory has
come to follows from the numbers that were drawn.

Reference: Roberts 1959 (exponentially weighted moving averages).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.drawing import NumberModel
from distributed_privrl.marginals.levels import updated


@dataclass(eq=False)
class Memory:
    """The levels of trajectories that are drawn side by side.

    Args:
        model: which columns are levels, and their bins.
        levels: ``(N, M)`` of each trajectory so far, in the order of the columns; nan: none yet.
        seen: ``(N, M)``, how many values each is of.
        last: ``(N, M)``, the numbers before; nan: none yet.
    """

    model: NumberModel
    levels: NDArray[np.float64]
    seen: NDArray[np.int64]
    last: NDArray[np.float64]

    @classmethod
    def begin(cls, model: NumberModel, count: int) -> "Memory":
        """Return what is known of so many trajectories before they begin."""
        shape = count, len(model.columns.of("memory"))
        return cls(model, np.full(shape, np.nan), np.zeros(shape, np.int64), np.full(shape, np.nan))

    def select(self, kept: NDArray[np.bool_]) -> None:
        """Go on with some of the trajectories alone, ``(N,)``."""
        self.levels, self.seen, self.last = self.levels[kept], self.seen[kept], self.last[kept]

    def see(self, numbers: Sequence[NDArray[np.float64]], bins: NDArray[np.int32]) -> None:
        """Take up the numbers of a state, and write the bins of the levels, in place.

        Args:
            numbers: of each column, ``(N,)``; those that have a level are read.
            bins: ``(N, V)``.
        """
        columns, shapes = self.model.columns, self.model.shapes
        for i, place in enumerate(columns.of("memory")):
            now = numbers[remembered(columns, place)]
            if columns[place].difference:
                now, self.last[:, i] = now - self.last[:, i], now
            self.levels[:, i], self.seen[:, i] = updated(self.levels[:, i], self.seen[:, i], now)
            cells = columns.recoded(place, self.levels[:, i])
            bins[:, place] = shapes[place].bins[cells]


def remembered(columns: TableColumns, place: int) -> int:
    """Return the column of the observation whose level a column is."""
    own = columns[place].place
    return next(i for i in columns.of("observation") if columns[i].place == own)
