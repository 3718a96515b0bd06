"""What a person keeps: numbers of an observation that stay for a whole trajectory."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distributed_privrl.data.trajectories import Trajectories, Transitions


def kept_in_rows(rows: Transitions, lasting: Sequence[int]) -> Transitions:
    """Return rows whose next observations have the lasting numbers of the observations.

    Args:
        rows: N of them, of observations ``(N, O)``.
        lasting: places of numbers.
    """
    if not lasting:
        return rows
    following, places = rows.next_observations.copy(), list(lasting)
    following[:, places] = rows.observations[:, places]
    return replace(rows, next_observations=following)


def kept_in_trajectories(trajectories: Trajectories, lasting: Sequence[int]) -> Trajectories:
    """Return trajectories all of whose observations have the lasting numbers of the first one.

    Args:
        trajectories: K of them, of observations ``(.., O)``.
        lasting: places of numbers.
    """
    if not lasting:
        return trajectories
    observations, places = trajectories.observations.copy(), list(lasting)
    lengths = trajectories.lengths + 1
    first = trajectories.offsets[:-1] + np.arange(len(trajectories))
    observations[:, places] = np.repeat(observations[first][:, places], lengths, axis=0)
    return replace(trajectories, observations=observations)
