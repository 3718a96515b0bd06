"""A stored dataset as one flat CSV or Parquet table."""

import functools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import atomic_path
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION

if TYPE_CHECKING:
    import pandas as pd


class ExportFormat(StrEnum):
    """The formats that `export` writes."""

    CSV = "csv"
    PARQUET = "parquet"


def export(
    store: DatasetStore,
    dataset: str,
    format: str,  # noqa: A002
    out: Path,
    *,
    chunk_rows: int = CHUNK_ROWS,
) -> None:
    """Write a dataset as one table, a row a transition.

    Columns: ``trajectory`` and ``step`` (trajectories only), ``observation_0 ..``, ``action_0 ..``,
    ``reward``, ``next_observation_0 ..``, ``terminated``, ``truncated``, and ``unit`` (the unit
    column's hashed values, if there is one). A Discrete part is one column, ``observation`` or
    ``action``.

    Args:
        store: where the dataset lies.
        dataset: its id.
        format: ``"csv"`` or ``"parquet"``.
        out: the file to write; it must not exist.
        chunk_rows: rows held at a time.

    Raises:
        ConfigError: no such dataset, an unknown format, or ``out`` exists.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    known = [member.value for member in ExportFormat]
    if format not in known:
        raise ConfigError(f"format must be one of {', '.join(known)}, got {format!r}")
    frames = _frames(store, dataset, chunk_rows)
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    write = _write_csv if format == ExportFormat.CSV else _write_parquet
    with atomic_path(out) as temporary:
        write(frames, temporary)


def _write_csv(frames: Iterator["pd.DataFrame"], path: Path) -> None:
    with path.open("w", newline="") as file:
        for number, frame in enumerate(frames):
            frame.to_csv(file, index=False, header=number == 0)


def _write_parquet(frames: Iterator["pd.DataFrame"], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _frames(store: DatasetStore, dataset: str, chunk_rows: int) -> Iterator["pd.DataFrame"]:
    """Check that the dataset exists, and return its rows as chunks of a flat table."""
    info = store.info(dataset)
    unit = info.unit_column or TRANSITION
    numbered = info.kind == "trajectories"
    read = functools.partial(store.iter_transitions, dataset, chunk_rows=chunk_rows)
    chunks = read(unit=TRAJECTORY if numbered else unit)
    units = read(unit=unit) if numbered and info.unit_column else None

    def frames() -> Iterator["pd.DataFrame"]:
        import pandas as pd

        step = _StepCounter()
        for chunk in chunks:
            columns: dict[str, NDArray[Any]] = {}
            if numbered:
                columns = {"trajectory": chunk.unit_ids, "step": step.number(chunk.unit_ids)}
            columns |= _part_columns("observation", chunk.observations)
            columns |= _part_columns("action", chunk.actions)
            columns["reward"] = chunk.rewards
            columns |= _part_columns("next_observation", chunk.next_observations)
            columns["terminated"], columns["truncated"] = chunk.terminated, chunk.truncated
            if info.unit_column is not None:
                columns["unit"] = chunk.unit_ids if units is None else next(units).unit_ids
            yield pd.DataFrame(columns)

    return frames()


class _StepCounter:
    """Numbers the rows within their trajectory, across chunks."""

    def __init__(self) -> None:
        self._open: tuple[int, int] = (-1, 0)

    def number(self, trajectories: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the step of each row; rows of one trajectory follow each other."""
        _, starts, lengths = np.unique(trajectories, return_index=True, return_counts=True)
        steps = np.arange(len(trajectories)) - np.repeat(starts, lengths)
        open_trajectory, taken = self._open
        steps[trajectories == np.uint64(max(open_trajectory, 0))] += taken
        self._open = (int(trajectories[-1]), int(steps[-1]) + 1)
        return steps


def _part_columns(name: str, part: NDArray[Any]) -> dict[str, NDArray[Any]]:
    if part.ndim == 1:
        return {name: part}
    return {f"{name}_{i}": part[:, i] for i in range(part.shape[1])}
