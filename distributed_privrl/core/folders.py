"""Where the files of a folder are kept: on the disk, or in an object store as well.

Every file of a run's folder is written, replaced and removed through `core.files`, which asks here
who keeps it. Writers and readers know paths alone. A folder that lies in a store has a working copy
on each machine, and `Keeping` brings both together: what is written is in the store before its name
is on the disk.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote

from distributed_privrl.core.errors import StorageError

WORKING_COPY = ".privrl-unfinished-copy@"
"""How the name of the folder begins in which the working copy of a stored folder lies."""


_COPY = re.compile(rf"\S*?/{re.escape(WORKING_COPY)}\w+@([^/\s]+)/run(/private(?=/))?")


def as_given(text: str) -> str:
    """Return a text with the URIs of stored folders in place of their working copies' paths.

    Example:
        >>> copy = f"/tmp/{WORKING_COPY}0a1b@s3%3A%2F%2Fclinic%2Fruns%2Fone/run"
        >>> as_given(f"reports: {copy}/report.html, {copy}/private/report.html")
        'reports: s3://clinic/runs/one/report.html, s3://clinic/private/runs/one/report.html'
    """

    def uri(found: re.Match[str]) -> str:
        scheme, _, place = unquote(found[1]).partition("://")
        bucket, _, key = place.partition("/")
        return "/".join(filter(None, (f"{scheme}://{bucket}", "private" * bool(found[2]), key)))

    return _COPY.sub(uri, text)


class Keeping(Protocol):
    """Who keeps the files of one folder."""

    def publish(self, written: Path, path: Path) -> None:
        """Give a file that is written its name; afterwards every reader finds it whole.

        Args:
            written: the file, or a folder of files, on the file system of ``path``; it is gone
                afterwards.
            path: its name. The mode of ``written`` says who may read it.

        Raises:
            OSError: it cannot be renamed.
            StorageError: it cannot be stored; what was at ``path`` before is still there.
        """
        ...

    def withdraw(self, path: Path) -> None:
        """Make a file, or a folder with all in it, unfindable; it may be there on the disk still.

        Raises:
            StorageError: it cannot be removed.
        """
        ...

    def refresh(self) -> None:
        """Bring the files on this machine up to date with what other machines have published.

        Raises:
            StorageError: they cannot be fetched.
        """
        ...


class _OnDisk:
    """Keeps files where they lie."""

    def publish(self, written: Path, path: Path) -> None:
        """Rename the file."""
        os.replace(written, path)

    def withdraw(self, path: Path) -> None:
        """Do nothing: the disk is all there is."""

    def refresh(self) -> None:
        """Do nothing: all machines see the same folder."""


_ON_DISK = _OnDisk()
_OPENED: dict[Path, Keeping] = {}
"""The working copies that this process has opened, by their path."""


def keeping_of(path: Path) -> Keeping:
    """Return who keeps a file.

    Raises:
        StorageError: it lies in a working copy that this process has not opened: it would be
            written to this machine alone.
    """
    for root, keeping in _OPENED.items():
        if path.is_relative_to(root):
            return keeping
    if any(part.startswith(WORKING_COPY) for part in path.parts):
        raise StorageError(
            f"{path} is of a folder in an object store that this process has not opened: report it"
        )
    return _ON_DISK


@contextmanager
def kept_by(keeping: Keeping, root: Path) -> Iterator[None]:
    """Have the files in ``root`` kept by ``keeping`` for as long as the block lasts."""
    _OPENED[root] = keeping
    try:
        yield
    finally:
        del _OPENED[root]


def keep_for_ever(keeping: Keeping, root: Path) -> None:
    """Have the files in ``root`` kept by ``keeping`` until the process ends."""
    _OPENED[root] = keeping


def working_copies() -> tuple[Path, ...]:
    """Return the working copies that this process has opened."""
    return tuple(_OPENED)


def refresh_all() -> None:
    """Bring all of them up to date.

    Raises:
        StorageError: one cannot be.
    """
    for keeping in _OPENED.values():
        keeping.refresh()
