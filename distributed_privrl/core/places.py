"""Where files lie: a path, or a key of an object store."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic_core import core_schema

from distributed_privrl.core.errors import ConfigError, UnsafeError

SCHEMES = ("s3", "gs")
"""Object stores that are known."""

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")


class ObjectUri(str):
    """``s3://BUCKET/KEY`` or ``gs://BUCKET/KEY``, without a slash at the end; made by `place_of`.

    It holds no credentials: it may be shown, logged and sent to workers.
    """

    __slots__ = ()

    @property
    def scheme(self) -> str:
        """Of the object store, one of `SCHEMES`."""
        return self.partition("://")[0]

    @property
    def bucket(self) -> str:
        """The first part after the scheme."""
        return self.partition("://")[2].partition("/")[0]

    @property
    def key(self) -> str:
        """What follows the bucket; empty for all of it."""
        return self.partition("://")[2].partition("/")[2]

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        """Take what `place_of` made; in JSON it is a string."""
        return core_schema.json_or_python_schema(
            json_schema=core_schema.str_schema(pattern="^(s3|gs)://"),
            python_schema=core_schema.is_instance_schema(cls),
            serialization=core_schema.simple_ser_schema("str"),
        )


Place = Path | ObjectUri
"""A path, or an object of a store."""


def check_folder(name: str, path: Path) -> Path:
    """Return ``path`` unless it was a URI: as a path ``s3://a/b`` is the folder ``s3:/a/b``.

    Raises:
        ConfigError: it was one.
    """
    written = [scheme for scheme in (*SCHEMES, "file") if f"{scheme}:" in path.parts]
    if written:
        raise ConfigError(
            f"{name} takes a folder and no {written[0]}:// URI: runs, evaluations, datasets and"
            " bounds may lie in an object store, sweeps and demos may not"
        )
    return path


def is_uri(text: object) -> bool:
    """Say whether a value is written as a URI."""
    return isinstance(text, str) and _URI.match(text) is not None


def place_of(name: str, text: str | Path) -> Place:
    """Return the path or the object that ``text`` names; ``file://`` names a path.

    Args:
        name: of the argument, for messages, which never quote a URI that is refused: it may hold a
            password.
        text: as it was given.

    Raises:
        ConfigError: its scheme is none that is known, it has no bucket, or a ``file://`` names
            another host.
        UnsafeError: it holds a user, a password or options.

    Example:
        >>> place_of("--datasets", "s3://clinic/datasets/")
        's3://clinic/datasets'
        >>> place_of("--datasets", "file:///shared/datasets")
        PosixPath('/shared/datasets')
    """
    if isinstance(text, Path | ObjectUri) or (begun := _URI.match(text)) is None:
        return text if isinstance(text, ObjectUri) else Path(text)
    scheme = begun[1].lower()
    if scheme not in (*SCHEMES, "file"):
        raise ConfigError(
            f"{name}: {scheme}:// is no place that is known: give s3://BUCKET/KEY, gs://BUCKET/KEY,"
            " file:///PATH or a path"
        )
    parts = urlsplit(text)
    if "@" in parts.netloc or parts.query or parts.fragment or "?" in text:
        raise UnsafeError(
            f"{name}: a URI with a user, a password or options is refused: it is shown"
            " and logged. Give s3://BUCKET/KEY alone; credentials and the endpoint come from the"
            " environment (AWS_*, GOOGLE_APPLICATION_CREDENTIALS) or the machine's role"
        )
    if scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"{name}: file:// takes an absolute path: file:///shared/datasets")
        return Path(unquote(parts.path))
    pieces = [piece for piece in parts.path.split("/") if piece]
    if not _BUCKET.fullmatch(parts.netloc) or {".", ".."} & set(pieces):
        raise ConfigError(f"{name}: no bucket and key in this URI: give {scheme}://BUCKET/KEY")
    return ObjectUri(f"{scheme}://" + "/".join([parts.netloc, *pieces]))
