"""A new dataset's folder: complete under its id, or not there at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import (
    clear_unfinished,
    current_umask,
    storage_errors,
    sync,
    unfinished_folder,
)


def check_new(root: Path, dataset: str) -> Path:
    """Return where a new dataset will lie; what killed writers left in ``root`` goes.

    Raises:
        ConfigError: the id is malformed, taken, or lies inside another dataset.
    """
    target = root / check_dataset_id("dataset", dataset)
    clear_unfinished(root)
    with storage_errors(f"read {target}"):
        exists = target.exists()
    if exists:
        raise ConfigError(
            f"dataset {dataset!r} exists already in {root}: choose another id, or remove it first"
            f" (`privrl remove {dataset}`)"
        )
    for parent in target.parents:
        if parent == root:
            break
        if (parent / "data").exists():
            inside = parent.relative_to(root).as_posix()
            raise ConfigError(f"dataset {dataset!r} would lie inside the dataset {inside!r}")
    return target


@contextlib.contextmanager
def new_dataset(root: Path, dataset: str, *, may_leave: bool) -> Iterator[Path]:
    """Yield an unfinished data folder; on success it is fsynced and renamed to the id's.

    Until then its files are their owner's alone, and afterwards unless ``may_leave``.

    Args:
        root: of the store.
        dataset: the new id.
        may_leave: let others read the finished files, as far as the umask does.

    Raises:
        ConfigError: see `check_new`; raised before anything is written.
        StorageError: the disk is full or cannot be written; nothing is left behind.
    """
    target = check_new(root, dataset)
    with storage_errors(f"write dataset {dataset} in {root}"):
        root.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(root) as unfinished:
            folder = unfinished / target.name / "data"
            folder.parent.mkdir(mode=0o700)
            folder.mkdir(mode=0o700)
            yield folder
            for path in folder.iterdir():
                os.chmod(path, 0o600)
                sync(path)
            if may_leave:
                open_files(folder)
            sync(folder)
            check_new(root, dataset)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.rename(folder.parent, target)
            sync(target.parent)


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
