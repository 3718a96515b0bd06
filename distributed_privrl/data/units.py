"""Sums over the rows of each unit, as rows come."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data import row_kernels

_FIRST_PLACES = 16_384
_STEP = 8192
_SLICE = 65_536


class UnitSums(Protocol):
    """Adds up the hashes of each unit's rows."""

    def add(self, ids: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Add rows' hashes (N,) to the units ``ids`` (N,); return the sums that are finished."""
        ...

    def rest(self) -> Iterator[NDArray[np.uint64]]:
        """Yield those that were not, after the last row."""
        ...


class UnitsInOrder:
    """Sums of units whose rows follow each other, as those of trajectories do: none is held."""

    def __init__(self) -> None:
        self._id = self._sum = np.empty(0, dtype=np.uint64)

    def add(self, ids: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Add rows; return the sums of all units but the last one."""
        ids, sums = _runs(np.append(self._id, ids), np.append(self._sum, hashes))
        self._id, self._sum = ids[-1:], sums[-1:]
        return sums[:-1]

    def rest(self) -> Iterator[NDArray[np.uint64]]:
        """Yield the last unit's."""
        yield self._sum


class UnitsAnywhere:
    """Sums of units whose rows lie anywhere: 32 to 64 bytes a unit are held."""

    def __init__(self) -> None:
        self._table = np.zeros((_FIRST_PLACES, 2), dtype=np.uint64)
        self._units = 0
        self._nought = np.zeros(1, dtype=np.uint64)  # sum of the unit whose id is zero
        self._has_nought = False

    def add(self, ids: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Add rows; no unit is finished before the end."""
        ids, sums = _runs(ids, hashes)
        if (nought := ids == 0).any():
            self._has_nought = True
            self._nought += sums[nought].sum(dtype=np.uint64)
            ids, sums = ids[~nought], sums[~nought]
        for start in range(0, len(ids), _STEP):
            self._make_room(min(_STEP, len(ids) - start))
            self._put(ids[start : start + _STEP], sums[start : start + _STEP])
        return ids[:0]

    def rest(self) -> Iterator[NDArray[np.uint64]]:
        """Yield all units'."""
        if self._has_nought:
            yield self._nought
        for part in _slices(self._table):
            yield part[:, 1].copy()

    def _put(self, ids: NDArray[np.uint64], sums: NDArray[np.uint64]) -> None:
        self._units += row_kernels.add_to_table(ids, sums, self._table)[0]

    def _make_room(self, more: int) -> None:
        while self._units + more > len(self._table) // 2:
            old, self._units = self._table, 0
            self._table = np.zeros((2 * len(old), 2), dtype=np.uint64)
            for part in _slices(old):
                self._put(part[:, 0].copy(), part[:, 1].copy())


def _slices(table: NDArray[np.uint64]) -> Iterator[NDArray[np.uint64]]:
    """Yield the places that are taken, some at a time."""
    for start in range(0, len(table), _SLICE):
        part = table[start : start + _SLICE]
        yield part[part[:, 0] != 0]


def _runs(
    ids: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return ids and sums of rows that follow each other with the same id."""
    run_ids, sums = np.empty_like(ids), np.empty_like(hashes)
    count = row_kernels.sum_runs(ids, hashes, run_ids, sums)
    return run_ids[:count], sums[:count]
