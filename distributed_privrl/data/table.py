"""Transitions as one Parquet file, a row a transition, in RLlib's column names."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from distributed_privrl.core.errors import StorageError
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.packing import ends_of
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions

FILE_NAME = "transitions.parquet"
_COLUMNS = {
    "obs": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "new_obs": "next_observations",
    "terminateds": "terminated",
    "truncateds": "truncated",
}
_UNIT = "unit"


class TableWriter:
    """Appends transitions to a new Parquet file; a context manager.

    Args:
        path: the file to create.
        with_units: keep the unit ids, in the column ``unit``.
    """

    def __init__(self, path: Path, *, with_units: bool) -> None:
        self._path = path
        self._names = {**_COLUMNS, _UNIT: "unit_ids"} if with_units else _COLUMNS
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, transitions: Transitions) -> None:
        """Append a chunk, as one row group."""
        batch = pa.table({n: _to_arrow(getattr(transitions, f)) for n, f in self._names.items()})
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._path, batch.schema, use_dictionary=False)
        self._writer.write_table(batch)


def read_table(
    path: Path, dataset: str, *, unit: str, chunk_rows: int, keep: Keep | None
) -> Iterator[Transitions]:
    """Yield the transitions in a Parquet file.

    Args:
        path: the file.
        dataset: its id, for messages.
        unit: ``"transition"``: each row is one, named by its position; ``"trajectory"``: rows up to
            a terminated or truncated one are, named by their position; else the column ``unit``
            names it.
        chunk_rows: rows held at a time.
        keep: chooses among unit ids.

    Raises:
        StorageError: the file is damaged.
    """
    stored = unit not in (TRANSITION, TRAJECTORY)
    names = {**_COLUMNS, _UNIT: "unit_ids"} if stored else _COLUMNS
    rows = trajectories = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=chunk_rows, columns=list(names)):
                arrays = {field: _to_numpy(batch.column(name)) for name, field in names.items()}
                positions = np.arange(rows, rows + len(batch))
                chunk = Transitions(**{"unit_ids": positions, **arrays})
                if unit == TRAJECTORY:
                    ends = ends_of(chunk)
                    position = trajectories + np.cumsum(ends) - ends
                    chunk = replace(chunk, unit_ids=position.astype(np.uint64))
                    trajectories += int(ends.sum())
                rows += len(batch)
                yield chunk if keep is None else chunk.select(keep(chunk.unit_ids))
    except (pa.ArrowInvalid, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StorageError(f"dataset {dataset!r} is damaged ({reason}): write it again") from error


def read_unit_ids(path: Path) -> Iterator[NDArray[np.uint64]]:
    """Yield the column ``unit`` of a Parquet file, (N,) at a time."""
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=[_UNIT]):
            yield _to_numpy(batch.column(_UNIT))


def _to_arrow(array: NDArray[Any]) -> Any:
    if array.ndim == 1:
        return pa.array(array)
    return pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), array.shape[1])


def _to_numpy(column: Any) -> NDArray[Any]:
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.flatten()).reshape(len(column), column.type.list_size)
    return np.asarray(column)
