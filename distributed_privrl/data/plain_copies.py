"""Copies of the plain files under a prefix of a store, as others see them."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from distributed_privrl.core.files import storage_errors, unfinished_folder
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.data.folder_versions import is_proper
from distributed_privrl.data.objects import objects_at


class PlainCopy:
    """Copies of what others see under a prefix: the plain files, without versions.

    Args:
        uri: the prefix.
        folder: where copies lie.
    """

    def __init__(self, uri: ObjectUri, folder: Path) -> None:
        self._objects, self.folder = objects_at(uri), folder

    def fetch(self, name: str) -> Path:
        """Return where a file lies, or a folder with all in it, fetched if it is there.

        Raises:
            StorageError: the store cannot be read.
        """
        if not is_proper(name):
            return self.folder / quote(name, safe="")  # nothing lies there
        there = self._objects.read(name) is not None
        for one in [name] if there else filter(is_proper, self._objects.names(name)):
            path = self.folder / one
            with storage_errors(f"write {path}"):
                path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():
                self._objects.fetch(one, path)
        return self.folder / name


@contextlib.contextmanager
def plain_copy(uri: ObjectUri) -> Iterator[PlainCopy]:
    """Yield copies of plain files under a prefix; they go at the end."""
    base = Path(tempfile.gettempdir())
    with storage_errors(f"write to {base}"), unfinished_folder(base) as folder:
        yield PlainCopy(uri, folder)
