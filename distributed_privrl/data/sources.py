"""Reads the columns of a table to import in chunks: CSV, Parquet, NPZ, HDF5, Arrow streams."""

import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.csv_files import Separator, csv_frames, csv_header, likely_separator
from distributed_privrl.data.declared import (
    PARTS,
    DateKind,
    DeclaredTable,
    LabelledKind,
    column_names,
)
from distributed_privrl.data.values import texts

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

CHUNK_ROWS = 2**18
"""Rows of a table held at a time."""
_BEGINNINGS = {
    b"PK\x03\x04": ("a zip archive, as NPZ files are", (".npz",)),
    b"\x89HDF\r\n\x1a\n": ("HDF5", (".hdf5", ".h5")),
    b"PAR1": ("Parquet", (".parquet",)),
}
"""How files begin, whatever they are called: what each is, and its suffixes."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A table that is read in chunks, once.

    Args:
        name: of it, for messages.
        declared: roles and kinds of its columns: of arrays with W values a row, W columns each.
        frames: its rows, `CHUNK_ROWS` at a time.
    """

    name: str
    declared: DeclaredTable
    frames: Iterator["pd.DataFrame"]


_Opened = tuple[Iterator["pd.DataFrame"], DeclaredTable]


def open_file(path: Path, declared: DeclaredTable, *, separator: Separator = "comma") -> Source:
    """Return the named columns of a file.

    An array of a part with rows of W > 1 numbers, ``name``, becomes the columns ``name[0]`` to
    ``name[W - 1]``. Nothing is unpickled: an NPZ file of objects is refused.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npz``, ``.hdf5`` or ``.h5`` file.
        declared: what to read; for arrays, keys of the file, in HDF5 also paths such as ``a/b``.
        separator: of the fields of a CSV file; other files have none.

    Raises:
        ConfigError: another kind of file, no such file or column. Also while it is read.
        StorageError: the file cannot be read. Also while it is read.
    """
    readers: dict[str, Callable[[Path, DeclaredTable], _Opened]] = {
        ".csv": partial(_read_csv, separator=separator),
        ".parquet": _read_parquet,
        ".npz": _read_npz,
        ".hdf5": _read_hdf5,
        ".h5": _read_hdf5,
    }
    if path.suffix not in readers:
        raise ConfigError(f"{path} must end in {', '.join(readers)}")
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    with _reading(path):
        frames, found = readers[path.suffix](path, declared)

    def checked() -> Iterator["pd.DataFrame"]:
        while True:
            with _reading(path):
                frame = next(frames, None)
            if frame is None:
                return
            if len(frame):
                yield frame

    return Source(name=str(path), declared=found, frames=checked())


def separator_of(path: Path) -> Separator:
    """Return what seems to separate the fields of a table: a comma, where it is no CSV file."""
    if path.suffix != ".csv" or not path.is_file():
        return "comma"
    with _reading(path):
        return likely_separator(path)


def open_columns(path: Path, *, separator: Separator) -> Iterator["pd.DataFrame"]:
    """Yield all columns of a table as they stand, `CHUNK_ROWS` rows at a time.

    Args:
        path: a ``.csv`` file, whose values are all texts or gaps, or a ``.parquet`` file, whose
            values have its types.
        separator: of the fields of a CSV file.

    Raises:
        ConfigError: another kind of file, no such file, no rows, or two columns of one name.
        StorageError: the file cannot be read.
    """
    readers: dict[str, Callable[[Path], Iterator[pd.DataFrame]]] = {
        ".csv": partial(_all_of_csv, separator=separator),
        ".parquet": _all_of_parquet,
    }
    if path.suffix not in readers:
        raise ConfigError(
            f"{path} must end in {' or '.join(readers)}: write the schema of arrays (.npz, .hdf5)"
            " by hand, as docs/data.md has it"
        )
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    with _reading(path):
        frames = readers[path.suffix](path)
        first = next(frames, None)
        if first is None or not len(first):
            raise ConfigError(f"{path} has no rows")
        yield first
        yield from frames


