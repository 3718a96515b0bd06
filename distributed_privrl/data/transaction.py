"""A new dataset's folder: complete under its id, or not there at all."""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import current_umask, storage_errors


def check_new(root: Path, dataset: str) -> Path:
    """Return where a new dataset will lie.

    Raises:
        ConfigError: the id is malformed, taken, or lies inside another dataset.
    """
    target = root / check_dataset_id("dataset", dataset)
    with storage_errors(f"read {target}"):
        exists = target.exists()
    if exists:
        raise ConfigError(f"dataset {dataset!r} exists already in {root}: choose another id")
    for parent in target.parents:
        if parent == root:
            break
        if (parent / "data").exists():
            inside = parent.relative_to(root).as_posix()
            raise ConfigError(f"dataset {dataset!r} would lie inside the dataset {inside!r}")
    return target


@contextlib.contextmanager
def new_dataset(root: Path, dataset: str) -> Iterator[Path]:
    """Yield a hidden temporary data folder; on success it is fsynced and renamed to the id's.

    Its files are their owner's alone, until `open_files` says otherwise.

    Raises:
        ConfigError: see `check_new`; raised before anything is written.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    target = check_new(root, dataset)
    temporary = root / f".{target.name}.{uuid.uuid4().hex[:8]}.part"
    try:
        with storage_errors(f"write dataset {dataset} in {root}"):
            folder = temporary / "data"
            root.mkdir(parents=True, exist_ok=True)
            temporary.mkdir(mode=0o700)
            folder.mkdir(mode=0o700)
            yield folder
            for path in (*folder.iterdir(), folder):
                if path != folder:
                    os.chmod(path, 0o600)
                _sync(path)
            check_new(root, dataset)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(temporary, target)
            _sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_files(folder: Path) -> None:
    """Let others read a dataset's data folder, as far as the umask does.

    Raises:
        StorageError: its modes cannot be changed.
    """
    mask = current_umask()
    with storage_errors(f"change the modes in {folder}"):
        for path in folder.iterdir():
            os.chmod(path, 0o644 & ~mask)
        for path in (folder, folder.parent):
            os.chmod(path, 0o755 & ~mask)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
