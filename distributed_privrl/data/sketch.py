"""Sketches of datasets: a sample of keyed row hashes, by which parts of one are found in another.

A row is its observation and action as float32 numbers; categories are numbers, too, whatever space
declares them. The next observation is left out: where it is the next row's, it changes with every
row that is left out of a table. Which rows are in the sample follows from a key and the row alone,
so that samples of two datasets hold the same rows of what both share.
"""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from distributed_privrl.core.errors import StorageError
from distributed_privrl.data import row_kernels
from distributed_privrl.data.hashing import mix

MOST_HASHES = 16_384
"""Of a sketch: a sample is thinned by half until it has no more."""
_BLIND = 0.5
SHARED = 0.01
"""More than this of either side, beyond the side's own collisions, is no accident."""
_HEADER = struct.Struct("<4sQBBI")
_MAGIC = b"prs2"
_ENTRY = np.dtype([("hash", "<u8"), ("zeros", "u1"), ("first", "<u4"), ("second", "<u4")])


@dataclass(frozen=True, kw_only=True, eq=False)
class RowSketch:
    """A sample of a dataset's distinct rows.

    Args:
        rows: of the dataset.
        level: rows are in the sample with probability 2^-level.
        whole: whether every number of the sampled rows is whole: they may be all discrete.
        entries: (S,) of keyed hash, leading zero bits of what decided on the sample, and rows with
            that hash in each of two halves of the dataset that share no unit.

    Privacy: hashes of sensitive rows: for the ledger alone. Without the key nobody can tell whether
    a row is among them.
    """

    rows: int
    level: int
    whole: bool
    entries: NDArray[np.void]

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads."""
        head = _HEADER.pack(_MAGIC, self.rows, self.level, self.whole, len(self.entries))
        return head + self.entries.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "RowSketch":
        """Return the sketch in ``data``.

        Raises:
            StorageError: it is none.
        """
        try:
            magic, rows, level, whole, count = _HEADER.unpack_from(data)
            entries = np.frombuffer(data, dtype=_ENTRY, offset=_HEADER.size)
        except (struct.error, ValueError) as error:
            raise StorageError("a sketch of rows is damaged: set the budget again") from error
        if magic != _MAGIC or len(entries) != count:
            raise StorageError("a sketch of rows is damaged: set the budget again")
        return cls(rows=rows, level=level, whole=bool(whole), entries=entries)


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of two datasets is the same, in shares of rows.

    Args:
        mine: share of the first one's rows that the second has.
        theirs: share of the second one's rows that the first has.
        suspicious: whether either is above 1 %, beyond what two halves of that side that share no
            unit have in common; where both are discrete, above 1 % at all.
        discrete: whether every number of both is whole, or most rows of either are those of several
            units, so that rows may be equal by chance.
    """

    mine: float
    theirs: float
    suspicious: bool
    discrete: bool


def compare(one: RowSketch, other: RowSketch) -> Overlap:
    """Return how much two datasets share, by the rows that both samples could hold."""
    level = max(one.level, other.level)
    mine, theirs = (side.entries[side.entries["zeros"] >= level] for side in (one, other))
    shares = (
        _share(mine, np.isin(mine["hash"], theirs["hash"])),
        _share(theirs, np.isin(theirs["hash"], mine["hash"])),
    )
    usual = _collisions(mine), _collisions(theirs)
    # Where most rows are everybody's, nothing above their share could be seen.
    discrete = (one.whole and other.whole) or max(usual) > _BLIND
    usual = (0.0, 0.0) if discrete else usual
    excess = max(share - own for share, own in zip(shares, usual, strict=True))
    return Overlap(mine=shares[0], theirs=shares[1], suspicious=excess > SHARED, discrete=discrete)


def _collisions(entries: NDArray[np.void]) -> float:
    """Return the share of rows that both halves of a dataset have."""
    return _share(entries, (entries["first"] > 0) & (entries["second"] > 0))


