"""Setting some of a dataset's units apart, before a run, for audits."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.metadata import PUBLIC_KEY, DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Trajectories, Transitions


def split(
    store: DatasetStore, dataset: str, *, held_out_share: float, seed: int
) -> tuple[DatasetInfo, DatasetInfo]:
    """Write two datasets that share no unit: one to train on, one held out.

    ``name-v0`` becomes ``name-training-v0`` and ``name-held-out-v0``. The unit is the dataset's
    unit column, else the trajectory, else (independent transitions) the row; all of a unit's rows
    go to one side. Which one depends on a hash of unit id and seed.

    Args:
        store: where the dataset lies.
        dataset: its id.
        held_out_share: share of the units to hold out, in (0, 1).
        seed: public seed.

    Returns:
        what is known of both, the training set first.

    Raises:
        ConfigError: the share is out of range or leaves a side empty, or an id is taken.
        StorageError: the disk is full.

    Privacy:
        Nothing is released: both sides are as sensitive as the dataset. Each is another dataset to
        the ledger; the dataset they come from must not be given a budget besides.
    """
    if not 0 < held_out_share < 1:
        raise ConfigError(f"held_out_share must lie in (0, 1), got {held_out_share!r}")
    info = store.info(dataset)
    name, _, version = dataset.rpartition("-v")
    ids = [f"{name}-{side}-v{version}" for side in ("training", "held-out")]
    if taken := set(ids) & set(store.ids()):
        raise ConfigError(f"{', '.join(sorted(taken))} exists: remove it, or split another version")
    unit = info.unit_column or (TRAJECTORY if info.kind == "trajectories" else TRANSITION)
    parts = [np.unique(chunk.unit_ids) for chunk in store.iter_transitions(dataset, unit=unit)]
    units = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
    count = round(held_out_share * len(units))
    if not 0 < count < len(units):
        raise ConfigError(
            f"held_out_share={held_out_share:g} of {len(units)} units ({unit}) leaves a side empty:"
            " choose another share"
        )
    key = mix(np.array([seed % 2**64], dtype=np.uint64))[0]
    held_out = np.sort(units[np.argsort(mix(units ^ key), kind="stable")[:count]])
    for target, chosen in zip(ids, (np.setdiff1d(units, held_out), held_out), strict=True):
        _write(store, info, target, unit, chosen)
    return store.info(ids[0]), store.info(ids[1])


def _write(
    store: DatasetStore, info: DatasetInfo, target: str, unit: str, units: NDArray[np.uint64]
) -> None:
    def keep(ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        return np.isin(ids, units)

    declared = {PUBLIC_KEY: True} if info.metadata.get(PUBLIC_KEY) is True else {}
    if info.kind == "trajectories":
        store.write_trajectories(
            target,
            _filled_trajectories(store.iter_trajectories(info.id, unit=unit, keep=keep)),
            observation_space=info.observation_space,
            action_space=info.action_space,
            layout="packed" if info.layout == "packed" else "episodes",
            environment=info.environment,
            unit_column=info.unit_column,
            metadata=declared,
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
        metadata=declared,
    )


def _filled_trajectories(chunks: Iterator[Trajectories]) -> Iterator[Trajectories]:
    return (chunk for chunk in chunks if len(chunk))


def _filled_transitions(chunks: Iterator[Transitions]) -> Iterator[Transitions]:
    return (chunk for chunk in chunks if len(chunk))
