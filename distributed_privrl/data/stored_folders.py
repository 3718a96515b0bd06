"""A folder in an object store: its files there, under versions, and a working copy on each machine.

A file is published as one object whose name says which file it is, the how manieth version, its
SHA-256 and its bytes: nothing else has to be written for it to be there, and nothing of it is there
before. Older versions go afterwards.
"""

import contextlib
import hashlib
import os
import shutil
import tarfile
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import (
    clear_unfinished,
    current_umask,
    exclusively,
    joined_folder,
    storage_errors,
    unfinished_folder,
)
from distributed_privrl.core.folders import WORKING_COPY, keep_for_ever, kept_by
from distributed_privrl.core.places import ObjectUri, Place
from distributed_privrl.data.folder_holder import check_held, held
from distributed_privrl.data.folder_versions import Version, key_of, listed_versions
from distributed_privrl.data.objects import CHUNK_BYTES, Objects, objects_at

PRIVATE = "private"
"""Name of the folder that is never released, and of the prefix of all that is its owner's alone."""
_ATTEMPTS = 3
_LONGEST_NAME = 255


class StoredFolder:
    """The files of a folder in an object store, seen through a working copy on this machine.

    The copy's path is the same on all machines and tells the folder's URI and the opening, so that
    it is all that has to travel.

    Beside its versions a file has a copy under its plain name, for people and other programs.

    Args:
        root: the working copy, as `working_copy` names it.

    Privacy: what is written for its owner alone (mode 0600, or in ``private/``) lies under
    ``private/`` at the top of the bucket, so that one rule of the bucket protects it; all else lies
    under the folder's own prefix.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._scratch = root.parent
        self._nonce, _, written = self._scratch.name.removeprefix(WORKING_COPY).partition("@")
        self.uri = ObjectUri(unquote(written))
        self._public, self._private = objects_at(self.uri), objects_at(private_prefix(self.uri))

    def held(self) -> AbstractContextManager[None]:
        """Work in the folder for as long as the block lasts; see `folder_holder.held`."""
        return held(self._private, self._nonce, shown=self.uri)

    def publish(self, written: Path, path: Path) -> None:
        """Store a file, then give it its name here; see `core.folders.Keeping`.

        Raises:
            StorageError: it cannot be stored, or another process has gone on with the folder.
        """
        check_held(self._private, self._nonce, shown=self.uri)
        name = self._name(path)
        kind, private = "folder" if written.is_dir() else "file", self._is_private(name, written)
        objects = self._private if private else self._public
        with self._packed(written) as content:
            digest, size = _digest(content)
            lies, begun = self._known(name)
            version = Version(
                number=begun + 1, sha256=digest, size=size, kind=kind, private=private
            )
            self._note(name, lies, version.number)  # one that fails half-way keeps its number
            if (plain := self._plain(name, version)) is not None:
                plain[0].put_file(plain[1], content)
            if objects.put_file(key_of(name, version), content) != (size, digest):
                raise StorageError(f"{path} was changed while it was stored: run again")
        with exclusively(self._scratch):
            os.replace(written, path)
            self._note(name, version.number, version.number)
        self._prune(name, version)

    def withdraw(self, path: Path) -> None:
        """Remove all versions of a file, or of all files in a folder; the configuration first.

        Raises:
            StorageError: they cannot be removed.
        """
        check_held(self._private, self._nonce, shown=self.uri)
        under = "" if path == self.root else self._name(path)
        listed = {
            name: versions
            for name, versions in listed_versions(self._public, self._private, under).items()
            if not under or name == under or name.startswith(f"{under}/")
        }
        for name in sorted(listed, key=lambda name: name != "config.yaml"):
            for version in sorted(listed[name]):
                self._remove(name, version, plain=True)
            self._forget(name)

    def refresh(self) -> None:
        """Fetch what is newer in the store than here, and remove what is there no more.

        Raises:
            StorageError: the store cannot be read, or a file in it is not what was written.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            listed = listed_versions(self._public, self._private)
            try:
                for name, versions in listed.items():
                    self._bring(name, sorted(versions, reverse=True))
                break
            except _GoneError as gone:  # a newer version came meanwhile
                if attempt == _ATTEMPTS:
                    raise StorageError(str(gone)) from None
        for name in self._noted() - set(listed):
            with exclusively(self._scratch):
                self._forget(name)
                _remove(self.root / name)

    def _bring(self, name: str, versions: list[Version]) -> None:
        """Fetch the newest version that is whole.

        Of one whose writer failed on its way a part may be there: then the version before holds, or
        the file has none.
        """
        newest, (lies, begun) = versions[0].number, self._known(name)
        if lies >= newest:
            return
        with unfinished_folder(self._scratch) as folder:
            for number, version in enumerate(versions):
                content = folder / str(number)
                try:
                    found = self._at(version).fetch(key_of(name, version), content)
                except StorageError as error:
                    raise _GoneError(str(error)) from None
                if found == (version.size, version.sha256):
                    self._place(name, version, content)
                    self._note(name, newest, max(newest, begun))
                    return
                if found[0] >= version.size:
                    raise StorageError(
                        f"{self._at(version).uri}: {name} is not what was written: somebody changed"
                        " it; bring it back, or begin a new run"
                    )
        self._note(name, lies, max(newest, begun))

    def _place(self, name: str, version: Version, content: Path) -> None:
        path = self.root / name
        with storage_errors(f"write {path}"):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if version.kind == "folder":
                unpacked = content.with_suffix(".folder")
                with tarfile.open(content) as packed:
                    packed.extractall(unpacked, filter="data")
                content = unpacked
            else:
                os.chmod(content, 0o600 if version.private else 0o644 & ~current_umask())
            with exclusively(self._scratch):
                _remove(path)
                os.replace(content, path)

    def _prune(self, name: str, newest: Version) -> None:
        """Remove what a version that is there replaces."""
        for version in listed_versions(self._public, self._private, name).get(name, ()):
            if version != newest:
                self._remove(name, version, plain=version.private != newest.private)

    def _remove(self, name: str, version: Version, *, plain: bool) -> None:
        self._at(version).remove(key_of(name, version))
        if plain and (copy := self._plain(name, version)) is not None:
            copy[0].remove(copy[1])

    def _plain(self, name: str, version: Version) -> tuple[Objects, str] | None:
        """Return where a file has its plain copy; None: folders and checkpoints have none."""
        if not version.private:
            return self._public, name
        folder, _, inner = name.partition("/")
        if folder == PRIVATE and version.kind == "file":
            return self._private, inner
        return None

    def _at(self, version: Version) -> Objects:
        return self._private if version.private else self._public

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _is_private(self, name: str, written: Path) -> bool:
        return (
            PurePosixPath(name).parts[0] == PRIVATE
            or written.is_dir()
            or not written.stat().st_mode & 0o077
        )

    @contextlib.contextmanager
    def _packed(self, written: Path) -> Iterator[Path]:
        """Yield what is stored: a file itself, a folder in one file."""
        if not written.is_dir():
            yield written
            return
        with unfinished_folder(self._scratch) as folder:
            with tarfile.open(folder / "packed", "w") as packed:
                packed.add(written, arcname=".")
            yield folder / "packed"

    def _sidecar(self, name: str) -> Path:
        return self._scratch / "versions" / quote(name, safe="")

    def _known(self, name: str) -> tuple[int, int]:
        """Return the number of the version that lies here, and of the last that was begun here."""
        try:
            lies, begun = map(int, self._sidecar(name).read_text().split())
        except (FileNotFoundError, ValueError):
            return 0, 0
        return lies, begun

    def _noted(self) -> set[str]:
        return {unquote(one.name) for one in (self._scratch / "versions").iterdir()}

    def _note(self, name: str, lies: int, begun: int) -> None:
        with storage_errors(f"write {self._sidecar(name)}"):
            self._sidecar(name).write_text(f"{lies} {begun}")

    def _forget(self, name: str) -> None:
        self._sidecar(name).unlink(missing_ok=True)


