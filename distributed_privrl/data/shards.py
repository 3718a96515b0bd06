"""A worker's share of a dataset's units, by reference and by content."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.trajectories import (
    TRANSITION,
    Trajectories,
    Transitions,
    no_trajectories,
    offsets_of,
)

Scalar = TypeVar("Scalar", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class ShardRef:
    """Names one shard of a dataset; holds no rows, and may be pickled and logged.

    Args:
        root: of the dataset store: its folder, or a URI.
        dataset: id of the dataset.
        index: which shard, from 0.
        count: number of shards.
        unit: what one person contributes: transition, trajectory or the unit column's name.
        max_rows_per_unit: public cap; a unit's further rows are left out.
        skip_trajectories: public; each unit's first so many trajectories are left out, before the
            cap: something else uses them. A unit that has no more is null.

    Raises:
        ConfigError: ``index`` is not below ``count``, the cap is not above zero, or
            ``skip_trajectories`` is below zero.
    """

    root: str
    dataset: str
    index: int
    count: int
    unit: str
    max_rows_per_unit: int | None = None
    skip_trajectories: int = 0

    def __post_init__(self) -> None:
        if self.skip_trajectories < 0:
            raise ConfigError(f"skip_trajectories must be at least 0, got {self.skip_trajectories}")
        if not 0 <= self.index < self.count:
            raise ConfigError(f"index must lie in [0, count={self.count}), got {self.index}")
        if self.max_rows_per_unit is not None and self.max_rows_per_unit < 1:
            raise ConfigError(f"max_rows_per_unit must be at least 1, got {self.max_rows_per_unit}")


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedShard:
    """The encoded rows of a shard, grouped by unit; raw private data.

    Each unit has a row at least: one of which nothing is left to read has a row that is not valid,
    and so it keeps its place among the others, as any null unit does.

    Args:
        rows: (N, D) float32, unit after unit, in dataset order within a unit.
        valid: (N,) bool; a row that is not valid is zeros, and still its unit's.
        unit_ids: (U,) uint64, rising.
        offsets: (U + 1,) int64: unit u has rows ``offsets[u]`` to ``offsets[u + 1]``.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]
    unit_ids: NDArray[np.uint64]
    offsets: NDArray[np.int64]


def shard_of(unit_ids: NDArray[np.uint64], count: int) -> NDArray[np.int64]:
    """Return the shard of each unit, (N,), by a fixed hash of its id alone."""
    return (mix(unit_ids) % np.uint64(count)).astype(np.int64)


def shard_refs(
    store: DatasetStore,
    dataset: str,
    *,
    count: int,
    unit: str,
    max_rows_per_unit: int | None = None,
    skip_trajectories: int = 0,
) -> list[ShardRef]:
    """Return a reference to each of ``count`` shards; see `ShardRef`.

    Raises:
        ConfigError: no such dataset, it does not know the unit, or ``count`` is not above zero.
    """
    if count < 1:
        raise ConfigError(f"count must be at least 1, got {count}")
    store.check_unit(dataset, unit)
    return [
        ShardRef(
            root=store.place,
            dataset=dataset,
            index=index,
            count=count,
            unit=unit,
            max_rows_per_unit=max_rows_per_unit,
            skip_trajectories=skip_trajectories,
        )
        for index in range(count)
    ]


