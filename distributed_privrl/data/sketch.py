"""Sketches of datasets: samples of keyed hashes, by which parts of one are found in another.

A row is its observation and action as float32 numbers; categories are numbers, too, whatever space
declares them. The next observation is left out: where it is the next row's, it changes with every
row that is left out of a table. A unit is the name that its column gives it: a table that was
imported with other kinds of columns has other numbers, and the same names.

What is in a sample follows from a key and the item alone, so that samples of two datasets hold the
same items of what both share.
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
"""Of a sample: it is thinned by half until it has no more."""
_BLIND = 0.5
SHARED = 0.01
"""More than this of either side, beyond the side's own collisions, is no accident."""
_HEADER = struct.Struct("<4sQ?")
_SAMPLE_HEADER = struct.Struct("<BI")
_MAGIC = b"prs3"
_ENTRY = np.dtype([("hash", "<u8"), ("zeros", "u1"), ("first", "<u4"), ("second", "<u4")])


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """A sample of distinct items, chosen by a key.

    Args:
        level: items are in the sample with probability 2^-level.
        entries: (S,) of keyed hash, leading zero bits of what decided on the sample, and how often
            the item is in each of two halves of the dataset.
    """

    level: int
    entries: NDArray[np.void]

    def from_level(self, level: int) -> NDArray[np.void]:
        """Return the entries that a sample of that level or a lower one has."""
        return self.entries[self.entries["zeros"] >= level]

    def to_bytes(self) -> bytes:
        """Return its part of a sketch."""
        return _SAMPLE_HEADER.pack(self.level, len(self.entries)) + self.entries.tobytes()


@dataclass(frozen=True, kw_only=True, eq=False)
class Sketch:
    """Samples of a dataset's distinct rows and of its units.

    Args:
        row_count: of the dataset.
        whole: whether every number of the sampled rows is whole: they may be all discrete.
        rows: the rows; the halves share no unit.
        units: the names of the units; empty where no column has them.

    Privacy: hashes of sensitive rows and names: for the ledger alone. Without the key nobody can
    tell whether a row or a person is among them.
    """

    row_count: int
    whole: bool
    rows: Sample
    units: Sample

    def to_bytes(self) -> bytes:
        """Return what `from_bytes` reads."""
        head = _HEADER.pack(_MAGIC, self.row_count, self.whole)
        return head + self.rows.to_bytes() + self.units.to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Sketch":
        """Return the sketch in ``data``.

        Raises:
            StorageError: it is none.
        """
        try:
            magic, row_count, whole = _HEADER.unpack_from(data)
            rows, place = _sample_at(data, _HEADER.size)
            units, place = _sample_at(data, place)
        except (struct.error, ValueError) as error:
            raise StorageError(_DAMAGED) from error
        if magic != _MAGIC or place != len(data):
            raise StorageError(_DAMAGED)
        return cls(row_count=row_count, whole=whole, rows=rows, units=units)


_DAMAGED = "a sketch of rows is damaged, or of an earlier version: set the budget again"


def _sample_at(data: bytes, place: int) -> tuple[Sample, int]:
    """Return the sample at a place of a sketch, and the place after it."""
    level, count = _SAMPLE_HEADER.unpack_from(data, place)
    place += _SAMPLE_HEADER.size
    entries = np.frombuffer(data, dtype=_ENTRY, count=count, offset=place)
    return Sample(level=level, entries=entries), place + entries.nbytes


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """How much of two datasets is the same.

    Args:
        mine: share of the first one's rows that the second has.
        theirs: share of the second one's rows that the first has.
        my_units: share of the first one's units whose names the second has; 0 without names.
        their_units: share of the second one's units whose names the first has.
        rows_suspicious: whether either share of rows is above 1 %, beyond what two halves of that
            side that share no unit have in common; where both are discrete, above 1 % at all.
        discrete: whether every number of both is whole, or most rows of either are those of several
            units, so that rows may be equal by chance.
    """

    mine: float
    theirs: float
    my_units: float
    their_units: float
    rows_suspicious: bool
    discrete: bool

    @property
    def units_suspicious(self) -> bool:
        """Whether either share of units is above 1 %."""
        return max(self.my_units, self.their_units) > SHARED

    @property
    def suspicious(self) -> bool:
        """Whether somebody may be in both."""
        return self.rows_suspicious or self.units_suspicious