def _share(entries: NDArray[np.void], chosen: NDArray[np.bool_]) -> float:
    counts = entries["first"].astype(np.float64) + entries["second"]
    total = float(counts.sum())
    return float(counts[chosen].sum()) / total if total else 0.0


class SketchBuilder:
    """Gathers the sketch of a dataset, chunk by chunk.

    Args:
        key: secret; sketches under different keys have nothing in common.
    """

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, person=b"privrl sketch").digest()
        words = np.frombuffer(self._key, dtype="<u8")
        self._offset, self._factor, self._halves = words[0], words[1] | np.uint64(1), words[2]
        self._rows, self._level, self._whole = 0, 0, True
        self._kept = np.empty((3, 0), dtype=np.uint64)  # order, and rows of each half
        self._buffer: list[NDArray[np.uint64]] = []
        self._buffered = 0

    def add(
        self,
        hashes: NDArray[np.uint64],
        unit_ids: NDArray[np.uint64],
        parts: tuple[NDArray[np.float32], ...],
    ) -> None:
        """Add a chunk.

        Args:
            hashes: (N,) of observation and action.
            unit_ids: (N,).
            parts: the rows' columns, (N, W) each: looked at for numbers that are not whole.
        """
        self._rows += len(hashes)
        chosen, order = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.uint64)
        count = row_kernels.sample(
            hashes, self._offset, self._factor, _below(self._level), chosen, order
        )
        chosen = chosen[:count]
        self._whole = self._whole and all(_all_whole(part[chosen]) for part in parts)
        half = mix(unit_ids[chosen] ^ self._halves) & np.uint64(1)
        self._buffer.append(np.stack([order[:count], np.uint64(1) - half, half]))
        self._buffered += count
        if self._buffered > MOST_HASHES:
            self._compact()

    def _compact(self) -> None:
        """Merge equal rows, and thin the sample until it is small enough."""
        joined = np.concatenate([self._kept, *self._buffer], axis=1)
        self._buffer, self._buffered = [], 0
        joined = joined[:, np.argsort(joined[0])]
        starts = np.flatnonzero(np.diff(joined[0], prepend=~joined[0, :1]) != 0)
        if len(starts):
            order, halves = joined[0, starts], np.add.reduceat(joined[1:], starts, axis=1)
            while np.searchsorted(order, _below(self._level), side="right") > MOST_HASHES:
                self._level += 1
            kept = np.searchsorted(order, _below(self._level), side="right")
            joined = np.concatenate([order[None, :kept], halves[:, :kept]])
        self._kept = joined

    def sketch(self) -> RowSketch:
        """Return the sketch of what was added."""
        self._compact()
        order, first, second = self._kept
        entries = np.empty(len(order), dtype=_ENTRY)
        entries["hash"] = _keyed(order, self._key[32:])
        entries["zeros"] = sum(order <= _below(level) for level in range(1, 65))
        most = np.uint64(np.iinfo(np.uint32).max)
        entries["first"], entries["second"] = np.minimum(first, most), np.minimum(second, most)
        entries.sort(order="hash")
        return RowSketch(rows=self._rows, level=self._level, whole=self._whole, entries=entries)


def _keyed(order: NDArray[np.uint64], key: bytes) -> NDArray[np.uint64]:
    """Return half of the AES-256 block of each number: nobody without the key finds it."""
    blocks = np.zeros((len(order), 2), dtype="<u8")
    blocks[:, 0] = order
    encryptor = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    ciphered = encryptor.update(blocks.tobytes()) + encryptor.finalize()
    return np.frombuffer(ciphered, dtype="<u8").reshape(-1, 2)[:, 0]


def _below(level: int) -> np.uint64:
    return np.uint64(2 ** (64 - level) - 1)


def _all_whole(numbers: NDArray[np.float32]) -> bool:
    return bool((numbers == np.rint(numbers)).all())
