"""A stored dataset as one flat CSV or Parquet table, or as NPZ arrays in D4RL's names."""

import contextlib
import functools
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import atomic_path
from distributed_privrl.data.declared import (
    AnyKind,
    DeclaredTable,
    FlagKind,
    LabelledKind,
    column_names,
)
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, components
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION
from distributed_privrl.data.values import decoded, labelled


class ExportFormat(StrEnum):
    """The formats that `export` writes."""

    CSV = "csv"
    PARQUET = "parquet"
    NPZ = "npz"


_SUCCESSORS = ("next_observation", "terminated", "truncated")
"""Parts of a row that tell what follows it."""
Chunk = dict[str, NDArray[Any]]
Columns = dict[str, Any]
"""Columns of a table by name: arrays of numpy, or of pandas where values may be missing."""
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
    declared: DeclaredTable | None = None,
    rows_only: bool = False,
    chunk_rows: int = CHUNK_ROWS,
) -> None:
    """Write a dataset as one file, a row a transition; its owner's alone unless it may leave.

    Columns of a table: ``trajectory`` and ``step`` (trajectories only; the place of a row, from 0,
    never a value of the column that sorted them: none is stored), ``observation_0 ..``, ``action_0
    ..``, ``reward``, ``next_observation_0 ..``, ``terminated``, ``truncated``, and ``unit`` (the
    unit column's hashed values, if there is one). A Discrete part is one column, ``observation`` or
    ``action``. Rows that nothing follows have neither next observations nor ends, and a table
    without an action or a reward has none. What was imported from a table, and what was released of
    it, has the table's names and values: categories, flags and dates as its schema declared them.
    Next observations without a name are the observations' with ``next_`` before. Where two columns
    would have one name, the observation, else the action, has it, and the other the name above;
    where that is taken, too, it ends in ``_number``. NPZ holds arrays of N rows, all of them
    numbers: ``observations``, ``actions``, ``rewards``, ``next_observations``, ``terminals``,
    ``timeouts``, and ``trajectory``, ``step``, ``unit``.

    Args:
        store: where the dataset lies.
        dataset: its id.
        format: ``"csv"``, ``"parquet"`` or ``"npz"``.
        out: the file to write; it must not exist.
        declared: names and kinds of a table's columns (default: those that it was imported with).
        rows_only: leave out next observations and ends, but those that are columns of the table.
        chunk_rows: rows held at a time.

    Raises:
        ConfigError: no such dataset, an unknown format, ``out`` exists or has the suffix of
            another format, or ``declared`` has other parts than the rows, or one name twice.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    known = [member.value for member in ExportFormat]
    if format not in known:
        raise ConfigError(f"format must be one of {', '.join(known)}, got {format!r}")
    if out.suffix[1:] in known and out.suffix != f".{format}":
        raise ConfigError(f"format is {format}, and {out} ends in {out.suffix}: make them agree")
    if declared is not None and format == ExportFormat.NPZ:
        raise ConfigError("a schema names the columns of csv and parquet, not npz's arrays")
    if rows_only and format == ExportFormat.NPZ:
        raise ConfigError("rows alone are columns of csv and parquet; npz has all of D4RL's arrays")
    info = store.info(dataset)
    if out.exists():
        raise ConfigError(f"{out} exists already: choose another name")
    mode = 0o644 if info.may_leave else 0o600
    with atomic_path(out, mode=mode) as temporary:
        if format == ExportFormat.NPZ:
            _write_npz(_chunks(store, dataset, chunk_rows), temporary)
        else:
            write = {"csv": _write_csv, "parquet": _write_parquet}[format]
            named = named_chunks(
                store, dataset, declared=declared, rows_only=rows_only, chunk_rows=chunk_rows
            )
            write(named, temporary)


def named_chunks(
    store: DatasetStore,
    dataset: str,
    *,
    declared: DeclaredTable | None = None,
    rows_only: bool = False,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[Columns]:
    """Yield the rows of a dataset as columns of a table; see `export`.

    Raises:
        ConfigError: as `export`.
    """
    info = store.info(dataset)
    table = declared or info.declared
    kept = _columns_of_successors(table) if rows_only else _SUCCESSORS
    for chunk in _chunks(store, dataset, chunk_rows):
        for part in set(_SUCCESSORS).difference(kept):
            chunk.pop(part, None)
        yield _named(chunk, table, info)


def _columns_of_successors(table: DeclaredTable | None) -> tuple[str, ...]:
    """Return which parts that tell what follows a row a table has columns of its own for."""
    if table is None:
        return ()
    columns = table.columns
    own = columns.following, columns.termination, columns.truncated
    return tuple(part for part, names in zip(_SUCCESSORS, own, strict=True) if names)


def _write_csv(chunks: Iterable[Columns], path: Path) -> None:
    import pandas as pd

    with path.open("w", newline="") as file:
        for number, chunk in enumerate(chunks):
            pd.DataFrame(chunk).to_csv(file, index=False, header=number == 0)


def _write_parquet(chunks: Iterable[Columns], path: Path) -> None:
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    frames = (pd.DataFrame(chunk) for chunk in chunks)
    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
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


def _named(chunk: Chunk, declared: DeclaredTable | None, info: DatasetInfo) -> Columns:
    """Return the columns of a chunk under the names, and with the values, that a table has."""
    found: Columns = {}
    values = _names(declared, "observation") + _names(declared, "action")
    for part in chunk:
        both = None if declared is None else declared.columns.unit
        if part == "trajectory" and "unit" in chunk and both in _names(declared, part):
            continue  # one column has both roles: units tell trajectories apart
        asked = _names(declared, part)
        beside = part in ("trajectory", "step", "unit")
        for place, (plain, column) in enumerate(_columns(chunk[part], part, declared, info)):
            name = asked[place] if asked else plain
            if name in found or (beside and name in values):
                name = f"{plain}_number" if beside and plain in values else plain
            if name in found:
                raise ConfigError(f"two columns would be called {name}: name both in the schema")
            found[name] = column
    return found


def _names(declared: DeclaredTable | None, part: str) -> list[str]:
    """Return the table's names of a part's columns; none: it has no name there."""
    if declared is None:
        return []
    columns = declared.columns
    named: dict[str, Any] = {
        "trajectory": columns.trajectory,
        "step": None,  # places, not values of the column that sorted them
        "terminated": columns.termination,
        "next_observation": columns.following
        or [f"next_{name}" for name in columns.of("observation")],
    }
    return column_names(named[part]) if part in named else columns.of(part)


def _columns(
    values: NDArray[Any], part: str, declared: DeclaredTable | None, info: DatasetInfo
) -> list[tuple[str, Any]]:
    """Return the columns of a part, each with the name that it has if nobody names it."""
    source = part.removeprefix("next_")
    flat = values.reshape(len(values), -1)
    names = [part] if values.ndim == 1 else [f"{part}_{i}" for i in range(flat.shape[1])]
    if declared is None or source not in ("observation", "action"):
        kind = None if declared is None else declared.kinds.get("".join(_names(declared, part)[:1]))
        if kind is not None:
            return [(part, _of_one(values, kind))]
        return [(name, flat[:, place]) for place, name in enumerate(names)]
    space: Space = info.observation_space if source == "observation" else info.action_space
    kinds, sizes = [kind for _, kind in declared.part(source)], declared.widths(source)
    categories = components(space)
    wide = len(kinds) if categories else sum(sizes)
    if wide != flat.shape[1]:
        raise ConfigError(
            f"the schema names {wide} columns of {part}, the dataset has {flat.shape[1]}"
        )
    if categories:
        return [
            (name, _category(flat[:, place], kind, int(category.start)))
            for place, (name, kind, category) in enumerate(
                zip(names, kinds, categories, strict=True)
            )
        ]
    starts = np.cumsum([0, *sizes]).tolist()
    return [
        (names[start], decoded(flat[:, start:stop], kind))
        for start, stop, kind in zip(starts, starts[1:], kinds, strict=False)
    ]


def _category(values: NDArray[Any], kind: AnyKind, start: int) -> Any:
    return labelled(values - start, kind) if isinstance(kind, LabelledKind) else values


def _of_one(values: NDArray[Any], kind: AnyKind) -> Any:
    """Return a reward, or the flag of an end, as its kind has it."""
    flags = isinstance(kind, FlagKind) and values.dtype == np.bool_
    return decoded(values.astype(np.float32)[:, None] if flags else values[:, None], kind)


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
            columns["observation"] = chunk.observations
            if info.has_action:
                columns["action"] = chunk.actions
            if info.has_reward:
                columns["reward"] = chunk.rewards
            if info.has_successors:
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
