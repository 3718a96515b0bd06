"""A folder that stands for a bucket, through Arrow's own file system; it may fail."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import fs

from distributed_privrl.core import folders
from distributed_privrl.core.errors import StorageError
from distributed_privrl.data import objects
from distributed_privrl.data.objects import Objects


def stand_in(folder: Path, patch: pytest.MonkeyPatch, *, name: str = "clinic") -> Path:
    """Make a bucket, and a ``TMPDIR`` of its own; return where its objects lie.

    What a test opens as another process would is forgotten with ``patch``.
    """
    patch.setattr(folders, "_OPENED", {})
    (folder / "objects").mkdir()
    machine(folder / "temporary", patch)
    tree = fs.SubTreeFileSystem(str(folder / "objects"), fs.LocalFileSystem())
    patch.setattr(objects, "filesystem_of", lambda scheme, bucket: tree)
    return folder / "objects" / name


def machine(temporary: Path, patch: pytest.MonkeyPatch) -> Path:
    """Go on as on another machine: with an empty ``TMPDIR``."""
    temporary.mkdir()
    patch.setattr("tempfile.tempdir", str(temporary))
    return temporary


class Puts:
    """Counts the objects that are written, and lets one fail.

    Args:
        fails: number of the one that fails, from 1; 0: none.
        half: leave the first half of it there; else nothing.
    """

    def __init__(self, fails: int = 0, *, half: bool = False) -> None:
        self.names: list[str] = []
        self._fails, self._half = fails, half

    @contextmanager
    def counted(self) -> Iterator["Puts"]:
        """Count for as long as the block lasts."""
        put = Objects.put_file

        def put_file(store: Objects, name: str, path: Path) -> tuple[int, str]:
            self.names.append(f"{store.uri}/{name}")
            if len(self.names) != self._fails:
                return put(store, name, path)
            if self._half:
                content = path.read_bytes()
                store.put(name, content[: len(content) // 2])
            raise StorageError("the store does not answer")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Objects, "put_file", put_file)
            yield self
