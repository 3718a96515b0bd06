"""Arrays of NPZ and HDF5 files, whose sizes are checked before anything is read."""

import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.memory import check_fits
from distributed_privrl.data.bombs import (
    MOST_COLUMNS,
    MOST_TEXT,
    check_expansion,
    check_texts,
    size_on_disk,
)
from distributed_privrl.data.declared import PARTS, DeclaredTable, column_names
from distributed_privrl.data.episode_arrays import array_names, episodes_of, read_array

if TYPE_CHECKING:
    import h5py
    import pandas as pd

Arrays = dict[str, NDArray[Any]]
Choose = Callable[[Iterable[str]], list[str]]
"""Returns the arrays that are wanted among those that are present."""
CHUNK_ROWS = 2**18
"""Rows of a table held at a time."""
_KINDS = "biufSUM"
"""Of numpy's types: truth values, numbers, texts and times."""
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_TEXTS, _FEWEST_TEXTS = 2**12, 16
"""Texts read at a time: each may be as long as the file."""


def read_npz(path: Path, choose: Choose) -> Arrays:
    """Return arrays of an NPZ file by their names; nothing is unpickled.

    Raises:
        ConfigError: an array holds no numbers or texts, or does not fit into memory.
        ValueError: an array declares more than the file has.
        BadZipFile: it is no archive.
    """
    with zipfile.ZipFile(path) as archive, np.load(path, allow_pickle=False) as file:
        wanted = choose(file.files)
        size, total = size_on_disk(path), 0
        for name in wanted:
            total += _declared(path, archive, name, size)
        check_fits(f"{path}: what is read of it", total)
        return {name: file[name] for name in wanted}


def _declared(path: Path, archive: zipfile.ZipFile, name: str, size: int) -> int:
    """Return the bytes that an array takes, if the archive can hold them."""
    members = archive.NameToInfo
    member = members[f"{name}.npy" if f"{name}.npy" in members else name]
    if member.compress_type not in _PACKED:
        raise ValueError(f"array {name!r} is packed in a way that NumPy does not write")
    with archive.open(member) as file:
        shape, kind = _header(file)
    if kind.hasobject:
        raise ConfigError(
            f"{path}: array {name!r} holds pickled Python objects, which are not read: save it as"
            " numbers, e.g. array.astype(float)"
        )
    _check_kind(path, name, kind)
    declared = kind.itemsize
    for length in shape:
        declared *= length
    if min(shape, default=0) < 0 or declared > member.file_size:
        raise ValueError(f"array {name!r} declares {declared} bytes and has fewer")
    check_expansion(f"array {name!r}", declared, min(member.compress_size, size))
    return declared


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and type of an array in NumPy's format."""
    version = npy.read_magic(file)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"NumPy's format {version} is not known here")
    shape, _, kind = readers[version](file)
    return shape, kind


def read_hdf5(path: Path, choose: Choose) -> Arrays:
    """Return arrays of an HDF5 file by their paths in it.

    Raises:
        ConfigError: an array holds no numbers or texts, or does not fit into memory.
        ValueError: an array lies in another file, or declares more than the file has.
        OSError: the file cannot be read.
    """
    import h5py

    from distributed_privrl.data.hdf5 import check_arrays, check_own, open_hdf5

    with open_hdf5(path) as file:
        if episodes := episodes_of(file):
            check_own(file.id, episodes[0].encode())
            names = choose(array_names(file, episodes))
            return {name: read_array(file, episodes, name) for name in names}
        present: list[str] = []
        file.visititems(
            lambda name, item: present.append(name) if isinstance(item, h5py.Dataset) else None
        )
        wanted = choose(present)
        check_fits(f"{path}: what is read of it", check_arrays(file, path, wanted))
        return {name: _array(path, file[name]) for name in wanted}


def _array(path: Path, dataset: "h5py.Dataset") -> NDArray[Any]:
    import h5py

    if h5py.check_string_dtype(dataset.dtype) is None:
        _check_kind(path, dataset.name, dataset.dtype)
        return np.asarray(dataset[()])
    if h5py.check_string_dtype(dataset.dtype).length is not None or not dataset.ndim:
        return np.asarray(dataset.asstr()[()])
    return _texts(dataset, size_on_disk(path))


def _texts(dataset: "h5py.Dataset", size: int) -> NDArray[Any]:
    """Return texts of any length from a file of ``size`` bytes, where each lies once.

    Raises:
        ValueError: they are longer than the file and than `MOST_TEXT`: the file repeats some.
    """
    read, found, total = dataset.asstr(), np.empty(dataset.shape, object), 0
    step = min(_TEXTS, max(_FEWEST_TEXTS, MOST_TEXT // size))
    for place in np.ndindex(*dataset.shape[1:]):
        for start in range(0, len(dataset), step):
            rows = (slice(start, start + step), *place)
            found[rows] = read[rows]
            total += sum(map(len, found[rows]))
            check_texts(f"array {dataset.name!r}", total, max(size, MOST_TEXT))
    return found


def _check_kind(path: Path, name: str, kind: np.dtype[Any]) -> None:
    if kind.kind not in _KINDS:
        raise ConfigError(f"{path}: array {name!r} must hold numbers or texts, got {kind}")


def flattened(
    path: Path, declared: DeclaredTable, arrays: Arrays
) -> tuple[Iterator["pd.DataFrame"], DeclaredTable]:
    """Return arrays as columns; (N, W) rows of a part become W columns.

    Args:
        path: of their file, for messages.
        declared: roles and kinds of the arrays.
        arrays: by the names in ``declared``.

    Raises:
        ConfigError: an array has another shape than its role asks for, or other rows than others.
    """
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
    if array.ndim == 2 and not 1 <= array.shape[1] <= MOST_COLUMNS:
        raise ConfigError(
            f"{path}: array {key!r} must have 1 to {MOST_COLUMNS} numbers a row, got"
            f" {array.shape[1]}"
        )
    return array if array.ndim == 2 else array[:, None]