def compare(one: Sketch, other: Sketch) -> Overlap:
    """Return how much two datasets share, by what both samples could hold."""
    mine, theirs, shares = _in_both(one.rows, other.rows)
    usual = _collisions(mine), _collisions(theirs)
    # Where most rows are everybody's, nothing above their share could be seen.
    discrete = (one.whole and other.whole) or max(usual) > _BLIND
    usual = (0.0, 0.0) if discrete else usual
    excess = max(share - own for share, own in zip(shares, usual, strict=True))
    *_, (my_units, their_units) = _in_both(one.units, other.units)
    return Overlap(
        mine=shares[0],
        theirs=shares[1],
        my_units=my_units,
        their_units=their_units,
        rows_suspicious=excess > SHARED,
        discrete=discrete,
    )


def _in_both(
    one: Sample, other: Sample
) -> tuple[NDArray[np.void], NDArray[np.void], tuple[float, float]]:
    """Return the comparable entries of two samples, and the share of each that the other has."""
    level = max(one.level, other.level)
    mine, theirs = one.from_level(level), other.from_level(level)
    shares = (
        _share(mine, np.isin(mine["hash"], theirs["hash"])),
        _share(theirs, np.isin(theirs["hash"], mine["hash"])),
    )
    return mine, theirs, shares


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
        key = hashlib.blake2b(key, person=b"privrl sketch").digest()
        self._halves = np.frombuffer(key, dtype="<u8")[2]
        self._rows, self._units = _SampleBuilder(key), _SampleBuilder(key)
        self._count, self._whole = 0, True

    def add(
        self,
        hashes: NDArray[np.uint64],
        unit_ids: NDArray[np.uint64],
        parts: tuple[NDArray[np.float32], ...],
    ) -> None:
        """Add a chunk of rows.

        Args:
            hashes: (N,) of observation and action.
            unit_ids: (N,).
            parts: the rows' columns, (N, W) each: looked at for numbers that are not whole.
        """
        self._count += len(hashes)
        chosen, order = self._rows.choose(hashes)
        self._whole = self._whole and all(_all_whole(part[chosen]) for part in parts)
        half = mix(unit_ids[chosen] ^ self._halves) & np.uint64(1)
        self._rows.add(order, np.uint64(1) - half, half)

    def add_units(self, unit_ids: NDArray[np.uint64]) -> None:
        """Add names of units, (N,), each at least once."""
        _, order = self._units.choose(mix(np.unique(unit_ids)))
        self._units.add(order, np.ones_like(order), np.zeros_like(order))

    def sketch(self) -> Sketch:
        """Return the sketch of what was added."""
        units = self._units.sample()
        units.entries["first"] = 1  # however many chunks have it
        return Sketch(
            row_count=self._count, whole=self._whole, rows=self._rows.sample(), units=units
        )


class _SampleBuilder:
    """Gathers a sample of 64-bit hashes.

    Args:
        key: 64 secret bytes.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        words = np.frombuffer(key, dtype="<u8")
        self._offset, self._factor = words[0], words[1] | np.uint64(1)
        self._level = 0
        self._kept = np.empty((3, 0), dtype=np.uint64)  # order, and items of each half
        self._buffer: list[NDArray[np.uint64]] = []
        self._buffered = 0

    def choose(self, hashes: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return the places of those of ``hashes`` (N,) that are in the sample, and their order."""
        chosen, order = np.empty(len(hashes), np.int64), np.empty(len(hashes), np.uint64)
        count = row_kernels.sample(
            hashes, self._offset, self._factor, _below(self._level), chosen, order
        )
        return chosen[:count], order[:count]

    def add(
        self, order: NDArray[np.uint64], first: NDArray[np.uint64], second: NDArray[np.uint64]
    ) -> None:
        """Add chosen items (N,), and in which half each is."""
        self._buffer.append(np.stack([order, first, second]))
        self._buffered += len(order)
        if self._buffered > MOST_HASHES:
            self._compact()

    def _compact(self) -> None:
        """Merge equal items, and thin the sample until it is small enough."""
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

    def sample(self) -> Sample:
        """Return the sample of what was added."""
        self._compact()
        order, first, second = self._kept
        entries = np.empty(len(order), dtype=_ENTRY)
        entries["hash"] = _keyed(order, self._key[32:])
        entries["zeros"] = sum(order <= _below(level) for level in range(1, 65))
        most = np.uint64(np.iinfo(np.uint32).max)
        entries["first"], entries["second"] = np.minimum(first, most), np.minimum(second, most)
        entries.sort(order="hash")
        return Sample(level=self._level, entries=entries)


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
    with np.errstate(all="ignore"):  # some kinds of nan complain of being rounded
        return bool((numbers == np.rint(numbers)).all())
