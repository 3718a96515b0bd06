"""How rows come to the learners, encoded once: held by this process, or by Ray Data from a bridge.

One learner in this process gets `HeldRows`: no other process sees them, and Ray need not run.
Remote learners get them from one actor of Ray Data. `ray.data.read_parquet` has steps of its own
that ask for whole CPUs, and waits for ever where learners or trials hold them all; the actor here
reads the files itself, and asks for none.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from ray.data import DataContext
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.offline.offline_data import OfflineData
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import fit_observations
from distributed_privrl.agents.training import packed_rows
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.runtime.rllib.bridge import (
    COLUMNS,
    Bridge,
    Part,
    check_rows,
    order_of,
)

ROWS = f"{DEFAULT_MODULE_ID}/rows"


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldRows:
    """Encoded rows in the memory of this process.

    Privacy: they are not copied with a configuration, and refuse to be pickled: neither Ray's
        object store nor a file of RLlib gets them.

    Args:
        rows: ``(N, R)`` as from `packed_rows`.
        observation_space: Box or Discrete.
        action_space: Box with finite bounds, or Discrete.
        normalisation: of the observations, fitted on these rows alone.
    """

    rows: NDArray[np.float32]
    observation_space: Space
    action_space: Space
    normalisation: Normalisation

    @classmethod
    def of(
        cls, transitions: Transitions, *, observation_space: Space, action_space: Space, seed: int
    ) -> Self:
        """Return the rows that a bridge of the same transitions and seed would give.

        Raises:
            ConfigError: spaces or rows that no agent can use.
        """
        check_rows(transitions, observation_space)
        normalisation = fit_observations(observation_space, transitions.observations)
        rows = packed_rows(
            transitions,
            observation_space=observation_space,
            action_space=action_space,
            normalisation=normalisation,
        )
        return cls(
            rows=rows[order_of(transitions, seed)],
            observation_space=observation_space,
            action_space=action_space,
            normalisation=normalisation,
        )

    @classmethod
    def read(cls, bridge: Bridge) -> Self:
        """Return the rows of a bridge.

        Raises:
            StorageError: a file cannot be read, or is not the one that was written.
        """
        return cls(
            rows=np.concatenate([encoded(part, bridge) for part in bridge.parts]),
            observation_space=bridge.observation_space,
            action_space=bridge.action_space,
            normalisation=bridge.normalisation,
        )

    def iter_torch_batches(self, **_: Any) -> Iterator[dict[str, torch.Tensor]]:
        """Yield all rows at once, as an iterator of Ray Data would."""
        yield {ROWS: torch.from_numpy(self.rows)}

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        """Return the same: RLlib copies its configurations many times."""
        return self

    def __reduce__(self) -> NoReturn:
        """Refuse to leave this process."""
        raise UnsafeError(
            "rows in memory do not leave their process: set num_learners and numbers of env runners"
            " to 0, or give a bridge"
        )


class HeldData(OfflineData):  # type: ignore[misc]
    """RLlib's offline data, held by this process, without Ray Data.

    Args:
        config: of the algorithm: with ``held``, or with a bridge.
    """

    def __init__(self, config: Any) -> None:
        self._held: HeldRows = config.held or HeldRows.read(
            Bridge.from_json(config.bridge_json, Path(config.input_[0]))
        )

    def sample(self, *_: Any, **__: Any) -> list[HeldRows]:
        """Return what the one learner iterates over."""
        return [self._held]


class BridgeData(OfflineData):  # type: ignore[misc]
    """RLlib's offline data for remote learners, without progress bars."""

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
