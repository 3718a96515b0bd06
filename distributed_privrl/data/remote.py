"""Datasets in an object store: seen through a manifest, read through private copies."""

import contextlib
import json
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from distributed_privrl.core.checks import check_dataset_id
from distributed_privrl.core.config import StrictModel, validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, unfinished_folder
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.data.objects import Objects, objects_at

_OWN = ".privrl"
"""Under a dataset's id: what we write. No id has a part that begins with a dot."""
MANIFEST = f"{_OWN}/manifest.json"
FORMAT = 1
ABANDONED_SECONDS = 24 * 3600
"""Objects of this age that no manifest names are of a writer that was killed."""


class _Entry(StrictModel):
    """A file of a dataset: its path there, its object, its bytes and their SHA-256."""

    path: str
    object: str
    bytes: int
    sha256: str


class _Manifest(StrictModel):
    format: int
    dataset: str
    files: tuple[_Entry, ...]


class RemoteDatasets:
    """The datasets under a prefix, and copies of those that are read.

    A dataset is there as soon as its manifest is, which is written last, in one request: a writer
    that is killed leaves objects that nothing names. A change writes new objects and then the
    manifest again, so that a reader has one version or the other. Stores have no locks: of two that
    write the same id at once the later manifest holds.

    Copies lie in a folder of the system's temporary ones (``TMPDIR``), for their owner alone. It
    goes with this object, at the latest when the process ends; what a killed process left, the next
    one on that machine removes.

    Args:
        uri: of the prefix.
    """

    def __init__(self, uri: ObjectUri) -> None:
        self.uri = uri
        self._objects: Objects = objects_at(uri)
        self._folder: Path | None = None
        self._copied: dict[str, dict[str, _Entry]] = {}

    @property
    def folder(self) -> Path:
        """Where copies lie, by id; made when it is asked for."""
        if self._folder is None:
            base, open_ = Path(tempfile.gettempdir()), contextlib.ExitStack()
            with storage_errors(f"write to {base}"):
                self._folder = open_.enter_context(unfinished_folder(base))
            weakref.finalize(self, open_.close)
        return self._folder

    def ids(self) -> list[str]:
        """Return the ids of all datasets.

        Raises:
            StorageError: the store cannot be read.
        """
        end = f"/{MANIFEST}"
        return [name.removesuffix(end) for name in self._objects.names() if name.endswith(end)]

    def holds(self, dataset: str) -> bool:
        """Say whether there is such a dataset."""
        return self._manifest(dataset) is not None

    def copy(self, dataset: str, *, only: Sequence[str] = ()) -> Path | None:
        """Copy a dataset, as it is now, and return its folder; None: there is none.

        Args:
            dataset: its id.
            only: paths of the files that are wanted; all by default.

        Raises:
            StorageError: the store cannot be read, or an object is not what the manifest says.
        """
        manifest = self._manifest(dataset)
        if manifest is None:
            return None
        target, copied = self.folder / dataset, self._copied.setdefault(dataset, {})
        there = {one.path for one in manifest.files}
        for path in set(copied) - there:
            (target / path).unlink(missing_ok=True)
            del copied[path]
        for entry in manifest.files:
            if (not only or entry.path in only) and copied.get(entry.path) != entry:
                self._fetch(dataset, entry, target / entry.path)
                copied[entry.path] = entry
        return target

    def check_new(self, dataset: str) -> None:
        """Check that a new dataset may be written.

        Raises:
            ConfigError: the id is malformed, taken, or lies inside another dataset.
        """
        check_dataset_id("dataset", dataset)
        if self.holds(dataset):
            raise ConfigError(
                f"dataset {dataset!r} exists already in {self.uri}: choose another id, or remove it"
                f" first (`privrl remove {dataset}`)"
            )
        for parent in list(PurePosixPath(dataset).parents)[:-1]:
            if self._objects.read(f"{parent}/{MANIFEST}") is not None:
                raise ConfigError(f"dataset {dataset!r} would lie inside the dataset '{parent}'")

    def publish(self, dataset: str, *, only: Sequence[str] = (), new: bool = False) -> None:
        """Write a dataset as it lies in `folder`: its objects under new names, then the manifest.

        Args:
            dataset: its id.
            only: paths of the files that have changed, the others stay; all by default.
            new: it must not be there yet.

        Raises:
            ConfigError: it is new, and there meanwhile.
            StorageError: the store cannot be written; the dataset is what it was.
        """
        try:
            if new:
                self.check_new(dataset)
            self._publish(dataset, only)
        except BaseException:
            self.forget(dataset)  # it is not what others see
            raise

    def _publish(self, dataset: str, only: Sequence[str]) -> None:
        before = self._manifest(dataset)
        kept = () if before is None or not only else before.files
        entries = {entry.path: entry for entry in kept}
        source, version = self.folder / dataset, uuid.uuid4().hex
        for path in only or _files(source):
            name = f"{_OWN}/{version}/{path}"
            size, digest = self._objects.put_file(f"{dataset}/{name}", source / path)
            entries[path] = _Entry(path=path, object=name, bytes=size, sha256=digest)
        manifest = _Manifest(
            format=FORMAT, dataset=dataset, files=tuple(entries[path] for path in sorted(entries))
        )
        content = json.dumps(manifest.model_dump(mode="json"), indent=1).encode()
        self._objects.put(f"{dataset}/{MANIFEST}", content)
        self._copied[dataset] = {
            path: entry for path, entry in entries.items() if (source / path).exists()
        }
        old = () if before is None else before.files
        named = {entry.object for entry in manifest.files}
        for entry in old:
            if entry.object not in named:
                self._objects.remove(f"{dataset}/{entry.object}")

    def remove(self, dataset: str) -> None:
        """Remove a dataset: its manifest first, so that no reader sees a part of it.

        Raises:
            StorageError: the store cannot be written.
        """
        self._objects.remove(f"{dataset}/{MANIFEST}")
        self.forget(dataset)
        for name in self._objects.names(f"{dataset}/{_OWN}"):
            self._objects.remove(name)

    def forget(self, dataset: str) -> None:
        """Remove the copy of a dataset."""
        self._copied.pop(dataset, None)
        if self._folder is not None:
            shutil.rmtree(self._folder / dataset, ignore_errors=True)

    def clear(self) -> None:
        """Remove objects of writers that were killed a day ago or earlier.

        Raises:
            StorageError: the store cannot be read or written.
        """
        named: dict[str, set[str]] = {}
        for name in self._objects.names(seconds=ABANDONED_SECONDS):
            dataset, mark, rest = name.partition(f"/{_OWN}/")
            if not mark or rest == "manifest.json":
                continue
            if dataset not in named:
                manifest = self._manifest(dataset)
                files = () if manifest is None else manifest.files
                named[dataset] = {entry.object for entry in files}
            if f"{_OWN}/{rest}" not in named[dataset]:
                self._objects.remove(name)

    def _manifest(self, dataset: str) -> _Manifest | None:
        check_dataset_id("dataset", dataset)
        content = self._objects.read(f"{dataset}/{MANIFEST}")
        if content is None:
            return None
        source = f"{self.uri}/{dataset}/{MANIFEST}"
        try:
            values: Any = json.loads(content)
            found = validate(_Manifest, dict(values), source=source)
        except (ConfigError, ValueError, TypeError) as error:
            raise StorageError(f"{source} is damaged: write the dataset again") from error
        if found.format != FORMAT:
            raise StorageError(
                f"{source} has format {found.format}, this program knows {FORMAT}: use the version"
                " of the program that wrote it"
            )
        if found.dataset != dataset or not all(map(_is_proper, found.files)):
            raise StorageError(f"{source} is not of {dataset}: write the dataset again")
        return found

    def _fetch(self, dataset: str, entry: _Entry, path: Path) -> None:
        path.unlink(missing_ok=True)
        with storage_errors(f"write {path}"):
            for folder in reversed(path.relative_to(self.folder).parents):
                (self.folder / folder).mkdir(mode=0o700, exist_ok=True)
        found = self._objects.fetch(f"{dataset}/{entry.object}", path)
        if found != (entry.bytes, entry.sha256):
            path.unlink(missing_ok=True)
            raise StorageError(
                f"{self.uri}/{dataset}: {entry.path} is not what the manifest says: somebody"
                " changed it; write the dataset again"
            )


def _is_proper(entry: _Entry) -> bool:
    """Say whether file and object lie below the dataset, wherever a manifest came from."""
    return all(
        name and not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
        for name in (entry.path, entry.object)
    ) and entry.object.startswith(f"{_OWN}/")


def _files(folder: Path) -> Iterable[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
