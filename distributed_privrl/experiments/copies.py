"""Datasets of a store that a rehearsal or a trial of a sweep has for itself."""

import os
import shutil
from typing import Any

import numpy as np

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.spaces import Space, same_form
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION


def copy_dataset(store: DatasetStore, dataset: str, own: DatasetStore) -> None:
    """Put a dataset into another store, by links where the disk is the same.

    Stores replace files and never write into them, so that neither sees what the other does.

    Args:
        store: that has it.
        dataset: its id.
        own: where it goes.

    Raises:
        ConfigError: there is no such dataset.
        StorageError: it cannot be written.
    """
    folder = store.folder(dataset)
    with storage_errors(f"copy {dataset}"):
        shutil.copytree(folder, own.root / dataset, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without links
        shutil.copy2(source, target)


def copy_units(
    store: DatasetStore,
    rows: str,
    own: DatasetStore,
    dataset: str,
    *,
    data: DataConfig,
    spaces: tuple[Space, Space],
    units: int | None,
) -> None:
    """Write the first units of a public dataset under the id of a sensitive one.

    Args:
        store: that has the public rows.
        rows: their id.
        own: where they go.
        dataset: their id there.
        data: of the run that will read them.
        spaces: of its observations and actions.
        units: how many; None: all.

    Raises:
        UnsafeError: ``rows`` was not declared public.
        ConfigError: it has other columns, no such unit, or fewer units.
    """
    info = store.info(rows)
    if not info.declared_public:
        raise UnsafeError(
            f"{rows} was not declared public, and what stands in for a sensitive dataset is looked"
            " at without noise: import public rows with public: true (privrl collect --public)"
        )
    observations, actions = spaces
    for name, expected in (("observation_space", observations), ("action_space", actions)):
        one = getattr(info, name)
        if not same_form(one, expected):
            raise ConfigError(f"{rows} has {name} {one}, the run's is {expected}")
    store.check_unit(rows, data.unit)
    keep = None if units is None else _first_units(store, rows, data.unit, units)
    settings: dict[str, Any] = {
        "observation_space": observations,
        "action_space": actions,
        "environment": data.environment,
        "unit_column": info.unit_column if data.unit == info.unit_column else None,
        "declared": info.declared,
    }

    if info.kind == "trajectories" and data.unit != TRANSITION:
        chunks = store.iter_trajectories(rows, unit=data.unit, keep=keep)
        own.write_trajectories(dataset, chunks, layout="packed", **settings)
        return
    own.write_transitions(
        dataset,
        store.iter_transitions(rows, unit=data.unit, keep=keep),
        layout="transitions",
        has_successors=info.has_successors,
        **settings,
    )


def _first_units(store: DatasetStore, rows: str, unit: str, units: int) -> Keep:
    """Return what keeps the rows of the first units.

    Raises:
        ConfigError: there are fewer.
    """
    chosen: dict[int, None] = {}
    for chunk in store.iter_transitions(rows, unit=unit):
        for one in np.unique(chunk.unit_ids).tolist():
            if len(chosen) < units:
                chosen[one] = None
    if len(chosen) < units:
        raise ConfigError(
            f"{rows} has {len(chosen)} units, the configuration says {units}: give more rows, or"
            f" take fewer with -o data.units={len(chosen)}"
        )
    kept = np.array(list(chosen), np.uint64)
    return lambda ids: np.isin(ids, kept)
