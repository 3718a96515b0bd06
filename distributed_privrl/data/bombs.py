"""Files that are larger inside than outside: bounds on what others' files may declare."""

from pathlib import Path

MOST_EXPANSION = 1100
"""Bytes that one stored byte may become: deflate packs 1,032 equal ones into it, and none more."""
MOST_COLUMNS = 100_000
"""Of a table, and numbers in a row of an array."""
MOST_TEXT = 2**28
"""Bytes of the texts of a column in `CHUNK_ROWS` rows: names and categories are a kilobyte each."""
_FREE = 2**20
"""Bytes that may be declared without a stored one."""
_BLOCK = 512


def size_on_disk(path: Path) -> int:
    """Return how many bytes of a file are stored: holes count as none.

    Raises:
        OSError: there is no such file.
    """
    found = path.stat()
    return min(found.st_size, max(found.st_blocks * _BLOCK, _BLOCK))


def check_expansion(name: str, declared: int, stored: int) -> None:
    """Check that what is declared may come of what is stored.

    Args:
        name: of the array, for the message.
        declared: bytes in memory.
        stored: bytes on the disk.

    Raises:
        ValueError: no compression packs that much into so little.
    """
    if declared > _FREE + MOST_EXPANSION * stored:
        raise ValueError(
            f"{name} declares {declared} bytes, and {stored} of it are stored: write the file again"
        )


def check_holes(path: Path) -> None:
    """Check that a file that is read whole, or mapped, is no hole.

    Raises:
        OSError: there is no such file.
        ValueError: it is larger than what is stored of it can be.
    """
    check_expansion(path.name, path.stat().st_size, size_on_disk(path))


def check_texts(name: str, size: int, most: int) -> None:
    """Check that a column's texts, each repetition counted, are no more than what they may be.

    Args:
        name: of the column, for the message.
        size: bytes that they take.
        most: bytes that they may take.

    Raises:
        ValueError: they take more.
    """
    if size > most:
        raise ValueError(
            f"{name} has texts of {size} bytes, with what is repeated, and may have {most}: leave"
            " it out, or write shorter ones"
        )
