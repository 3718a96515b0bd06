"""A declared discretisation of Box actions: public levels of each of their columns."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space, box_bounds

MOST_CELLS = 1000


@dataclass(frozen=True)
class ActionLevels:
    """Levels of each column; every combination of them is one action of a Discrete space.

    A recorded action counts as the combination nearest to it in every column, the last column
    changing fastest. The levels are public: none is chosen by looking at the data.

    Args:
        levels: of each column, rising.

    Raises:
        ConfigError: levels that do not rise (in float32), or fewer than 2 or more than 1000
            combinations.

    Example:
        >>> levels = ActionLevels(((-2.0, 0.0, 2.0),))
        >>> levels.cells(np.array([[-1.4], [0.3], [9.0]])).tolist()
        [0, 1, 2]
        >>> levels.values(np.array([0, 2])).tolist()
        [[-2.0], [2.0]]
    """

    levels: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        columns = [np.array(column, dtype=np.float32) for column in self.levels]
        for index, column in enumerate(columns):
            if not (len(column) and np.isfinite(column).all() and (np.diff(column) > 0).all()):
                raise ConfigError(
                    f"action_levels[{index}] must rise, got {list(self.levels[index])}"
                )
        if not 2 <= self.count <= MOST_CELLS:
            raise ConfigError(
                f"action_levels must have 2 to {MOST_CELLS} combinations, got {self.count}"
            )

    @classmethod
    def of(cls, levels: Sequence[Sequence[float]], space: Space) -> "ActionLevels":
        """Return the levels, if they are of the actions of ``space``.

        Raises:
            ConfigError: its actions are not those of a Box, it has another number of columns, or a
                level lies outside it.
        """
        if not isinstance(space, Box):
            raise ConfigError(
                f"action_levels are for actions of a Box, got {space}: leave them out"
            )
        found, (low, high) = cls(tuple(tuple(column) for column in levels)), box_bounds(space)
        if len(levels) != len(low):
            raise ConfigError(
                f"action_levels must have one list for each of {len(low)} columns of actions, got"
                f" {len(levels)}"
            )
        if (found.box.low < low).any() or (found.box.high > high).any():
            raise ConfigError(f"action_levels must lie inside {space}, got {found.levels}")
        return found

    @property
    def count(self) -> int:
        """The number of combinations."""
        return math.prod(len(column) for column in self.levels)

    @property
    def space(self) -> Discrete[np.int64]:
        """The space of the combinations."""
        return Discrete(self.count)

    @cached_property
    def box(self) -> Box:
        """The Box that the levels span."""
        return Box(self.table.min(axis=0), self.table.max(axis=0), dtype=np.float32)

    @cached_property
    def table(self) -> NDArray[np.float32]:
        """The action of each combination, ``(C, A)``."""
        return np.array(list(itertools.product(*self.levels)), dtype=np.float32)

    def cells(self, actions: NDArray[Any]) -> NDArray[np.int64]:
        """Return the combination nearest to each of ``actions`` ``(N, A)``; -1: it is not finite.

        Privacy: each row of the result depends on its own action alone; nothing is released.
        """
        found = np.zeros(len(actions), dtype=np.int64)
        for index, column in enumerate(self.levels):
            rising = np.array(column, dtype=np.float32).astype(np.float64)
            between = (rising[1:] + rising[:-1]) / 2
            nearest = np.searchsorted(between, actions[:, index].astype(np.float64))
            found = found * len(column) + nearest
        finite: NDArray[np.bool_] = np.isfinite(actions).all(axis=1)
        return np.where(finite, found, -1)

    def values(self, cells: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return the actions ``(N, A)`` of combinations ``(N,)``."""
        return self.table[cells]
