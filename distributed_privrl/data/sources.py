"""Reads the columns of a file to import: CSV and Parquet tables, NPZ and HDF5 arrays."""

import csv
import zipfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.schema import ColumnsSchema
from distributed_privrl.data.tabular import column_names

if TYPE_CHECKING:
    import pandas as pd

_BEGINNINGS = {
    b"PK\x03\x04": ("a zip archive, as NPZ files are", (".npz",)),
    b"\x89HDF\r\n\x1a\n": ("HDF5", (".hdf5", ".h5")),
    b"PAR1": ("Parquet", (".parquet",)),
}
"""How files begin, whatever they are called: what each is, and its suffixes."""

_PARTS = ("observation", "action", "next_observation")


def read_source(path: Path, columns: ColumnsSchema) -> tuple["pd.DataFrame", ColumnsSchema]:
    """Return the named columns of a file, and which of them holds what.

    An array of a part with rows of W > 1 numbers, ``name``, becomes the columns ``name[0]`` to
    ``name[W - 1]``. Nothing is unpickled: an NPZ file of objects is refused.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npz``, ``.hdf5`` or ``.h5`` file.
        columns: what to read; for arrays, keys of the file, in HDF5 also paths such as ``a/b``.

    Raises:
        ConfigError: another kind of file, no such file or column, or no rows.
        StorageError: the file cannot be read.
    """
    import pyarrow as pa

    readers: dict[str, Callable[[Path, ColumnsSchema], tuple[pd.DataFrame, ColumnsSchema]]] = {
        ".csv": _read_csv,
        ".parquet": _read_parquet,
        ".npz": _read_npz,
        ".hdf5": _read_hdf5,
        ".h5": _read_hdf5,
    }
    if path.suffix not in readers:
        raise ConfigError(f"{path} must end in {', '.join(readers)}")
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    damage = (ValueError, pa.ArrowException, zipfile.BadZipFile, zlib.error, EOFError)
    try:
        with storage_errors(f"read {path}"):
            frame, columns = readers[path.suffix](path, columns)
    except damage as error:
        reason = " ".join(str(error).split())
        reason = _other_content(path) or reason
        raise ConfigError(f"{path} is no proper {path.suffix[1:]} file: {reason}") from error
    if len(frame) == 0:
        raise ConfigError(f"{path} has no rows")
    return frame, columns


def _other_content(path: Path) -> str | None:
    """Return in words what a file is by its first bytes, if its suffix says another thing."""
    with storage_errors(f"read {path}"), path.open("rb") as file:
        begins = file.read(max(map(len, _BEGINNINGS)))
    for beginning, (kind, suffixes) in _BEGINNINGS.items():
        if begins.startswith(beginning) and path.suffix not in suffixes:
            return f"its content is {kind}; give it a name that ends in {' or '.join(suffixes)}"
    return None


def _wanted(path: Path, columns: ColumnsSchema, present: Iterable[str]) -> list[str]:
    """Return the named columns, each once, if they are present."""
    wanted = list(dict.fromkeys(name for _, value in columns for name in column_names(value)))
    known = list(present)
    absent = [name for name in wanted if name not in known]
    if absent:
        raise ConfigError(
            f"{path} has no column {', '.join(absent)}; it has {', '.join(map(str, known))}"
        )
    return wanted


def _read_csv(path: Path, columns: ColumnsSchema) -> tuple["pd.DataFrame", ColumnsSchema]:
    """Read a CSV file; ids stay text, so that 7 and 007 differ."""
    import pandas as pd

    header = _checked_header(path)
    wanted = _wanted(path, columns, pd.read_csv(path, nrows=0).columns)
    if twice := [name for name in wanted if header.count(name) > 1]:
        raise ConfigError(f"{path} has several columns {', '.join(twice)}: rename all but one")
    ids = dict.fromkeys((n for n in (columns.trajectory, columns.unit) if n is not None), str)
    return pd.read_csv(path, usecols=wanted, dtype=ids), columns


