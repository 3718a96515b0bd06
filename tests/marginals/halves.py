"""Columns whose halves are asked for, and shapes that say where these lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import Gaps
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.marginals.column import NextObservation
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.step_tables import step_columns


def shapes_of(columns: TableColumns, masses: dict[int, list[float]] | None = None) -> list[Any]:
    """Return shapes whose bins are cells, of masses that are told, else all alike."""
    found = []
    for place, size in enumerate(columns.sizes):
        own = np.array((masses or {}).get(place, np.ones(size)), np.float64)
        found.append(ColumnShape(own, np.arange(size), own, 0.0, np.empty(0)))
    return found


@dataclass
class Known:
    """What is known of all columns: see `correlations.Known`."""

    columns: TableColumns
    shapes: Sequence[Any]
    total: float
    followed: float


def wide(following: NextObservation = "absolute") -> TableColumns:
    """Return columns of a number that may be missing, a number, seven actions and a reward.

    Args:
        following: how next observations are told.
    """
    bounds = Bounds(
        low=np.zeros(3),
        high=np.array([3.0, 9.0, 1.0]),
        step=np.ones(3),
        columns=("observation_0", "observation_2", "reward"),
    )
    return step_columns(
        TableBox(np.zeros(3, np.float32), np.array([3, 1, 9], np.float32), ((1, 2),)),
        Discrete(7),
        bounds,
        next_observation=following,
        gaps=Gaps(observation=(0,)),
    )
