"""One pass over a dataset: what names its rows and its units in the ledger, and what it shares.

Nothing here depends on a dataset's id, its declared spaces, its layout, chunks or the order of its
rows. A row is its observation, action, reward, next observation and whether it terminates, as
float32 numbers; categories are numbers, too (above 2^24 neighbouring ones count as one). Whether
the recording stopped is not looked at: it says where trajectories end, which units say better, and
one-step episodes cannot do without it.
"""

import functools
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data import row_kernels
from distributed_privrl.data.layout import RowLayout, public_rows
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.sketch import Sketch, SketchBuilder
from distributed_privrl.data.splitting import unit_of
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions
from distributed_privrl.data.units import UnitsAnywhere, UnitsInOrder, UnitSums

_SLICE_ROWS = 8192
"""Rows looked at together: their hashes stay in the second cache."""
_EACH_ROW = hashlib.sha256(b"distributed_privrl units 2: each row").hexdigest()
"""The partition of rows in which each is a unit."""


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a pass over a dataset found.

    Args:
        fingerprint: 256 bits (hexadecimal) of its rows, in whatever order.
        partition: 256 bits (hexadecimal) of which rows belong together as units, whatever those
            are called; empty if no unit was asked for.
        overlap: whether a public dataset holds one of its rows.
        sketch: by which parts of it are found in others; None without a key.

    Privacy:
        All depend on single records: fingerprint, partition and sketch stay in the ledger, the
        overlap leads to a refusal that the operator alone sees. None belongs in an artefact.
    """

    fingerprint: str
    partition: str
    overlap: bool
    sketch: Sketch | None

    @property
    def identity(self) -> str:
        """What an account is compared with: rows, and whose they are."""
        return f"{self.fingerprint}:{self.partition}"


def inspect(
    store: DatasetStore,
    dataset: str,
    *,
    unit: str | None = None,
    key: bytes | None = None,
    public_ids: Sequence[str] = (),
    chunk_rows: int = CHUNK_ROWS,
) -> Inspection:
    """Return what names a dataset in the ledger, and whether public datasets hold rows of it.

    Rows overlap if their observation, action and next observation are equal; rewards are left out,
    so that a public copy with other rewards is found too.

    Args:
        store: where all datasets lie.
        dataset: the sensitive id.
        unit: whose partition of the rows is wanted: transition, trajectory or a column.
        key: of the ledger, for a sketch.
        public_ids: ids of the public datasets.
        chunk_rows: rows held at a time.

    Raises:
        ConfigError: no such dataset, it does not know the unit, public spaces that differ from the
            sensitive ones, or public values that are not finite.
    """
    info = store.info(dataset)
    if unit is not None:
        store.check_unit(dataset, unit)
    whole = _have_successors(store, dataset, *public_ids)
    public = _public_hashes(store, info, public_ids, chunk_rows, whole=whole)
    rows, partition = _Items("rows"), _Partition(unit)
    builder = None if key is None else SketchBuilder(key)
    overlap = False
    named = unit_of(info) if unit in (None, TRANSITION) else unit
    chunks = store.iter_transitions(dataset, unit=named, chunk_rows=chunk_rows)
    for chunk in _read_ahead(chunks):
        for hashes in _slices(chunk):
            rows.add(hashes.rows)
            partition.add(hashes.unit_ids, hashes.rows)
            overlap = overlap or _shares_row(hashes.compared(whole=whole), public)
            if builder is not None:
                builder.add(hashes.pairs, hashes.unit_ids, hashes.parts[:2])
    if builder is not None and info.names_units:
        for ids in store.iter_unit_ids(dataset):
            builder.add_units(ids)
    return Inspection(
        fingerprint=rows.digest(),
        partition=partition.digest(),
        overlap=overlap,
        sketch=None if builder is None else builder.sketch(),
    )


def share_rows(store: DatasetStore, one: str, other: str) -> bool:
    """Say whether two datasets hold the same row, as `inspect` compares them.

    Rows may be of any kind: one that is not finite is a row like others.

    Args:
        store: where they lie.
        one: id of the first.
        other: id of the second, whose hashes are held in memory.

    Raises:
        ConfigError: no such dataset.

    Privacy: depends on single records of both: for a refusal that the operator alone sees.
    """
    whole = _have_successors(store, one, other)
    chunks = store.iter_transitions(other, unit=TRANSITION)
    held = _sorted([some.compared(whole=whole) for chunk in chunks for some in _slices(chunk)])
    chunks = store.iter_transitions(one, unit=TRANSITION)
    return any(
        _shares_row(some.compared(whole=whole), held) for chunk in chunks for some in _slices(chunk)
    )


def _have_successors(store: DatasetStore, *datasets: str) -> bool:
    """Say whether something follows the rows of all datasets.

    What is stored as the next observation of rows that nothing follows is made up, and a copy of
    them that was imported with trajectories has others: such rows are compared without.
    """
    return all(store.info(dataset).has_successors for dataset in datasets)


def _slices(chunk: Transitions) -> "Iterator[_Hashes]":
    """Yield the hashes of a chunk's rows, some at a time."""
    for start in range(0, len(chunk), _SLICE_ROWS):
        yield _Hashes(chunk, slice(start, start + _SLICE_ROWS))


