"""Real episodes in two halves, by unit: one trains agents, the other judges every policy.

An agent that was trained on the very episodes that judge it would look better than it is.
"""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.proper import proper_trajectories
from distributed_privrl.data.splitting import held_out
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions
from distributed_privrl.evaluation.off_policy.judge import Judge

_SEED = 0x6A75646765
"""Not the seed of a `privrl split`, whose sides would fall into one half."""


def judge_of(store: DatasetStore, dataset: str) -> Judge:
    """Return the judge that one half of a dataset's units makes.

    Args:
        store: where the dataset lies.
        dataset: id of real episodes.

    Raises:
        ConfigError: actions are not Discrete, or the half has no episode.

    Privacy: see `Judge`.
    """
    info = store.info(dataset)
    return Judge(
        _half(store, dataset, judges=True),
        observation_space=info.observation_space,
        action_space=info.action_space,
    )


def training_half(store: DatasetStore, dataset: str) -> Transitions:
    """Return the rows of the units that do not judge.

    Args:
        store: where the dataset lies.
        dataset: id of real episodes.

    Raises:
        ConfigError: there are none.
    """
    return _half(store, dataset, judges=False).transitions(TRAJECTORY)


def _half(store: DatasetStore, dataset: str, *, judges: bool) -> Trajectories:
    """Return the proper episodes of one half: numbers finite, categories inside their spaces."""
    unit = store.info(dataset).unit_column or TRAJECTORY

    def keep(units: NDArray[np.uint64]) -> NDArray[np.bool_]:
        chosen = held_out(units, share=0.5, seed=_SEED)
        return chosen if judges else ~chosen

    found = [
        proper_trajectories(store, dataset, chunk)
        for chunk in store.iter_trajectories(dataset, unit=unit, keep=keep)
    ]
    if not any(len(chunk) for chunk in found):
        raise ConfigError(f"{dataset}: one half of the units has no proper episode: give more")
    return Trajectories.concatenate(found)