def _checked_header(path: Path) -> list[str]:
    """Return a CSV file's column names, if each of its lines has as many fields.

    Blank lines are none; pandas would shift or fill up the others without a word.

    Raises:
        ConfigError: a line has more fields or fewer.
        ValueError: a quote is not closed, or something follows it within a field.
    """
    header: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file, strict=True)
        try:
            header = next(filter(_not_blank, lines), header)
            for fields in lines:
                if len(fields) != len(header) and _not_blank(fields):
                    _refuse_line(path, lines.line_num, fields, header)
        except csv.Error as error:
            raise ValueError(f"line {lines.line_num}: {error}") from error
    return header


def _not_blank(fields: list[str]) -> bool:
    return len(fields) > 1 or bool("".join(fields).strip())


def _refuse_line(path: Path, number: int, fields: list[str], header: list[str]) -> NoReturn:
    if len(fields) == len(header) + 1 and not fields[-1].strip():
        advice = "a comma stands at its end: remove it, or give the header one, too"
    elif len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        advice = "separate fields by commas (not semicolons or tabs), write decimals with a point"
    elif len(fields) > len(header):
        advice = (
            "write decimals with a point (3.5, not 3,5), put texts with commas in quotes, and"
            " separate fields by commas alone"
        )
    else:
        advice = "complete it (a field without a value keeps its comma), or remove it"
    raise ConfigError(
        f"{path}: line {number} has {len(fields)} {'fields' if len(fields) > 1 else 'field'}, the"
        f" header {len(header)}: {advice}"
    )


def _read_parquet(path: Path, columns: ColumnsSchema) -> tuple["pd.DataFrame", ColumnsSchema]:
    import pandas as pd
    import pyarrow.parquet as pq

    wanted = _wanted(path, columns, pq.read_schema(path).names)
    return pd.read_parquet(path, columns=wanted), columns


def _read_npz(path: Path, columns: ColumnsSchema) -> tuple["pd.DataFrame", ColumnsSchema]:
    with zipfile.ZipFile(path):  # what is no archive at all is refused here
        pass
    with np.load(path, allow_pickle=False) as file:
        arrays = {
            name: _read_array(path, file, name) for name in _wanted(path, columns, file.files)
        }
    return _flattened(path, columns, arrays)


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


def _read_hdf5(path: Path, columns: ColumnsSchema) -> tuple["pd.DataFrame", ColumnsSchema]:
    import h5py

    if not h5py.is_hdf5(path):
        raise ValueError("it does not begin as one")
    with h5py.File(path, "r") as file:
        present: list[str] = []
        file.visititems(
            lambda name, item: present.append(name) if isinstance(item, h5py.Dataset) else None
        )
        arrays = {}
        for name in _wanted(path, columns, present):
            texts = h5py.check_string_dtype(file[name].dtype) is not None
            arrays[name] = np.asarray((file[name].asstr() if texts else file[name])[()])
    return _flattened(path, columns, arrays)


def _flattened(
    path: Path, columns: ColumnsSchema, arrays: dict[str, NDArray[Any]]
) -> tuple["pd.DataFrame", ColumnsSchema]:
    """Return arrays as columns; (N, W) rows of a part become W columns."""
    import pandas as pd

    named: dict[str, tuple[str, ...]] = {}
    frame: dict[str, NDArray[Any]] = {}
    for role, value in columns:
        names: list[str] = []
        for key in column_names(value):
            rows = _rows(path, key, arrays[key], single=role not in _PARTS)
            width = rows.shape[1]
            own = [key] if width == 1 else [f"{key}[{i}]" for i in range(width)]
            frame |= dict(zip(own, rows.T, strict=True))
            names += own
        if role in _PARTS and names:
            named[role] = tuple(names)
    sizes = {key: len(arrays[key]) for key in arrays}
    if len(set(sizes.values())) > 1:
        counts = ", ".join(f"{key} {size}" for key, size in sizes.items())
        raise ConfigError(f"{path}: all arrays must have as many rows, got {counts}")
    return pd.DataFrame(frame), columns.model_copy(update=named)


def _rows(path: Path, key: str, array: NDArray[Any], *, single: bool) -> NDArray[Any]:
    """Return an array as (N, W), with W = 1 where one value a row is needed."""
    if array.ndim not in (1, 2) or (single and array.ndim == 2 and array.shape[1] != 1):
        wanted = "one value a row" if single else "(N,) or (N, W)"
        raise ConfigError(f"{path}: array {key!r} must be {wanted}, got shape {array.shape}")
    return array.reshape(len(array), -1) if array.ndim == 2 else array[:, None]
