"""The perturbed settings that experts are trained in.

Reference: Expert-level DP, appendix B.1.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.environments.classic_control import ACROBOT, CARTPOLE
from distributed_privrl.environments.hiv import HIV
from distributed_privrl.environments.lunar_lander import LUNAR_LANDER

Axis = tuple[float, float, int]
"""Equally spaced values: the first, the last, their number."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of the values of several parameters.

    Args:
        axes: of each parameter.
    """

    axes: Mapping[str, Axis]

    def __len__(self) -> int:
        """Return the number of settings."""
        return int(np.prod([count for _, _, count in self.axes.values()]))

    def settings(self, experts: int, streams: Streams) -> dict[str, NDArray[np.float64]]:
        """Return the parameters of each expert, ``(E,)`` by name.

        All settings in a random order, again and again: with fewer experts than settings each has
        another one, and with more no setting has two experts more than another.

        Args:
            experts: E.
            streams: public randomness of the order.
        """
        values = [np.linspace(first, last, count) for first, last, count in self.axes.values()]
        table = np.array(list(itertools.product(*values)))
        order = streams.numpy("settings").permutation(len(table))
        chosen = table[order[np.arange(experts) % len(table)]]
        return {name: chosen[:, index].copy() for index, name in enumerate(self.axes)}

    def normalised(self, settings: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float32]:
        """Return settings ``(E,)`` by name as numbers in [-1, 1], ``(E, C)``."""
        columns = [
            2 * (settings[name] - first) / (last - first) - 1
            for name, (first, last, _) in self.axes.items()
        ]
        return np.stack(columns, axis=1).astype(np.float32)

    def as_metadata(self) -> dict[str, list[float]]:
        """Return first value, last value and number of values by name."""
        return {name: list(axis) for name, axis in self.axes.items()}


GRIDS: Mapping[str, Grid] = {
    CARTPOLE: Grid(
        axes={"gravity": (8.75, 11.0, 10), "force": (9.0, 11.25, 10), "cart_mass": (0.8, 1.25, 10)}
    ),
    ACROBOT: Grid(
        axes={
            "length": (0.8, 1.2, 10),
            "first_mass": (0.9, 1.1, 10),
            "second_mass": (0.9, 1.1, 10),
        }
    ),
    LUNAR_LANDER: Grid(
        axes={"gravity": (9.0, 11.0, 10), "wind": (0.0, 5.0, 10), "turbulence": (0.0, 0.5, 10)}
    ),
    HIV: Grid(
        axes={
            "first_penalty": (18750.0, 21250.0, 50),
            "second_penalty": (1850.0, 2150.0, 20),
            "efficacy_noise": (0.0, 0.01, 2),
        }
    ),
}
