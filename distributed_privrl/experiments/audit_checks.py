"""What can be wrong with the folder and the held-out rows of an audit; quick to import."""

from pathlib import Path

import numpy as np

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.directory import holds_something


def check_new(out: Path) -> None:
    """Check that an audit may write to ``out``.

    Raises:
        ConfigError: it is a file, or not empty.
    """
    if holds_something(out):
        raise ConfigError(f"{out} is not empty: choose another --out")


def given_held_out(held_out: str | None) -> str:
    """Return the id of the rows held out.

    Raises:
        ConfigError: none is given.
    """
    if held_out is None:
        raise ConfigError(
            "the audit of a run needs rows of the same source that the run has not seen: give"
            " --held-out ID (before a run, `privrl split` sets some apart; a simulator can collect"
            " with another seed)"
        )
    return held_out


def check_held_out(config: RunConfig, held_out: str, store: DatasetStore) -> None:
    """Check that rows held out are what a run might have seen, and has not.

    Args:
        config: of the run.
        held_out: their dataset.
        store: datasets.

    Raises:
        ConfigError: it is a dataset of the run, or shares rows or units with one; there is no such
            dataset, it does not know the run's unit, or its rows have another form.
    """
    from distributed_privrl.data.fingerprint import share_rows  # slow: not for a refusal

    data = config.data
    if held_out in (data.sensitive, *data.public):
        raise ConfigError(
            f"--held-out {held_out} is a dataset of the run: the model knows its rows"
        )
    store.check_unit(held_out, data.unit)
    mine, theirs = store.info(data.sensitive), store.info(held_out)
    for name in ("observation_space", "action_space"):
        one, other = getattr(mine, name), getattr(theirs, name)
        if type(one) is not type(other) or part_width(one) != part_width(other):
            raise ConfigError(
                f"--held-out {held_out} has {name} {other}, {data.sensitive} has {one}: take rows"
                " of the same source"
            )
    for dataset in (data.sensitive, *data.public):
        if share_rows(store, dataset, held_out):
            raise ConfigError(
                f"--held-out {held_out} holds rows of {dataset}, which the run has seen: split"
                " before the run, and run on the rest"
            )
        if _share_units(store, dataset, held_out, data.unit):
            raise ConfigError(
                f"--held-out {held_out} holds units ({data.unit}) of {dataset}, which the run has"
                " seen: hold out whole units"
            )


def _share_units(store: DatasetStore, dataset: str, held_out: str, unit: str) -> bool:
    """Say whether two datasets hold units of a column of the same name; positions name nobody."""
    if not store.info(dataset).unit_column == store.info(held_out).unit_column == unit:
        return False
    mine, theirs = (
        np.concatenate([chunk.unit_ids for chunk in store.iter_transitions(one, unit=unit)])
        for one in (dataset, held_out)
    )
    return bool(np.intersect1d(mine, theirs).size)
