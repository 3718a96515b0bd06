"""The one door for HDF5: a file that others wrote reaches nothing outside it, and says how large.

HDF5 may point elsewhere: links to other files, arrays whose bytes lie in other files, arrays made
of other files' arrays. An array may also declare a size that nothing in the file has.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
from h5py import h5d, h5l

from distributed_privrl.data.bombs import check_expansion, size_on_disk

_LAYOUTS = (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED)


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open an HDF5 file for reading.

    Raises:
        OSError: it cannot be read, or is none.
        ValueError: it does not begin as one.
    """
    if not h5py.is_hdf5(path):
        raise ValueError("it does not begin as one")
    with h5py.File(path, "r") as file:
        yield file


def check_own(group: Any, path: bytes) -> None:
    """Check that every link on the way to an object stays in the file.

    Args:
        group: low-level id of the group to start from.
        path: of the object, below it.

    Raises:
        ValueError: a link points elsewhere, or is not there.
    """
    links, end = group.links, -1
    while end < len(path):
        end = path.find(b"/", end + 1)
        end = len(path) if end < 0 else end
        name = path[:end]
        try:
            kind = links.get_info(name).type
        except (KeyError, RuntimeError):
            raise ValueError(f"{_text(path)} is not there") from None
        if kind != h5l.TYPE_HARD:
            raise ValueError(f"{_text(name)} is a link: copy what it names into the file")


def check_array(dataset: Any, file_size: int) -> int:
    """Check that an array's bytes lie in the file, and are about as many as it declares.

    Args:
        dataset: low-level id.
        file_size: `size_on_disk` of the file.

    Returns:
        the bytes that it takes in memory; a text counts as a pointer.

    Raises:
        ValueError: they do not, or are not.
    """
    if dataset.get_offset() is not None:  # one piece of this file: most arrays, and fast
        declared: int = dataset.get_storage_size()
        if declared > file_size:  # of a file with holes
            check_expansion(_name(dataset), declared, file_size)
        return declared
    layout = dataset.get_create_plist()
    if layout.get_external_count() or layout.get_layout() not in _LAYOUTS:
        raise ValueError(
            f"{_name(dataset)} has its values in another file: copy them into this one"
        )
    declared = math.prod(dataset.shape) * dataset.get_type().get_size()
    stored = file_size
    if layout.get_layout() != h5d.COMPACT:
        stored = min(dataset.get_storage_size(), file_size)
    check_expansion(_name(dataset), declared, stored)
    return declared


def _name(dataset: Any) -> str:
    return _text(h5py.h5i.get_name(dataset) or b"an array")


def check_arrays(file: h5py.File, path: Path, names: list[str]) -> int:
    """Check arrays by their names; see `check_own` and `check_array`.

    Returns:
        the bytes that all of them take in memory.

    Raises:
        ValueError: an array is not in the file.
    """
    size = size_on_disk(path)
    total = 0
    for name in names:
        check_own(file.id, name.encode())
        total += check_array(h5d.open(file.id, name.encode()), size)
    return total


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