class _GoneError(Exception):
    """An object that was listed is there no more."""


def private_prefix(uri: ObjectUri) -> ObjectUri:
    """Return where the files of a folder lie that are their owner's alone."""
    return ObjectUri(f"{uri.scheme}://{uri.bucket}/{PRIVATE}/{uri.key}")


@contextlib.contextmanager
def opened_folder(place: Place, *, name: str = "--out", work: bool = True) -> Iterator[Path]:
    """Yield the path of a folder; of one in a store, that of a new working copy, up to date.

    The copy lies in ``TMPDIR`` for its owner alone and goes at the end; what a killed process left,
    the next one removes.

    Args:
        place: of the folder; a path is yielded as it is.
        name: of the argument, for messages.
        work: hold the folder: files will be written to it.

    Raises:
        ConfigError: the URI is a bucket, lies in ``private/``, or is too long.
        StorageError: another process works there, or the store cannot be read or written.
    """
    if isinstance(place, Path):
        yield place
        return
    root = working_copy(place, name=name)
    clear_unfinished(root.parent.parent)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_joined(root))
        folder = StoredFolder(root)
        if work:
            stack.enter_context(folder.held())
        folder.refresh()
        stack.enter_context(kept_by(folder, root))
        yield root


def arrive(root: Path) -> None:
    """Open a working copy in a process that another process started, wherever it lives.

    Args:
        root: the working copy, as it is called there.

    Raises:
        StorageError: the copy cannot be made here, or the store cannot be read.
    """
    with storage_errors(f"make {root}"):
        root.parent.parent.mkdir(parents=True, exist_ok=True)
        clear_unfinished(root.parent.parent)
        joined_folder(root.parent)
        _make(root)
    folder = StoredFolder(root)
    folder.refresh()
    keep_for_ever(folder, root)


def working_copy(uri: ObjectUri, *, name: str) -> Path:
    """Return the path of a new working copy of a folder; makes nothing.

    Raises:
        ConfigError: the URI is a bucket, lies in ``private/``, or is too long.
    """
    if not uri.key or uri.key.partition("/")[0] == PRIVATE:
        raise ConfigError(
            f"{name} {uri}: give {uri.scheme}://{uri.bucket}/KEY with a KEY of its own, which does"
            f" not begin with {PRIVATE}/: files for their owner alone lie there"
        )
    folder = f"{WORKING_COPY}{uuid.uuid4().hex[:12]}@{quote(uri, safe='')}"
    if len(folder) > _LONGEST_NAME:
        raise ConfigError(f"{name} {uri} is too long: give a shorter key")
    return Path(tempfile.gettempdir()).absolute() / folder / "run"


@contextlib.contextmanager
def _joined(root: Path) -> Iterator[None]:
    with storage_errors(f"write to {root.parent.parent}"):
        lock = joined_folder(root.parent)
        _make(root)
    try:
        yield
    finally:
        shutil.rmtree(root.parent, ignore_errors=True)
        os.close(lock)


def _make(root: Path) -> None:
    root.mkdir(mode=0o700, exist_ok=True)
    (root.parent / "versions").mkdir(mode=0o700, exist_ok=True)


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with storage_errors(f"read {path}"), open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
