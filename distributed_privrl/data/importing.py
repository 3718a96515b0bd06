"""A table or file of arrays as a stored dataset, by a schema that names its columns."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.schema import ColumnsSchema, ImportSchema, declared_space
from distributed_privrl.data.sources import read_source
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.tabular import Table, assemble_trajectories
from distributed_privrl.data.trajectories import Trajectories, Transitions, as_part


def import_file(path: Path, schema: ImportSchema, store: DatasetStore, dataset: str) -> None:
    """Write the rows of a file as a new dataset.

    With a trajectory column, rows are sorted by ``order`` within it; with ``split_at_flags``, they
    follow each other and a trajectory ends at a row that is terminated or truncated. A trajectory's
    last row ends it: its successor is ``next_observation`` if that is named, anything if it
    terminates, and otherwise unknown: then its observation is the final one, and its step is
    dropped. Without either, rows are independent transitions. Values that are not finite, and
    categories outside their space, are kept as they are; the encoder makes null rows of them.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npz``, ``.hdf5`` or ``.h5`` file.
        schema: what its columns or arrays mean.
        store: where the dataset goes.
        dataset: its id.

    Raises:
        ConfigError: the file, a column, a type or the id is wrong; nothing is written.
        StorageError: the file cannot be read, or the dataset not written.
    """
    frame, columns = read_source(path, schema.columns)
    observation = declared_space("observation", schema.spaces.observation, columns.observation)
    action = declared_space("action", schema.spaces.action, columns.action)
    options: dict[str, Any] = {
        "observation_space": observation,
        "action_space": action,
        "environment": schema.environment,
        "unit_column": columns.unit,
        "metadata": {PUBLIC_KEY: True} if schema.public else {},
    }
    table = Table(path=path, frame=frame, observation=observation, action=action)
    if schema.has_trajectories:
        trajectories = _trajectories(table, columns)
        store.write_trajectories(dataset, trajectories, layout=schema.layout, **options)
    else:
        rows = _transitions(table, columns, table.units(columns.unit))
        store.write_transitions(dataset, rows, layout="transitions", **options)


def _transitions(table: Table, columns: ColumnsSchema, units: NDArray[np.uint64]) -> Transitions:
    """Return the rows as they stand; without a successor column, s' is s for the time being."""
    observations = table.part("observation", columns.observation)
    return Transitions(
        observations=observations,
        actions=table.part("action", columns.action),
        rewards=as_part("reward", table.numbers(columns.reward)[:, None])[:, 0],
        next_observations=(
            observations
            if columns.next_observation is None
            else table.part("observation", columns.next_observation)
        ),
        terminated=table.flags(columns.terminated),
        truncated=table.flags(columns.truncated),
        unit_ids=units,
    )


def _trajectories(table: Table, columns: ColumnsSchema) -> Trajectories:
    """Return the rows as trajectories, in the order of their first rows."""
    if columns.trajectory is None:
        ends = table.flags(columns.terminated) | table.flags(columns.truncated)
        ends[-1] = True
        lengths = np.diff(np.flatnonzero(ends) + 1, prepend=0)
    else:
        table, lengths = table.sorted_by(columns.trajectory, columns.order)
    if columns.unit is None:
        units = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint64)
    else:
        units = table.units(columns.unit)
    rows = _transitions(table, columns, units)
    return assemble_trajectories(
        rows, lengths, successors_known=columns.next_observation is not None, source=str(table.path)
    )
