"""Setting some of a dataset's units apart, before a run, for audits."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.corpus_rows import documents_of_side
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.metadata import (
    NUMBERED_KEY,
    PUBLIC_KEY,
    SIDES_KEY,
    SPLIT_KEY,
    DatasetInfo,
)
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Trajectories, Transitions


def split(
    store: DatasetStore, dataset: str, *, held_out_share: float, seed: int
) -> tuple[DatasetInfo, DatasetInfo]:
    """Write two datasets that share no unit: one to train on, one held out.

    ``name-v0`` becomes ``name-training-v0`` and ``name-held-out-v0``. The unit is the dataset's
    unit column, else the trajectory, else (independent transitions) the row; all of a unit's rows
    go to one side, of a corpus with the documents that they stand for. Which one depends on a hash
    of its id and the seed and on nothing else, so the share held out is met on average alone.

    Args:
        store: where the dataset lies.
        dataset: its id.
        held_out_share: probability, in (0, 1), with which each unit is held out.
        seed: public seed.

    Returns:
        what is known of both, the training set first.

    Raises:
        ConfigError: the share is out of range or leaves a side empty, or an id is taken.
        StorageError: the disk is full.

    Privacy:
        Nothing is released: both sides are as sensitive as the dataset, and say so in their
        metadata (``split_of``) unless it was declared public: such a side is no public dataset, and
        of a dataset and its sides one alone gets a budget. The whole, and each side, remember the
        sides (``split_into``), so that one that was deleted still counts. Without one unit of a
        column the sides lose that unit and are else the same. Numbered units would be renumbered
        and change sides: ``split_by_position`` says so, and runs under ``add_or_remove`` refuse it.
    """
    if not 0 < held_out_share < 1:
        raise ConfigError(f"held_out_share must lie in (0, 1), got {held_out_share!r}")
    info = store.info(dataset)
    name, _, version = dataset.rpartition("-v")
    ids = [f"{name}-{side}-v{version}" for side in ("training", "held-out")]
    if taken := set(ids) & set(store.ids()):
        raise ConfigError(
            f"{' and '.join(sorted(taken))} {'exists' if len(taken) == 1 else 'exist'} already: go"
            " on with what is there, or, only if no run read it and it has no budget,"
            f" {' and '.join(f'`privrl remove {one}`' for one in sorted(taken))}"
        )
    unit = unit_of(info)
    parts = [np.unique(chunk.unit_ids) for chunk in store.iter_transitions(dataset, unit=unit)]
    units = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    chosen = held_out(units, share=held_out_share, seed=seed)
    if chosen.all() or not chosen.any():
        raise ConfigError(
            f"held_out_share={held_out_share:g} of the units ({unit}) leaves a side empty: choose"
            " another share or seed"
        )
    metadata = _marks(info, ids)
    if SPLIT_KEY in metadata:
        _remember(store, info, ids)
    for target, side in zip(ids, (units[~chosen], units[chosen]), strict=True):
        _write(store, info, target, unit, side, metadata)
    return store.info(ids[0]), store.info(ids[1])


def unit_of(info: DatasetInfo) -> str:
    """Return what a dataset is split by: its unit column, else its trajectories or rows."""
    return info.unit_column or (TRAJECTORY if info.kind == "trajectories" else TRANSITION)


def held_out(units: NDArray[np.uint64], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which units (N,) are held out: each by the hash of its own id under the seed.

    Args:
        units: (N,) ids, of which the same one may stand there often.
        share: probability, in (0, 1), with which each is held out.
        seed: public seed.
    """
    key = mix(np.array([seed % 2**64], dtype=np.uint64))[0]
    held: NDArray[np.bool_] = mix(units ^ key) < np.uint64(share * 2.0**64)
    return held


def _marks(info: DatasetInfo, sides: list[str]) -> dict[str, Any]:
    """Return the metadata of both sides: that they are public, or what they are parts of."""
    if info.declared_public and not info.split_of:
        return {PUBLIC_KEY: True}
    numbered = info.split_by_position or info.unit_column is None
    return {
        SPLIT_KEY: [*info.split_of, info.id],
        SIDES_KEY: sides,
        **({NUMBERED_KEY: True} if numbered else {}),
    }


def _remember(store: DatasetStore, info: DatasetInfo, sides: list[str]) -> None:
    """Note the sides in the metadata of all that they are parts of, as far as it is there."""
    there = set(store.ids())
    for whole in (info.id, *info.split_of):
        if whole in there:
            known = store.info(whole).split_into
            store.update_metadata(whole, {SIDES_KEY: list(dict.fromkeys((*known, *sides)))})


def _write(
    store: DatasetStore,
    info: DatasetInfo,
    target: str,
    unit: str,
    units: NDArray[np.uint64],
    metadata: Mapping[str, Any],
) -> None:
    def keep(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.isin(ids, units)

    if info.kind == "trajectories":
        store.write_trajectories(
            target,
            _filled_trajectories(store.iter_trajectories(info.id, unit=unit, keep=keep)),
            observation_space=info.observation_space,
            action_space=info.action_space,
            layout="packed" if info.layout == "packed" else "episodes",
            environment=info.environment,
            unit_column=info.unit_column,
            declared=info.declared,
            metadata=metadata,
        )
        return
    store.write_transitions(
        target,
        _filled_transitions(store.iter_transitions(info.id, unit=unit, keep=keep)),
        layout=info.layout,
        observation_space=info.observation_space,
        action_space=info.action_space,
        environment=info.environment,
        unit_column=info.unit_column,
        declared=info.declared,
        has_successors=info.has_successors,
        metadata=metadata,
        complete=documents_of_side(store, info.id, keep),
    )


def _filled_trajectories(chunks: Iterator[Trajectories]) -> Iterator[Trajectories]:
    return (chunk for chunk in chunks if len(chunk))


def _filled_transitions(chunks: Iterator[Transitions]) -> Iterator[Transitions]:
    return (chunk for chunk in chunks if len(chunk))
