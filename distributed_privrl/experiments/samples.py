"""Random parts of stored datasets, for what is shown and compared: rows, units, trajectories."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.core.sensitive import Purpose, Sensitive
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.labels import shown_columns
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import Rows, named_rows
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import (
    TRAJECTORY,
    TRANSITION,
    Trajectories,
    Transitions,
    no_trajectories,
)

COMPARED_ROWS = 50_000
SHOWN_TRAJECTORIES = 500
END = "end"
_FEWEST_UNITS = 32
"""Of a sample by unit: below it, larger parts are taken."""


def sampled_rows(store: DatasetStore, dataset: str, limit: int = COMPARED_ROWS) -> NDArray[Any]:
    """Return up to ``limit`` rows ``(N, D)`` in raw units, drawn evenly while streaming.

    Rows that are not finite are left out.
    """
    layout = layout_of(store, dataset)
    generator = Streams(0).numpy(f"report/{dataset}")
    share = _share(store.info(dataset).total_steps, limit)
    kept = []
    for chunk in store.iter_transitions(dataset, unit="transition"):
        rows, valid = layout.to_rows(chunk)
        chosen = generator.random(len(rows)) < share
        kept.append(rows[chosen & valid])
    return np.concatenate(kept)


def shown_rows(store: DatasetStore, dataset: str) -> NDArray[Any]:
    """Return the columns of `sampled_rows` that a report names: `shown_columns`."""
    return sampled_rows(store, dataset)[:, shown_columns(store.info(dataset))]


def layout_of(store: DatasetStore, dataset: str) -> RowLayout:
    """Return which column of a dataset's rows holds what."""
    info = store.info(dataset)
    return RowLayout(info.observation_space, info.action_space)


def sampled_units(store: DatasetStore, dataset: str, limit: int = COMPARED_ROWS) -> Rows:
    """Return rows of as many units as can be, under the names of their columns.

    A unit is a value of the dataset's unit column, else a trajectory, else a row. Independent rows
    are random ones of all units. Those of trajectories are all rows of random units.

    Args:
        store: datasets.
        dataset: id of one.
        limit: about how many rows; more where few units have many rows each.
    """
    info = store.info(dataset)
    alone = TRANSITION if info.kind == "transitions" else TRAJECTORY
    unit = info.unit_column or alone
    share = _share(info.total_steps, limit)
    while True:
        if info.kind == "transitions":
            transitions = _thinned(store, dataset, unit, share)
            ends = np.ones(len(transitions), dtype=bool)
        else:
            keep = _random_part(f"units/{dataset}", share)
            transitions, ends = _whole_units(store, dataset, unit, keep)
        if share >= 1 or len(np.unique(transitions.unit_ids)) >= _FEWEST_UNITS:
            return _with_end(named_rows(transitions, ends, info), info)
        share *= 4


def sampled_trajectories(
    store: DatasetStore, dataset: str, limit: int = SHOWN_TRAJECTORIES
) -> Trajectories:
    """Return about ``limit`` random trajectories of a dataset, or all, in their order."""
    info = store.info(dataset)
    keep = _random_part(f"trajectories/{dataset}", _share(info.total_trajectories, limit))
    chunks = store.iter_trajectories(dataset, unit=TRAJECTORY, keep=keep)
    none = no_trajectories(info.observation_space, info.action_space)
    return Trajectories.concatenate([none, *chunks])


def _with_end(rows: Rows, info: DatasetInfo) -> Rows:
    """Return rows whose end is called `END` where their table has no column that says it."""
    named = info.declared is None or info.declared.columns.termination is not None
    if named or rows.end is None or END in rows.frame:
        return rows
    return replace(rows, frame=rows.frame.rename(columns={rows.end: END}), end=END)


def _share(total: Sensitive[int], limit: int) -> float:
    return limit / max(total.open(Purpose.COMPUTING), 1)


def _random_part(name: str, share: float) -> Keep | None:
    """Return what keeps a share of the units, each by a public hash of its id; None: all."""
    if share >= 1:
        return None
    key, limit = np.uint64(Streams(0).integer(f"report/{name}")), np.uint64(share * 2**64)
    return lambda units: mix(mix(units) ^ key) < limit


def _thinned(store: DatasetStore, dataset: str, unit: str, share: float) -> Transitions:
    """Return a share of a dataset's independent rows, drawn evenly while streaming."""
    info, generator = store.info(dataset), Streams(0).numpy(f"report/units/{dataset}")
    kept = [no_trajectories(info.observation_space, info.action_space).transitions(unit)]
    for chunk in store.iter_transitions(dataset, unit=unit):
        kept.append(chunk.select(generator.random(len(chunk)) < share))
    return Transitions.concatenate(kept)


def _whole_units(
    store: DatasetStore, dataset: str, unit: str, keep: Keep | None
) -> tuple[Transitions, NDArray[np.bool_]]:
    """Return trajectories of whole units, and which rows are the last of their trajectory."""
    info = store.info(dataset)
    none = no_trajectories(info.observation_space, info.action_space).transitions(unit)
    chunks = list(store.iter_trajectories(dataset, unit=unit, keep=keep))
    ends = [np.zeros(len(chunk.rewards), dtype=bool) for chunk in chunks]
    for chunk, last in zip(chunks, ends, strict=True):
        last[chunk.offsets[1:][chunk.lengths > 0] - 1] = True
    rows = [none, *(chunk.transitions(unit) for chunk in chunks)]
    return Transitions.concatenate(rows), np.concatenate([np.zeros(0, dtype=bool), *ends])
