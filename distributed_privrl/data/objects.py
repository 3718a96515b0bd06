"""The objects of a store, under a prefix: each is written whole or not at all."""

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.core.places import ObjectUri

ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables that name another server of S3 than Amazon's."""
EMULATORS = ("CLOUD_STORAGE_EMULATOR_ENDPOINT", "CLOUD_STORAGE_TESTBENCH_ENDPOINT")
"""Variables that name another server than Google's; Google's own library obeys them."""
CHUNK_BYTES = 8 * 2**20
_CONNECT_SECONDS, _REQUEST_SECONDS = 10.0, 60.0
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_CODE = re.compile(r"AWS Error ([A-Z_]+)")
_HERE = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Objects:
    """The objects under one prefix of a store.

    An object is there once all its bytes are: no reader sees a part of it. Stores know no folders
    and no locks, and rename nothing.

    Args:
        uri: of the prefix.
        filesystem: of Arrow, that reaches it.
    """

    uri: ObjectUri
    filesystem: fs.FileSystem

    def read(self, name: str = "") -> bytes | None:
        """Return an object's content; None: there is none.

        Args:
            name: under the prefix; the prefix itself by default.

        Raises:
            StorageError: the store cannot be read.
        """
        with _errors("read", self._shown(name)):
            try:
                with self.filesystem.open_input_stream(self._path(name)) as stream:
                    return bytes(stream.read())
            except FileNotFoundError:
                return None

    def fetch(self, name: str, path: Path) -> tuple[int, str]:
        """Write an object to a new file, its owner's alone; return its bytes and SHA-256.

        Raises:
            StorageError: there is no such object, or one side cannot be read or written.
        """
        digest, size = hashlib.sha256(), 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with (
            _errors("read", self._shown(name)),
            self.filesystem.open_input_stream(self._path(name)) as stream,
            open(os.open(path, flags, 0o600), "wb") as file,
        ):
            while chunk := stream.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                size += len(chunk)
        return size, digest.hexdigest()

    def put(self, name: str, content: bytes) -> None:
        """Write an object whole; one of this name is replaced.

        Raises:
            StorageError: the store cannot be written.
        """
        with _errors("write", self._shown(name)):
            self._made_folder(name)
            with self.filesystem.open_output_stream(self._path(name)) as stream:
                stream.write(content)

    def put_file(self, name: str, path: Path) -> tuple[int, str]:
        """Write a file as an object of a new name; return its bytes and SHA-256.

        Raises:
            StorageError: the file cannot be read, or the store not be written. A part of the object
                may be there then: nothing may name it before this returns.
        """
        digest, size = hashlib.sha256(), 0
        with _errors("write", self._shown(name)):
            self._made_folder(name)
            with (
                open(path, "rb") as file,
                self.filesystem.open_output_stream(self._path(name)) as stream,
            ):
                while chunk := file.read(CHUNK_BYTES):
                    stream.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
        return size, digest.hexdigest()

    def names(self, under: str = "", *, seconds: float = 0.0) -> list[str]:
        """Return the names of all objects under the prefix, in order.

        Args:
            under: the start of their names, a whole part of them.
            seconds: how long ago they must have been written, at least.

        Raises:
            StorageError: the store cannot be listed.
        """
        with _errors("list", self._shown(under)):
            found = self._listed(self._path(under))
        base, now = self._path(""), time.time()
        return sorted(
            one.path[len(base) :].lstrip("/")
            for one in found
            if one.type == fs.FileType.File
            and (
                not seconds or (one.mtime_ns is not None and one.mtime_ns <= (now - seconds) * 1e9)
            )
        )

    def remove(self, name: str) -> None:
        """Remove an object; none is fine, too.

        Raises:
            StorageError: the store cannot be written.
        """
        with _errors("remove", self._shown(name)), contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_file(self._path(name))

    def _listed(self, prefix: str) -> list[fs.FileInfo]:
        """Return what lies under a prefix: nothing is no error, a bucket that is not there is."""
        google = isinstance(self.filesystem, fs.GcsFileSystem)
        try:
            return list(self.filesystem.get_file_info(fs.FileSelector(prefix, recursive=True)))
        except FileNotFoundError:  # of S3 the prefix is not there, of Google the bucket
            if google:
                raise
        except OSError as error:  # Arrow's own word for an empty prefix of Google's has no number
            if not (google and str(error).startswith("No such file or directory")):
                raise
        return []

    def _path(self, name: str) -> str:
        return "/".join(filter(None, (self.uri.bucket, self.uri.key, name)))

    def _shown(self, name: str) -> str:
        return f"{self.uri}/{name}" if name else str(self.uri)

    def _made_folder(self, name: str) -> None:
        """Make the folder of an object where the store is one of files, as in tests."""
        if not isinstance(self.filesystem, fs.S3FileSystem | fs.GcsFileSystem):
            self.filesystem.create_dir(self._path(name).rpartition("/")[0], recursive=True)


