"""How steps of drawn trajectories differ from the rows that the model was counted from."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.crowd import Crowd


@dataclass(eq=False)
class Drift:
    """Counts the steps of trajectories as they are drawn, and holds them against the model's rows.

    A step goes on from the one before it, so that a small miss of each step adds up: all steps
    together may lie elsewhere than the rows that were counted, from which the model knows how one
    step goes on.

    Args:
        crowd: rows of the model, of all times.

    Privacy: post-processing of the model and of what is released; no event.
    """

    crowd: Crowd
    _counts: dict[int, NDArray[np.float64]] = field(init=False)
    _walks: int = 0

    def __post_init__(self) -> None:
        columns, sizes = self.crowd.model.columns, self.crowd.model.field.sizes
        places = columns.of("observation", "action", "reward")
        self._counts = {place: np.zeros((self.crowd.classes, sizes[place])) for place in places}

    def begin(self, walks: int) -> None:
        """Note that so many trajectories begin."""
        self._walks += walks

    def see(self, rows: NDArray[np.int32]) -> None:
        """Count the bins ``(N, V)`` of a step of some trajectories."""
        units = self.crowd.units_of(rows)
        for place, counts in self._counts.items():
            np.add.at(counts, (units, rows[:, place]), 1)

    def facts(self) -> dict[str, Any]:
        """Return how many trajectories were counted, and the miss of each column.

        ``missed`` is the total variation between all steps and the model's rows, in the bins of
        the column, with classes of units as frequent as the model has them. ``by_chance`` is what
        it would be, on average, if each trajectory was one row of the model.
        """
        shares = self.crowd.shares(self._counts)
        weights = self.crowd.class_weights
        chance = 1 / max(self._walks, 1) + 1 / len(self.crowd.rows)
        found = {}
        for place, counts in self._counts.items():
            steps = counts.sum(axis=1, keepdims=True)
            drawn = (weights[:, None] * counts / np.maximum(steps, 1)).sum(axis=0)
            missed = np.abs(drawn / max(drawn.sum(), 1e-12) - shares[place]).sum() / 2
            others = np.maximum(1 - shares[place], 0)  # weights may add up to a little above one
            even = np.sqrt(2 / math.pi * shares[place] * others * chance).sum() / 2
            found[self.crowd.model.columns[place].name] = {
                "missed": round(float(missed), 4),
                "by_chance": round(float(even), 4),
            }
        return {"trajectories": self._walks, "columns": found}
