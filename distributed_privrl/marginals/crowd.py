"""Rows of a model, of all times: what walks are compared with."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel

_ROWS = 20_000


@dataclass(frozen=True, eq=False)
class Crowd:
    """Rows drawn from a model of a step, as many of each class of units.

    Args:
        model: of a step.
    """

    model: TableModel

    @cached_property
    def rows(self) -> NDArray[np.int32]:
        """Bins ``(N, V)``."""
        columns, field = self.model.columns, self.model.field
        rows = np.zeros((_ROWS, len(field.sizes)), np.int32)
        for unit in columns.of("unit"):
            rows[:, unit] = np.arange(_ROWS) % self.classes
        Drawer(field, columns.of("unit")).fill(rows, np.random.default_rng(0))
        return rows

    @property
    def classes(self) -> int:
        """Classes of units' sizes."""
        columns = self.model.columns
        return max([columns[unit].size for unit in columns.of("unit")], default=1)

    @property
    def class_weights(self) -> NDArray[np.float64]:
        """What rows of each class of units weigh together as they are counted, ``(K,)``."""
        for unit in self.model.columns.of("unit"):
            masses = self.model.shapes[unit].bin_masses
            return np.asarray(masses / masses.sum(), np.float64)
        return np.ones(1)

    def units_of(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the class of the unit of each row ``(N, V)``."""
        found = np.zeros(len(rows), np.int64)
        for unit in self.model.columns.of("unit"):
            found += rows[:, unit]
        return found

    def kinds(self, rows: NDArray[np.int32]) -> NDArray[np.int64]:
        """Return the time and the class of the unit of each row ``(N, V)``, as one number."""
        (time,) = self.model.columns.of("time")
        return rows[:, time].astype(np.int64) * self.classes + self.units_of(rows)

    @property
    def kind_shares(self) -> NDArray[np.float64]:
        """How rows are divided among kinds, ``(G,)``."""
        (time,) = self.model.columns.of("time")
        return self._shares(self.kinds(self.rows), self.model.field.sizes[time] * self.classes)

    def shares(self, places: Iterable[int]) -> dict[int, NDArray[np.float64]]:
        """Return how rows of all times are divided among the bins of columns, ``(B,)`` each."""
        sizes = self.model.field.sizes
        return {place: self._shares(self.rows[:, place], sizes[place]) for place in places}

    def _shares(self, found: NDArray[np.integer], size: int) -> NDArray[np.float64]:
        weights = self.class_weights[self.units_of(self.rows)]
        counts = np.bincount(found, weights=weights / weights.sum(), minlength=size)
        return counts.astype(np.float64)

    def later_actions(self) -> dict[int, NDArray[np.float64]]:
        """Return how actions after the first are divided, ``(K, A)`` by class of units."""
        columns, sizes = self.model.columns, self.model.field.sizes
        owners = np.arange(len(self.rows)) % self.classes
        (time,) = columns.of("time")
        later = self.rows[:, time] > 0
        found = {}
        for place in columns.of("action"):
            counts = np.zeros((self.classes, sizes[place]))
            np.add.at(counts, (owners[later], self.rows[later, place]), 1)
            found[place] = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        return found