def load_shard(
    ref: ShardRef,
    encoder: TransitionEncoder,
    *,
    chunk_rows: int = CHUNK_ROWS,
    keep: Keep | None = None,
) -> EncodedShard:
    """Read and encode a shard as a stream: memory is that of its own rows and one chunk.

    Of a unit no more rows of a chunk are held than the cap allows, whatever it has beyond.

    Args:
        ref: which shard.
        encoder: of the dataset's spaces, with a public scaling.
        chunk_rows: rows read at a time.
        keep: chooses units of the shard by their ids; None: all of them.

    Raises:
        ConfigError: no such dataset, or it does not know the unit; or ``skip_trajectories`` is
            asked of independent transitions.
        StorageError: it cannot be read.

    Privacy:
        Which shard a unit belongs to depends on its id alone, and its rows on its own rows alone.
        Nothing is released: the result stays in the process that reads it.
    """
    store, kept = DatasetStore(ref.root), _keep(ref, keep)
    rows, valid, units = [], [], []
    for chunk in _transitions(store, ref, chunk_rows, kept):
        if ref.max_rows_per_unit is not None:  # for all chunks together it is done at the end
            first, _, _ = rows_by_unit(chunk.unit_ids, ref.max_rows_per_unit)
            chunk = chunk.select(np.sort(first))
        encoded = encoder.encode(chunk)
        rows.append(encoded.rows)
        valid.append(encoded.valid)
        units.append(chunk.unit_ids)
    return group_by_unit(
        _join(rows, np.empty((0, encoder.width), dtype=np.float32)),
        _join(valid, np.empty(0, dtype=np.bool_)),
        _join(units, np.empty(0, dtype=np.uint64)),
        max_rows_per_unit=ref.max_rows_per_unit,
        units=_units(store, ref, kept),
    )


def _units(store: DatasetStore, ref: ShardRef, keep: Keep) -> NDArray[np.uint64]:
    """Return the shard's units, (U,), also those of which no row is left to read."""
    none = np.empty(0, dtype=np.uint64)
    if ref.unit == TRANSITION:
        return none  # each row is one
    ids = (np.unique(part) for part in store.iter_unit_ids(ref.dataset, ref.unit))
    return np.unique(np.concatenate([none, *(part[keep(part)] for part in ids)]))


def _transitions(
    store: DatasetStore, ref: ShardRef, chunk_rows: int, keep: Keep
) -> Iterator[Transitions]:
    """Yield the shard's transitions, without those of each unit's first trajectories."""
    if not ref.skip_trajectories:
        yield from store.iter_transitions(
            ref.dataset, unit=ref.unit, chunk_rows=chunk_rows, keep=keep
        )
        return
    seen: Counter[int] = Counter()
    # Beyond a unit's cap no row counts; the one that a cut would mark is the first of these.
    most = None if ref.max_rows_per_unit is None else ref.max_rows_per_unit + 1
    for chunk in store.iter_trajectories(
        ref.dataset, unit=ref.unit, chunk_rows=chunk_rows, keep=keep, most_rows=most
    ):
        positions = _positions(chunk.unit_ids)
        positions += [seen[unit] for unit in chunk.unit_ids.tolist()]
        seen.update(chunk.unit_ids.tolist())
        later = chunk.select(np.flatnonzero(positions >= ref.skip_trajectories))
        yield later.transitions(ref.unit)


