"""Whole files and folders or none, and operating-system errors turned into one clear line."""

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

from distributed_privrl.core.errors import FolderInUseError, StorageError
from distributed_privrl.core.folders import keeping_of

UNFINISHED = ".privrl-unfinished-"
"""How the names of folders begin that hold what is being written."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What says that no more can be written: no space, or beyond a limit on it or on a file's size."""

_LOCK = ".lock"
_ATTEMPTS = 100
_OWN: set[str] = set()
"""Names of the folders in which this process writes now."""


@contextlib.contextmanager
def storage_errors(action: str, advice: str = "check path and rights") -> Iterator[None]:
    """Turn an ``OSError`` inside the block into a `StorageError` that says what failed.

    Args:
        action: what was being done, e.g. ``"write runs/demo/certificate.json"``.
        advice: what to do, where the disk is not full.

    Raises:
        StorageError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:  # HDF5 puts more than a line beside the number
            raise StorageError(
                f"cannot {action}: {os.strerror(error.errno)}; free some space and run again with"
                " --resume"
            ) from error
        reason = error.strerror or error
        raise StorageError(f"cannot {action}: {reason}; {advice}") from error


@contextlib.contextmanager
def unfinished_folder(root: Path) -> Iterator[Path]:
    """Yield a new folder in ``root``, its owner's alone, for what is not finished yet.

    It is removed at the end; what is to stay is renamed out of it. A writer that is killed leaves
    it, and the next one in ``root`` removes it, as `clear_unfinished` does.

    Args:
        root: an existing folder of the file system on which the result will lie.

    Raises:
        OSError: ``root`` cannot be written to.
    """
    clear_unfinished(root)
    folder, lock = _begun(root)
    _OWN.add(folder.name)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _OWN.discard(folder.name)
        os.close(lock)


def joined_folder(folder: Path) -> int:
    """Make a folder that several processes of a machine share, unless it is there; stay in it.

    Args:
        folder: its name begins as those of `unfinished_folder` do, so that it is removed like those
            once the last of them has died.

    Returns:
        A descriptor: the process stays in the folder until it is closed.

    Raises:
        OSError: it cannot be made.
    """
    for _ in range(_ATTEMPTS):
        folder.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another removed it before its lock was held
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            with contextlib.suppress(OSError):  # a file system without locks has none to lose
                fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_there(folder, lock):
                _OWN.add(folder.name)
                return lock
            os.close(lock)
    raise OSError(errno.EBUSY, f"cannot keep the folder {folder}")


@contextlib.contextmanager
def exclusively(folder: Path) -> Iterator[None]:
    """Let one process of this machine at a time do what the block does in a folder.

    Raises:
        StorageError: it cannot be locked.
    """
    with storage_errors(f"lock {folder}"):
        lock = os.open(folder / ".turn", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def clear_unfinished(root: Path, *, deep: bool = False) -> None:
    """Remove what killed writers left in ``root``; what belongs to live ones or others stays.

    A writer holds a lock on its folder for as long as it lives, on whichever machine; where the
    file system has no locks nothing is removed.

    Args:
        root: the folder; it need not exist.
        deep: look into the folders below it, too.
    """
    for parent, folders, _ in os.walk(root):
        for name in [name for name in folders if name.startswith(UNFINISHED)]:
            folders.remove(name)
            if name not in _OWN:
                _remove_if_dead(Path(parent) / name)
        if not deep:
            return


@contextlib.contextmanager
def owned_folder(path: Path) -> Iterator[None]:
    """Make a folder, unless it is there, and let no other process own it until the block ends.

    The system ends the ownership with the process, however it dies. Where the file system has no
    locks nobody is kept out. A folder that was made here and is empty at the end goes.

    Args:
        path: the folder; what is there and is none is nobody's.

    Raises:
        FolderInUseError: another process owns it.
        StorageError: it cannot be made or opened.
    """
    if path.exists() and not path.is_dir():
        yield
        return
    with storage_errors(f"make {path}"):
        made = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if not (_held(lock) and _is_same(path, lock)):
            raise FolderInUseError(
                f"another process works in {path}: wait until it has ended, or choose another"
                " folder"
            )
        yield
    finally:
        if made:
            with contextlib.suppress(OSError):
                path.rmdir()
        os.close(lock)


@contextlib.contextmanager
def atomic_path(path: Path, *, mode: int = 0o644, beside: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path for ``path``; on success it is fsynced and renamed over ``path``.

    In a folder that lies in an object store it is stored before it is renamed (`core.folders`).
    On any error nothing is left behind and an earlier ``path`` stays as it was. Until then nobody
    but its owner can read the file; afterwards it is never more open than ``mode``, nor than the
    umask allows.

    Args:
        path: where the file goes; its folder is made.
        mode: of the finished file.
        beside: folder in which the unfinished file lies, in an `unfinished_folder`; by default the
            one of ``path``. Another one is for folders whose files are counted.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    with storage_errors(f"write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(beside or path.parent) as folder:
            temporary = folder / path.name
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            yield temporary
            os.chmod(temporary, mode & ~current_umask())
            sync(temporary)
            keeping_of(path).publish(temporary, path)
            sync(path.parent)


def write_atomically(
    path: Path, content: str | bytes, *, mode: int = 0o644, beside: Path | None = None
) -> None:
    """Write ``content`` to ``path`` so that a reader sees the old file or the new one, whole.

    Args:
        path: see `atomic_path`.
        content: of the file.
        mode: see `atomic_path`.
        beside: see `atomic_path`.

    Raises:
        StorageError: the disk is full, or the folder cannot be written.
    """
    with atomic_path(path, mode=mode, beside=beside) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def remove_folder(path: Path, *, beside: Path | None = None) -> None:
    """Remove a folder so that a reader sees it whole or not at all; no folder is fine, too.

    Args:
        path: the folder.
        beside: folder to whose `unfinished_folder` it is moved first; by default the one it is in.

    Raises:
        StorageError: it cannot be moved.
    """
    if not path.exists():
        return
    keeping_of(path).withdraw(path)
    with storage_errors(f"remove {path}"), unfinished_folder(beside or path.parent) as folder:
        os.rename(path, folder / path.name)
        sync(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file; none is fine, too.

    Raises:
        StorageError: it cannot be removed.
    """
    keeping_of(path).withdraw(path)
    with storage_errors(f"remove {path}"):
        path.unlink(missing_ok=True)


def make_writable(folder: Path) -> None:
    """Make a folder that shall be written to, unless it is there, and see that it can be.

    Raises:
        StorageError: it cannot be made or written to.
    """
    with storage_errors(f"write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def current_umask() -> int:
    """Return the process's umask; while it is read, files are made for their owner alone."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: they cannot be written.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _begun(root: Path) -> tuple[Path, int]:
    """Return a new folder of this writer and the descriptor that locks it."""
    for _ in range(_ATTEMPTS):
        folder = root / f"{UNFINISHED}{uuid.uuid4().hex[:8]}"
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # another writer found it before its lock
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            if _held(lock) and _is_there(folder, lock):
                return folder, lock
            os.close(lock)
    raise OSError(errno.EBUSY, f"cannot keep a folder in {root}")


def _held(lock: int) -> bool:
    """Take the lock unless another has it; a file system without locks has none to lose."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_there(folder: Path, lock: int) -> bool:
    return _is_same(folder / _LOCK, lock)


def _is_same(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _remove_if_dead(folder: Path) -> None:
    with contextlib.suppress(OSError):
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
