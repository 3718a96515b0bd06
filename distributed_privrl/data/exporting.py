"""A stored dataset as one flat CSV or Parquet table, or as NPZ arrays in D4RL's names."""

import contextlib
import functools
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import atomic_path
from distributed_privrl.data.schema import ColumnsSchema
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.tabular import column_names
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION

if TYPE_CHECKING:
    import pandas as pd


class ExportFormat(StrEnum):
    """The formats that `export` writes."""

    CSV = "csv"
    PARQUET = "parquet"
    NPZ = "npz"


Chunk = dict[str, NDArray[Any]]
_ARRAY_NAMES = {
    "observation": "observations",
    "action": "actions",
    "reward": "rewards",
    "next_observation": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
}


def export(
    store: DatasetStore,
    dataset: str,
    format: str,  # noqa: A002
    out: Path,
    *,
    columns: ColumnsSchema | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> None:
    """Write a dataset as one file, a row a transition; its owner's alone unless it may leave.

    Columns of a table: ``trajectory`` and ``step`` (trajectories only), ``observation_0 ..``,
    ``action_0 ..``, ``reward``, ``next_observation_0 ..``, ``terminated``, ``truncated``, and
    ``unit`` (the unit column's hashed values, if there is one). A Discrete part is one column,
    ``observation`` or ``action``. ``columns`` names them as an imported table did; next
    observations without a name are the observations' with ``next_`` before. NPZ holds arrays of N
    rows: ``observations``, ``actions``, ``rewards``, ``next_observations``, ``terminals``,
    ``timeouts``, and ``trajectory``, ``step``, ``unit``.

    Args:
        store: where the dataset lies.
        dataset: its id.
        format: ``"csv"``, ``"parquet"`` or ``"npz"``.
        out: the file to write; it must not exist.
        columns: names of a table's columns.
        chunk_rows: rows held at a time.

    Raises:
        ConfigError: no such dataset, an unknown format, ``out`` exists or has the suffix of
            another format, or ``columns`` has other parts than the rows, or one name twice.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    known = [member.value for member in ExportFormat]
    if format not in known:
        raise ConfigError(f"format must be one of {', '.join(known)}, got {format!r}")
    if out.suffix[1:] in known and out.suffix != f".{format}":
        raise ConfigError(f"format is {format}, and {out} ends in {out.suffix}: make them agree")
    if columns is not None and format == ExportFormat.NPZ:
        raise ConfigError("a schema names the columns of csv and parquet, not npz's arrays")
    chunks = _chunks(store, dataset, chunk_rows)
    if columns is not None:
        chunks = (_named(chunk, columns) for chunk in chunks)
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    write = {"csv": _write_csv, "parquet": _write_parquet, "npz": _write_npz}[format]
    mode = 0o644 if store.info(dataset).may_leave else 0o600
    with atomic_path(out, mode=mode) as temporary:
        write(chunks, temporary)


def _write_csv(chunks: Iterable[Chunk], path: Path) -> None:
    with path.open("w", newline="") as file:
        for number, chunk in enumerate(chunks):
            _frame(chunk).to_csv(file, index=False, header=number == 0)


def _write_parquet(chunks: Iterable[Chunk], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = (pa.Table.from_pandas(_frame(chunk), preserve_index=False) for chunk in chunks)
    first = next(tables)
    with pq.ParquetWriter(path, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)


def _write_npz(chunks: Iterable[Chunk], path: Path) -> None:
    """Write each array as it comes into a file of its own, and then all of them into one."""
    with contextlib.ExitStack() as stack, zipfile.ZipFile(path, "w") as archive:
        files: dict[str, IO[bytes]] = {}
        rows = 0
        for chunk in chunks:
            rows += len(chunk["reward"])
            for name, values in chunk.items():
                if name not in files:
                    files[name] = stack.enter_context(tempfile.TemporaryFile(dir=path.parent))
                files[name].write(np.ascontiguousarray(values).data)
        for name, file in files.items():
            values = chunk[name]
            header = {
                "descr": np.lib.format.dtype_to_descr(values.dtype),
                "fortran_order": False,
                "shape": (rows, *values.shape[1:]),
            }
            member = zipfile.ZipInfo(f"{_ARRAY_NAMES.get(name, name)}.npy")
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array_header_1_0(target, header)
                file.seek(0)
                shutil.copyfileobj(file, target)


def _frame(chunk: Chunk) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame({name: column for part in chunk for name, column in _flat(chunk, part)})


def _flat(chunk: Chunk, part: str) -> list[tuple[str, NDArray[Any]]]:
    """Return the columns of a part with their names: several are numbered."""
    values = chunk[part]
    if values.ndim == 1:
        return [(part, values)]
    return [(f"{part}_{i}", values[:, i]) for i in range(values.shape[1])]


def _named(chunk: Chunk, columns: ColumnsSchema) -> Chunk:
    """Return the columns of a chunk under the names that a table has for them."""
    following = columns.next_observation
    names = {
        "trajectory": columns.trajectory,
        "step": columns.order,
        **columns.model_dump(exclude={"trajectory", "order", "next_observation"}),
        "next_observation": following or [f"next_{n}" for n in column_names(columns.observation)],
    }
    found: Chunk = {}
    for part in chunk:
        if part == "trajectory" and "unit" in chunk and columns.unit == columns.trajectory:
            continue  # one column had both roles: units tell trajectories apart
        mine = _flat(chunk, part)
        theirs = column_names(names[part]) or [part]
        if len(theirs) != len(mine):
            raise ConfigError(
                f"the schema names {len(theirs)} columns of {part}, the dataset has {len(mine)}"
            )
        for name, (_, column) in zip(theirs, mine, strict=True):
            if name in found:
                raise ConfigError(f"two columns would be called {name}: name both in the schema")
            found[name] = column
    return found


def _chunks(store: DatasetStore, dataset: str, chunk_rows: int) -> Iterator[Chunk]:
    """Check that the dataset exists, and return its rows as chunks of named arrays."""
    info = store.info(dataset)
    unit = info.unit_column or TRANSITION
    numbered = info.kind == "trajectories"
    read = functools.partial(store.iter_transitions, dataset, chunk_rows=chunk_rows)
    chunks = read(unit=TRAJECTORY if numbered else unit)
    units = read(unit=unit) if numbered and info.unit_column else None

    def named() -> Iterator[Chunk]:
        step = _StepCounter()
        for chunk in chunks:
            columns: Chunk = {}
            if numbered:
                columns = {"trajectory": chunk.unit_ids, "step": step.number(chunk.unit_ids)}
            columns["observation"], columns["action"] = chunk.observations, chunk.actions
            columns["reward"] = chunk.rewards
            columns["next_observation"] = chunk.next_observations
            columns["terminated"], columns["truncated"] = chunk.terminated, chunk.truncated
            if info.unit_column is not None:
                columns["unit"] = chunk.unit_ids if units is None else next(units).unit_ids
            yield columns

    return named()


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
