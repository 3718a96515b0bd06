"""Atomic writes, and operating-system errors turned into one clear line."""

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from distributed_privrl.core.errors import StorageError


@contextlib.contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Turn an ``OSError`` inside the block into a `StorageError` that says what failed.

    Args:
        action: what was being done, e.g. ``"write runs/demo/certificate.json"``.

    Raises:
        StorageError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        advice = "free some space and run again with --resume" if full else "check path and rights"
        raise StorageError(f"cannot {action}: {error.strerror or error}; {advice}") from error


@contextlib.contextmanager
def atomic_path(path: Path, *, mode: int = 0o644) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is fsynced and renamed over ``path``.

    On any error nothing is left behind and an earlier ``path`` stays as it was. The file is never
    more open than ``mode``, nor than the umask allows.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        with storage_errors(f"write {path}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
            yield temporary
            os.chmod(temporary, mode & ~current_umask())
            descriptor = os.open(temporary, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(temporary, path)
            _sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, whole.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    with atomic_path(path, mode=mode) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def current_umask() -> int:
    """Return the process's umask; while it is read, files are made for their owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