def objects_at(uri: ObjectUri) -> Objects:
    """Return the objects under ``uri``; asks the store for nothing yet.

    Raises:
        StorageError: the region of the bucket cannot be found.
        UnsafeError: rows would travel in clear text.
    """
    return Objects(uri=uri, filesystem=filesystem_of(uri.scheme, uri.bucket))


def read_text(uri: ObjectUri, *, name: str) -> str:
    """Return the text of an object.

    Args:
        uri: of the object.
        name: of the argument, for messages.

    Raises:
        ConfigError: there is no such object, or it is no text.
        StorageError: the store cannot be read.
    """
    content = objects_at(uri).read()
    if content is None:
        raise ConfigError(f"{name}={uri}: there is no such object")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}={uri} is no text: is it a table?") from error


@cache
def filesystem_of(scheme: str, bucket: str) -> fs.FileSystem:
    """Return Arrow's access to a bucket, by the credentials of the environment or the machine.

    Raises:
        StorageError: the region of the bucket cannot be found.
        UnsafeError: rows would travel in clear text.
    """
    with _errors("open", f"{scheme}://{bucket}"):
        if scheme == "gs":
            return fs.GcsFileSystem(
                anonymous=_endpoint(EMULATORS) is not None,  # no token goes to another than Google
                retry_time_limit=timedelta(seconds=_REQUEST_SECONDS),
            )
        options: dict[str, Any] = {
            "region": next(filter(None, map(os.environ.get, _REGIONS)), None)
        }
        if (endpoint := _endpoint(ENDPOINTS)) is not None:
            options["endpoint_override"] = endpoint
        elif options["region"] is None:
            options["region"] = fs.resolve_s3_region(bucket)
        return fs.S3FileSystem(
            connect_timeout=_CONNECT_SECONDS,
            request_timeout=_REQUEST_SECONDS,
            allow_delayed_open=True,  # a small object is one request
            **options,
        )


def _endpoint(variables: tuple[str, ...]) -> str | None:
    """Return the server that the first variable that is set names; None: none is.

    Raises:
        UnsafeError: rows would travel to it in clear text, or it holds a password.
    """
    name = next(filter(os.environ.get, variables), None)
    if name is None:
        return None
    endpoint = os.environ[name]
    parts = urlsplit(endpoint)
    if "@" in parts.netloc:
        raise UnsafeError(
            f"the endpoint in {name} holds a user or password: leave it out, credentials come from"
            " the environment, a file or the machine's role"
        )
    if parts.scheme != "https" and parts.hostname not in _HERE:
        raise UnsafeError(
            f"rows would travel to {parts.hostname or 'the endpoint'} in clear text: give an"
            f" https:// address as {name}"
        )
    return endpoint


@contextlib.contextmanager
def _errors(action: str, place: str) -> Iterator[None]:
    """Turn an error of Arrow into one line that says what to do, and quotes no answer of a server.

    Raises:
        StorageError: instead of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot {action} {place}: {_reason(action, error)}") from None


def _reason(action: str, error: OSError) -> str:
    text = str(error)
    code = found[1] if (found := _CODE.search(text)) else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk here is full: set TMPDIR to a folder with more space"
    if code in ("NO_SUCH_BUCKET", "RESOURCE_NOT_FOUND") or (
        "NOT_FOUND" in text and action in ("list", "write")  # Google says no more of which is not
    ):
        return "there is no such bucket: make it first, or name another one"
    if isinstance(error, FileNotFoundError):
        return "there is no such object, or it was removed meanwhile"
    if code == "NETWORK_CONNECTION" or ("UNAVAILABLE" in text and "token" not in text):
        return (
            "the store does not answer: check the network, and AWS_ENDPOINT_URL or"
            " CLOUD_STORAGE_EMULATOR_ENDPOINT if it is not Amazon's or Google's"
        )
    if code in ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH") or any(
        word in text for word in ("token", "PERMISSION_DENIED", "UNAUTHENTICATED", "credentials")
    ):
        return (
            "the store refuses: check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " ~/.aws/credentials, the machine's role; GOOGLE_APPLICATION_CREDENTIALS) and what they"
            " may do there"
        )
    return f"{code or type(error).__name__}: check bucket, key and rights"
