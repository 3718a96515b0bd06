"""Rows as their spaces declare them: numbers finite, categories known."""

import numpy as np

from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions


def proper_transitions(store: DatasetStore, dataset: str) -> Transitions:
    """Return a dataset's rows whose numbers are finite and whose categories are in their spaces."""
    layout = _layout(store, dataset)
    return Transitions.concatenate(
        [
            chunk.select(layout.to_rows(chunk)[1])
            for chunk in store.iter_transitions(dataset, unit="transition")
        ]
    )


def proper_trajectories(
    store: DatasetStore, dataset: str, trajectories: Trajectories
) -> Trajectories:
    """Return those of a dataset's trajectories that are not empty, and whose rows are all proper.

    Args:
        store: where the dataset lies.
        dataset: its id; its spaces are looked at.
        trajectories: that were read from it.
    """
    proper = _layout(store, dataset).to_rows(trajectories.transitions(TRAJECTORY))[1]
    number = len(trajectories)
    bad = np.bincount(np.repeat(np.arange(number), trajectories.lengths), ~proper, number)
    return trajectories.select(np.flatnonzero((bad == 0) & (trajectories.lengths > 0)))


def _layout(store: DatasetStore, dataset: str) -> RowLayout:
    info = store.info(dataset)
    return RowLayout(info.observation_space, info.action_space)