def _all_of_csv(path: Path, *, separator: Separator) -> Iterator["pd.DataFrame"]:
    header, names = csv_header(path, separator)
    if twice := sorted({name for name in header if header.count(name) > 1}):
        raise ConfigError(f"{path} has several columns {', '.join(twice)}: rename all but one")
    return csv_frames(path, names, separator=separator, text=names, values={}, rows=CHUNK_ROWS)


def _all_of_parquet(path: Path) -> Iterator["pd.DataFrame"]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    names = file.schema_arrow.names
    return (_frame(batch, names) for batch in file.iter_batches(batch_size=CHUNK_ROWS))


def open_table(table: Any, declared: DeclaredTable) -> Source:
    """Return the named columns of a table in memory.

    Args:
        table: of pandas, Polars or Arrow, whatever speaks Arrow's stream protocol; or a mapping of
            names to arrays.
        declared: what to read.

    Raises:
        ConfigError: it is none, a column holds objects that Arrow does not know, or is not there.
    """
    import pyarrow as pa

    name = f"the {type(table).__module__.partition('.')[0]} table"
    try:
        if isinstance(table, Mapping):
            table, name = pa.table(dict(table)), "the table"
        if not hasattr(table, "__arrow_c_stream__"):
            raise ConfigError(
                f"table must be of pandas, Polars or Arrow, or a mapping of names to arrays, got"
                f" {type(table).__name__}"
            )
        reader = pa.RecordBatchReader.from_stream(table)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{name} cannot be read as Arrow columns: {reason}") from error
    wanted = _wanted(name, declared, reader.schema.names)
    if twice := [one for one in wanted if reader.schema.names.count(one) > 1]:
        raise ConfigError(f"{name} has several columns {', '.join(twice)}: rename all but one")
    frames = (
        _frame(batch.slice(start, CHUNK_ROWS), wanted)
        for batch in reader
        for start in range(0, batch.num_rows, CHUNK_ROWS)
    )
    return Source(name=name, declared=declared, frames=frames)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Name the file in whatever is wrong with it."""
    import pyarrow as pa

    damage = (ValueError, pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError)
    try:
        with storage_errors(f"read {path}"):
            yield
    except damage as error:
        reason = " ".join(str(error).split())
        reason = _other_content(path) or reason
        raise ConfigError(f"{path} is no proper {path.suffix[1:]} file: {reason}") from error


def _other_content(path: Path) -> str | None:
    """Return in words what a file is by its first bytes, if its suffix says another thing."""
    with storage_errors(f"read {path}"), path.open("rb") as file:
        begins = file.read(max(map(len, _BEGINNINGS)))
    for beginning, (kind, suffixes) in _BEGINNINGS.items():
        if begins.startswith(beginning) and path.suffix not in suffixes:
            return f"its content is {kind}; give it a name that ends in {' or '.join(suffixes)}"
    return None


def _wanted(name: Path | str, declared: DeclaredTable, present: Iterable[str]) -> list[str]:
    """Return the named columns, each once, if they are present."""
    wanted, known = declared.columns.named, list(present)
    absent = [column for column in wanted if column not in known]
    if absent:
        raise ConfigError(
            f"{name} has no column {', '.join(absent)}; it has {', '.join(map(str, known))}"
        )
    return wanted


def _read_csv(path: Path, declared: DeclaredTable, *, separator: Separator) -> _Opened:
    """Read a CSV file; ids, categories and dates stay text, so that 7 and 007 differ."""
    columns = declared.columns
    header, names = csv_header(path, separator)
    wanted = _wanted(path, declared, names)
    if twice := [name for name in wanted if header.count(name) > 1]:
        raise ConfigError(f"{path} has several columns {', '.join(twice)}: rename all but one")
    kinds = dict(declared.part("observation") + declared.part("action")) | declared.kinds
    kinds |= {
        after: kind
        for after, (_, kind) in zip(columns.following, declared.part("observation"), strict=False)
    }
    plain = [name for name, kind in kinds.items() if isinstance(kind, LabelledKind | DateKind)]
    ids = [name for name in (columns.trajectory, columns.unit) if name is not None]
    declared_texts = {name: texts(kind) for name, kind in kinds.items()}
    frames = csv_frames(
        path,
        wanted,
        separator=separator,
        text=[*ids, *plain],
        values=declared_texts,
        rows=CHUNK_ROWS,
    )
    return frames, declared


def _read_parquet(path: Path, declared: DeclaredTable) -> _Opened:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    wanted = _wanted(path, declared, file.schema_arrow.names)
    batches = file.iter_batches(batch_size=CHUNK_ROWS, columns=wanted)
    return (_frame(batch, wanted) for batch in batches), declared


def _frame(batch: "pa.RecordBatch", wanted: list[str]) -> "pd.DataFrame":
    """Return the columns of a batch; whole numbers and truth values stay so beside gaps."""
    import pandas as pd
    import pyarrow as pa

    table = pa.Table.from_batches([batch]).select(wanted)
    for place, column in enumerate(table.schema):
        if pa.types.is_decimal(column.type):
            values = table.column(place).cast(pa.float64())
            table = table.set_column(place, column.name, values)
    types = {pa.bool_(): pd.BooleanDtype(), pa.int64(): pd.Int64Dtype()}
    types |= {pa.uint64(): pd.UInt64Dtype()}
    frame: pd.DataFrame = table.to_pandas(
        ignore_metadata=True, types_mapper=types.get, date_as_object=False
    )
    return frame


def _read_npz(path: Path, declared: DeclaredTable) -> _Opened:
    with zipfile.ZipFile(path):  # what is no archive at all is refused here
        pass
    with np.load(path, allow_pickle=False) as file:
        wanted = _wanted(path, declared, file.files)
        arrays = {name: _read_array(path, file, name) for name in wanted}
    return _flattened(path, declared, arrays)


def _read_array(path: Path, file: Any, name: str) -> NDArray[Any]:
    try:
        array: NDArray[Any] = file[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise ConfigError(
            f"{path}: array {name!r} holds pickled Python objects, which are not read: save it as"
            " numbers, e.g. array.astype(float)"
        ) from error
    return array


def _read_hdf5(path: Path, declared: DeclaredTable) -> _Opened:
    import h5py

    if not h5py.is_hdf5(path):
        raise ValueError("it does not begin as one")
    with h5py.File(path, "r") as file:
        present: list[str] = []
        file.visititems(
            lambda name, item: present.append(name) if isinstance(item, h5py.Dataset) else None
        )
        arrays = {}
        for name in _wanted(path, declared, present):
            is_text = h5py.check_string_dtype(file[name].dtype) is not None
            arrays[name] = np.asarray((file[name].asstr() if is_text else file[name])[()])
    return _flattened(path, declared, arrays)


def _flattened(path: Path, declared: DeclaredTable, arrays: dict[str, NDArray[Any]]) -> _Opened:
    """Return arrays as columns; (N, W) rows of a part become W columns."""
    import pandas as pd

    columns = declared.columns
    named: dict[str, tuple[str, ...]] = {}
    flat: dict[str, NDArray[Any]] = {}
    for role, value in columns:
        names: list[str] = []
        for key in (name for name in column_names(value) if name in columns.named):
            rows = _rows(path, key, arrays[key], single=role not in PARTS)
            width = rows.shape[1]
            own = [key] if width == 1 else [f"{key}[{i}]" for i in range(width)]
            flat |= dict(zip(own, rows.T, strict=True))
            names += own
        if role in PARTS and names:
            named[role] = tuple(names)
    sizes = {key: len(arrays[key]) for key in arrays}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{key} {size}" for key, size in sizes.items())
        raise ConfigError(f"{path}: all arrays must have as many rows, got {counts}")
    frames = (
        pd.DataFrame({name: column[start : start + CHUNK_ROWS] for name, column in flat.items()})
        for start in range(0, max(sizes.values()), CHUNK_ROWS)
    )
    return frames, declared.model_copy(update={"columns": columns.model_copy(update=named)})


def _rows(path: Path, key: str, array: NDArray[Any], *, single: bool) -> NDArray[Any]:
    """Return an array as (N, W), with W = 1 where one value a row is needed."""
    if array.ndim not in (1, 2) or (single and array.ndim == 2 and array.shape[1] != 1):
        wanted = "one value a row" if single else "(N,) or (N, W)"
        raise ConfigError(f"{path}: array {key!r} must be {wanted}, got shape {array.shape}")
    return array.reshape(len(array), -1) if array.ndim == 2 else array[:, None]
