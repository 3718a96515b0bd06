"""The steps of a shard's trajectories that count, in columns: what both programs' workers sum."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.shards import ShardRef, load_trajectories
from distributed_privrl.data.trajectories import Trajectories, offsets_of

TrajectorySource: TypeAlias = Callable[[], Trajectories]
"""Loads a worker's trajectories in its own process; picklable, holds no arrays."""


@dataclass(frozen=True, kw_only=True)
class StoredTrajectories:
    """The trajectories of a stored dataset's shard.

    Args:
        ref: dataset, shard index and number of shards.
        max_trajectories_per_unit: each unit's first so many.
    """

    ref: ShardRef
    max_trajectories_per_unit: int = 1

    def __call__(self) -> Trajectories:
        """Read the shard."""
        return load_trajectories(self.ref, max_trajectories_per_unit=self.max_trajectories_per_unit)


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRows:
    """Columns of N steps; raw private data.

    Args:
        trajectories: (N,) int64, which trajectory of the shard, rising.
        times: (N,) int64, time step of the row in its trajectory, from 0.
        states: (N,) int64.
        actions: (N,) int64.
        rewards: (N,) float64, clipped to the declared range and scaled to [0, 1].
        next_states: (N,) int64.
        terminated: (N,) bool.
        unit_ids: (N,) uint64.
    """

    trajectories: NDArray[np.int64]
    times: NDArray[np.int64]
    states: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    next_states: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    unit_ids: NDArray[np.uint64]


def step_rows(
    trajectories: Trajectories,
    *,
    states: int,
    actions: int,
    horizon: int,
    reward_range: tuple[float, float],
    max_trajectories_per_unit: int,
    max_rows_per_unit: int | None = None,
) -> StepRows:
    """Return the rows that count, trajectory after trajectory.

    A row counts if its trajectory is among the first ``max_trajectories_per_unit`` of its unit, it
    is among the first ``max_rows_per_unit`` of its unit, its time step is within the horizon, its
    state, action and next state exist and its reward is finite. Others leave no trace.

    Args:
        trajectories: with Discrete observations and actions.
        states: S.
        actions: A.
        horizon: H.
        reward_range: lowest and highest reward of a step.
        max_trajectories_per_unit: m.
        max_rows_per_unit: L, of all its trajectories together; None: no cap.

    Raises:
        ConfigError: the spaces, which are public, are no Discrete ones.

    Privacy:
        Which rows of a unit count depends on that unit alone; at each time step at most m do, and
        at most L in all. Nothing is released.
    """
    if trajectories.observations.ndim != 1 or trajectories.actions.ndim != 1:
        raise ConfigError(
            "observations and actions must be Discrete, (N,) integers, got"
            f" {trajectories.observations.shape} and {trajectories.actions.shape}"
        )
    rows, lengths = trajectories.transitions("trajectory"), trajectories.lengths
    times = np.arange(len(rows)) - np.repeat(trajectories.offsets[:-1], lengths)
    steps = _steps_that_count(trajectories, max_trajectories_per_unit, max_rows_per_unit)
    counts = (times < np.repeat(np.minimum(steps, horizon), lengths)) & np.isfinite(rows.rewards)
    for values, size in (
        (rows.observations, states),
        (rows.actions, actions),
        (rows.next_observations, states),
    ):
        counts &= (values >= 0) & (values < size)
    kept, low = rows.select(counts), reward_range[0]
    # Clipped after scaling: rounding must not lead out of [0, 1].
    scaled = (kept.rewards.astype(np.float64) - low) / (reward_range[1] - low)
    return StepRows(
        trajectories=np.repeat(np.arange(len(trajectories)), lengths)[counts],
        times=times[counts],
        states=kept.observations,
        actions=kept.actions,
        rewards=np.clip(scaled, 0, 1),
        next_states=kept.next_observations,
        terminated=kept.terminated,
        unit_ids=kept.unit_ids,
    )


def first_visits(rows: StepRows, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions, (M,), of each trajectory's first row of each pair.

    The successor of a first visit has the same distribution as that of any visit, because when a
    pair is first visited is known before its successor is drawn: nothing is biased.

    Args:
        rows: of a shard.
        pairs: (N,), what counts as one pair.

    Privacy:
        Which rows of a trajectory are taken depends on that trajectory alone, and no pair is taken
        twice from it. Nothing is released.
    """
    keys = rows.trajectories * (pairs.max(initial=0) + 1) + pairs
    return np.sort(np.unique(keys, return_index=True)[1])


def _steps_that_count(
    trajectories: Trajectories, most: int, most_rows: int | None
) -> NDArray[np.int64]:
    """Return how many steps of each trajectory (K,) are within its unit's caps; at least none."""
    order = np.argsort(trajectories.unit_ids, kind="stable")
    _, starts, sizes = np.unique(
        trajectories.unit_ids[order], return_index=True, return_counts=True
    )
    lengths = trajectories.lengths[order]
    left = lengths.copy()
    if most_rows is not None:
        before = offsets_of(lengths)[:-1]
        left = most_rows - (before - np.repeat(before[starts], sizes))
    left[np.arange(len(order)) - np.repeat(starts, sizes) >= most] = 0
    steps = np.empty(len(order), np.int64)
    steps[order] = np.maximum(left, 0)
    return steps
