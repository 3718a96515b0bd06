"""The versions of the files of a stored folder, as the names of their objects tell them."""

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from distributed_privrl.data.objects import Objects

VERSIONS = ".privrl/files"
"""What the names of versions begin with, below a folder's prefix."""
_VERSION = re.compile(r"(\d{8})-([0-9a-f]{64})-(\d+)-(file|folder)")


@dataclass(frozen=True, kw_only=True, order=True)
class Version:
    """A version of a file; the newest is the greatest.

    Args:
        number: counts up.
        sha256: of the content.
        size: bytes of the content.
        kind: ``file``, or ``folder``, which is packed.
        private: whether it lies under the private prefix.
    """

    number: int
    sha256: str
    size: int
    kind: str
    private: bool

    @property
    def name(self) -> str:
        """The last part of the object's name."""
        return f"{self.number:08d}-{self.sha256}-{self.size}-{self.kind}"


def key_of(name: str, version: Version) -> str:
    """Return the name of the object that is a version of a file."""
    return f"{VERSIONS}/{name}/{version.name}"


def listed_versions(public: Objects, private: Objects, under: str = "") -> dict[str, list[Version]]:
    """Return the versions of each file that is there.

    Args:
        public: of the folder.
        private: of the folder, its owner's alone.
        under: a file, or a folder; all by default.

    Raises:
        StorageError: the store cannot be listed.
    """
    found: dict[str, list[Version]] = {}
    for objects, is_private in ((public, False), (private, True)):
        for key in objects.names(f"{VERSIONS}/{under}".rstrip("/")):
            name, _, last = key.removeprefix(f"{VERSIONS}/").rpartition("/")
            parts = _VERSION.fullmatch(last)
            if parts is None or not is_proper(name):
                continue  # nothing that was written by this module
            found.setdefault(name, []).append(
                Version(
                    number=int(parts[1]),
                    sha256=parts[2],
                    size=int(parts[3]),
                    kind=parts[4],
                    private=is_private,
                )
            )
    return found


def is_proper(name: str) -> bool:
    """Say whether a file's name lies below the folder, whoever wrote it into a store."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts
