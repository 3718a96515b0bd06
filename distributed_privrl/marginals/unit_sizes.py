"""How many rows a unit has, as a hidden column of the table.

A unit's rows weigh no more than so many rows together, so that counts tell of units rather than of
rows: of two planes alike, one that flies ten times as often. The class of a unit's size is counted
with its rows. Rows of a class are drawn as often as rows of that class are, and not units.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_RATIO = 2.0
"""How much larger the units of the next class are, about."""
_MOST = 6
"""Classes beside the first."""
_OPEN = 1.5
"""Size of the units of an open class, in those of its smallest one."""


@dataclass(frozen=True)
class UnitSizes:
    """Classes of units by how many rows they have.

    Units of the first have ``cap`` rows at most, and their rows weigh alike.

    Args:
        cap: public number c: each of a unit's n rows weighs 1 / max(n, c).
        most: public cap on the rows of a unit that count; None: all do.

    Example:
        >>> UnitSizes(50, 600).starts.tolist()
        [0, 51, 94, 174, 323]
        >>> UnitSizes(50, 600).classes(np.array([1, 50, 51, 600])).tolist()
        [0, 0, 1, 4]
    """

    cap: int
    most: int | None

    @property
    def count(self) -> int:
        """How many classes there are; 1: rows of all units weigh alike."""
        return len(self._edges)

    @cached_property
    def _edges(self) -> NDArray[np.float64]:
        """The most rows of a unit of each class, ``(count,)``; of the last one, too, if it ends."""
        classes, ratio = _MOST, _RATIO
        if self.most is not None:
            wide = max(self.most / self.cap, 1.0)
            classes = min(_MOST, math.ceil(math.log(wide, _RATIO)))
            ratio = wide ** (1 / max(classes, 1))
        return np.unique(np.rint(self.cap * ratio ** np.arange(classes + 1)))

    @property
    def starts(self) -> NDArray[np.int64]:
        """The fewest rows of a unit of each class, ``(count,)``."""
        return np.append(0, self._edges[:-1] + 1).astype(np.int64)

    @property
    def rows(self) -> NDArray[np.float64]:
        """Rows of a unit of each class, about, ``(count,)``: so many of them weigh one."""
        low, high = self._edges[:-1] + 1, self._edges[1:]
        middle = np.sqrt(low * high)
        if self.most is None:
            middle[-1] = _OPEN * low[-1]
        return np.append(self.cap, middle)

    def classes(self, counts: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the class of units with so many rows."""
        return (np.searchsorted(self.starts, counts, side="right") - 1).astype(np.int32)
