"""How rows come from a bridge to the learners: read and encoded by one actor of Ray Data, once.

`ray.data.read_parquet` has steps of its own that ask for whole CPUs, and waits for ever where
learners or trials hold them all; the actor here reads the files itself, and asks for none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.data import DataContext
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

from distributed_privrl.agents.training import packed_rows
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.runtime.rllib.bridge import COLUMNS, Bridge, Part

ROWS = f"{DEFAULT_MODULE_ID}/rows"


class BridgeData(OfflineData):  # type: ignore[misc]
    """RLlib's offline data without progress bars."""

    def __init__(self, config: Any) -> None:
        context = DataContext.get_current().copy()
        context.enable_progress_bars = False
        with DataContext.current(context):
            super().__init__(config)


class RowEncoder(OfflinePreLearner):  # type: ignore[misc]
    """Reads a bridge, and encodes its rows: normalised, actions in [-1, 1], one-hot."""

    def __init__(self, *, config: Any, **_: Any) -> None:
        self._description = config.bridge_json

    def __call__(self, batch: dict[str, Any]) -> Iterator[dict[str, NDArray[np.float32]]]:
        """Yield encoded rows ``(N, R)`` of the bridges that ``item`` names, a file at a time."""
        for folder in batch["item"]:
            bridge = Bridge.from_json(self._description, Path(folder))
            for part in bridge.parts:
                yield {ROWS: encoded(part, bridge)}


def encoded(part: Part, bridge: Bridge) -> NDArray[np.float32]:
    """Return the encoded rows ``(N, R)`` of one file of a bridge.

    Raises:
        StorageError: it cannot be read, or is not the file that was written.
    """
    table = bridge.read(part)
    columns = {field: _values(table.column(name)) for name, field in COLUMNS.items()}
    return packed_rows(
        Transitions(**columns),
        observation_space=bridge.observation_space,
        action_space=bridge.action_space,
        normalisation=bridge.normalisation,
    )


def _values(column: Any) -> NDArray[Any]:
    flat = column.combine_chunks()
    if hasattr(flat.type, "list_size"):
        return np.asarray(flat.flatten()).reshape(len(flat), flat.type.list_size)
    return np.asarray(flat)