def _positions(units: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return how many entries of the same unit stand before each one, (N,)."""
    order, _, lengths = rows_by_unit(units, None)
    positions = np.empty(len(units), dtype=np.int64)
    positions[order] = np.arange(len(units)) - np.repeat(offsets_of(lengths)[:-1], lengths)
    return positions


def group_by_unit(
    rows: NDArray[np.float32],
    valid: NDArray[np.bool_],
    row_units: NDArray[np.uint64],
    *,
    max_rows_per_unit: int | None,
    units: NDArray[np.uint64] | None = None,
) -> EncodedShard:
    """Return rows (N, D) unit after unit, in their order, each unit's first ones.

    Args:
        rows: (N, D).
        valid: (N,).
        row_units: (N,), the unit of each row.
        max_rows_per_unit: public cap; None: there is none.
        units: that have a place whether or not they have rows; None: those that have.
    """
    null = np.setdiff1d(row_units[:0] if units is None else units, row_units)
    if len(null):
        rows = np.concatenate([rows, np.zeros((len(null), rows.shape[1]), rows.dtype)])
        valid = np.concatenate([valid, np.zeros(len(null), np.bool_)])
        row_units = np.concatenate([row_units, null])
    order, unit_ids, lengths = rows_by_unit(row_units, max_rows_per_unit)
    return EncodedShard(
        rows=rows[order], valid=valid[order], unit_ids=unit_ids, offsets=offsets_of(lengths)
    )


def load_trajectories(
    ref: ShardRef,
    *,
    max_trajectories_per_unit: int = 1,
    chunk_rows: int = CHUNK_ROWS,
    keep: Keep | None = None,
) -> Trajectories:
    """Read a shard's trajectories as a stream: memory is that of its own rows and one chunk.

    Args:
        ref: which shard; ``max_rows_per_unit`` cuts the steps of each unit: the trajectory in which
            the cap is reached stops there, marked truncated, and the unit's later ones are left
            out.
        max_trajectories_per_unit: public cap; of each unit's trajectories, the first ones are kept.
        chunk_rows: rows read at a time.
        keep: chooses units of the shard by their ids; None: all of them.

    Returns:
        the trajectories in dataset order; their ``unit_ids`` name the units.

    Raises:
        ConfigError: no such dataset, it holds independent transitions, its unit is not trajectory
            or the unit column, or a cap is not above zero.
        StorageError: it cannot be read.

    Privacy:
        Which shard a unit belongs to depends on its id alone, and its trajectories on its own rows
        alone. A unit has at most ``max_trajectories_per_unit`` trajectories, and at most
        ``ref.max_rows_per_unit`` steps. Nothing is released: the result stays in the process that
        reads it.
    """
    if max_trajectories_per_unit < 1:
        raise ConfigError(
            f"max_trajectories_per_unit must be at least 1, got {max_trajectories_per_unit}"
        )
    store = DatasetStore(ref.root)
    info = store.info(ref.dataset)
    none = no_trajectories(info.observation_space, info.action_space)
    chunks = store.iter_trajectories(
        ref.dataset,
        unit=ref.unit,
        chunk_rows=chunk_rows,
        keep=_keep(ref, keep),
        most_rows=ref.max_rows_per_unit,
    )
    caps = max_trajectories_per_unit, ref.max_rows_per_unit
    return _first(Trajectories.concatenate([none, *(_first(c, *caps) for c in chunks)]), *caps)


def _keep(ref: ShardRef, also: Keep | None) -> Keep:
    def keep(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = shard_of(ids, ref.count) == ref.index
        return kept if also is None else np.logical_and(kept, also(ids))

    return keep


def _first(trajectories: Trajectories, most: int, most_rows: int | None) -> Trajectories:
    """Return each unit's first ``most`` trajectories, cut after its first ``most_rows`` steps.

    Doing so for each chunk and then for all of them together is the same as doing so once.
    """
    order, _, counts = rows_by_unit(trajectories.unit_ids, most)
    if len(order) < len(trajectories):
        chosen = np.sort(order)
        return _first(trajectories.select(chosen), most, most_rows)
    if most_rows is None:
        return trajectories
    lengths = trajectories.lengths
    before = np.empty_like(lengths)
    sums = offsets_of(lengths[order])[:-1]
    before[order] = sums - np.repeat(sums[offsets_of(counts)[:-1]], counts)
    left = most_rows - before
    if (lengths <= left).all():
        return trajectories
    return trajectories.cut(left).select(np.flatnonzero(left > 0))


def _join(parts: list[NDArray[Scalar]], empty: NDArray[Scalar]) -> NDArray[Scalar]:
    """Concatenate ``parts`` and let go of them."""
    joined = np.concatenate([empty, *parts])
    parts.clear()
    return joined


def rows_by_unit(
    row_units: NDArray[np.uint64], cap: int | None
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the order of rows by unit, the units, and the rows of each, at most ``cap``.

    Args:
        row_units: ``(N,)``, the unit of each row.
        cap: public; a unit's further rows are left out. None: all are kept.

    Returns:
        positions of the rows that are kept, unit after unit, in their order within a unit; the
        units, rising; and how many rows of each are kept.
    """
    order = np.argsort(row_units, kind="stable")
    unit_ids, starts, lengths = np.unique(row_units[order], return_index=True, return_counts=True)
    if cap is not None:
        position = np.arange(len(order)) - np.repeat(starts, lengths)
        order, lengths = order[position < cap], np.minimum(lengths, cap)
    return order, unit_ids, lengths