def _read_ahead(chunks: Iterator[Transitions]) -> Iterator[Transitions]:
    """Yield chunks, each read by a thread while the one before is looked at."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, chunks, None)
        while (chunk := coming.result()) is not None:
            coming = reader.submit(next, chunks, None)
            yield chunk


class _Hashes:
    """Hashes of some of a chunk's rows.

    ``rows`` (2, N) are of all that a row is, ``steps`` (2, N) of observation, action and next
    observation, ``pairs`` (N,) of observation and action.
    """

    def __init__(self, chunk: Transitions, some: slice) -> None:
        self.unit_ids = chunk.unit_ids[some]
        count = len(self.unit_ids)
        self.parts = tuple(
            np.ascontiguousarray(part[some], dtype=np.float32).reshape(count, -1)
            for part in (chunk.observations, chunk.actions, chunk.next_observations)
        )
        observations, actions, successors = (part.reshape(-1).view("u4") for part in self.parts)
        widths = np.array([part.shape[1] for part in self.parts[:2]], dtype=np.int64)
        self.pairs = np.empty(count, dtype=np.uint64)
        self.steps = np.empty((2, count), dtype=np.uint64)
        self.rows = np.empty((2, count), dtype=np.uint64)
        row_kernels.hash_blocks(
            observations,
            actions,
            successors,
            np.ascontiguousarray(chunk.rewards[some], dtype=np.float32).view("u4"),
            np.ascontiguousarray(chunk.terminated[some]),
            widths,
            _constants("rows", int(2 * -(-widths[0] // 4) - (-widths[1] // 4) + 2)),
            self.pairs,
            self.steps,
            self.rows,
        )

    def compared(self, *, whole: bool) -> NDArray[np.uint64]:
        """Return what tells rows of two datasets apart (2, N): ``steps``, else ``pairs`` twice."""
        return self.steps if whole else np.stack([self.pairs, self.pairs])


class _Items:
    """A multiset of 128-bit numbers, as the sum of what stands for each."""

    def __init__(self, name: str) -> None:
        self._name, self._count = name, 0
        self._lanes = np.zeros(4, dtype=np.uint64)

    def add(self, items: NDArray[np.uint64]) -> None:
        """Add ``items`` (2, N)."""
        row_kernels.add_items(items, _constants(self._name, 1)[0], self._lanes)
        self._count += items.shape[1]

    def digest(self) -> str:
        """Return 256 bits of all that was added, in whatever order."""
        about = f"distributed_privrl {self._name} 2: {self._count}\n".encode()
        return hashlib.sha256(about + self._lanes.astype("<u8").tobytes()).hexdigest()


class _Partition:
    """Which rows belong together, as the multiset of units, each the multiset of its rows."""

    def __init__(self, unit: str | None) -> None:
        self._unit = unit
        self._items = _Items("units")
        self._sums: UnitSums = UnitsInOrder() if unit == TRAJECTORY else UnitsAnywhere()

    def add(self, ids: NDArray[np.uint64], rows: NDArray[np.uint64]) -> None:
        """Add rows with hashes (2, N) to their units (N,)."""
        if self._unit not in (None, TRANSITION):
            self._items.add(_twice(self._sums.add(ids, rows[0])))

    def digest(self) -> str:
        """Return 256 bits of it, once; nothing where no unit was asked for."""
        if self._unit is None:
            return ""
        if self._unit == TRANSITION:
            return _EACH_ROW
        for sums in self._sums.rest():
            self._items.add(_twice(sums))
        return self._items.digest()


def _twice(sums: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.stack([sums, sums])


@functools.lru_cache(maxsize=32)
def _constants(name: str, count: int) -> NDArray[Any]:
    """Return public random constants, (count, 4) uint64: the same ones for ever."""
    stream = hashlib.shake_256(f"distributed_privrl {name} 2".encode()).digest(32 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64).reshape(count, 4)


def _public_hashes(
    store: DatasetStore,
    info: DatasetInfo,
    public_ids: Sequence[str],
    chunk_rows: int,
    *,
    whole: bool,
) -> NDArray[np.uint64]:
    """Return the hashes of every public row, (2, M), sorted by the first half."""
    layout = RowLayout(info.observation_space, info.action_space)
    hashes = []
    for public in public_ids:
        for chunk in store.iter_transitions(public, unit=TRANSITION, chunk_rows=chunk_rows):
            for _ in public_rows(layout, {public: [chunk]}):
                pass
            hashes += [some.compared(whole=whole) for some in _slices(chunk)]
    return _sorted(hashes)


def _sorted(hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    joined = np.concatenate([np.empty((2, 0), dtype=np.uint64), *hashes], axis=1)
    return joined[:, np.argsort(joined[0])]


def _shares_row(hashes: NDArray[np.uint64], public: NDArray[np.uint64]) -> bool:
    """Say whether a pair of ``hashes`` (2, N) is among ``public`` (2, M), sorted by the first."""
    if public.shape[1] == 0:
        return False
    nearest = np.searchsorted(public[0], hashes[0]).clip(max=public.shape[1] - 1)
    return bool((public[:, nearest] == hashes).all(axis=0).any())
