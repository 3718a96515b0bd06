"""The same starts for all who are judged in a maze, and what a policy earns from each, exactly.

The simulator is deterministic, and so are the policies, so that a return is a fact of policy and
start. What differs between two policies is never the luck of their starts.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.collection.planner import WaypointPlanner
from distributed_privrl.collection.runs import Policy, roll
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.environments.point_mass import PointMass

STARTS = 200
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a policy does from all starts.

    Args:
        earned: mean undiscounted return within the time limit.
        normalised: 0 uniform forces, 100 the planner, from the same starts.
        reach: share of starts outside the goal from which it is reached.
        hold: mean share of the steps after reaching it that are spent in the goal; None: never
            reached.
    """

    earned: float
    normalised: float
    reach: float
    hold: float | None


def stratified_starts(maze: Maze, count: int = STARTS) -> NDArray[np.float64]:
    """Return starts ``(count, 4)``: free cells take turns, offsets and speeds are the maze's own.

    Args:
        maze: the maze.
        count: number of starts.
    """
    rng = Streams(_SEED).numpy(f"protocol/starts/{maze.name}")
    cells = maze.free_cells
    rows = []
    for index in range(count):
        centre = np.array(maze.centre(*cells[index % len(cells)]))
        offset, velocity = rng.uniform(-0.1, 0.1, 2), 0.1 * rng.standard_normal(2)
        rows.append(np.concatenate([centre + offset, velocity]))
    return np.array(rows, dtype=np.float32).astype(np.float64)


def rewards_from(policy: Policy, maze: Maze, starts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the reward of each step from each start, ``(N, T)``, T the time limit.

    Args:
        policy: state to two forces.
        maze: where it is driven.
        starts: ``(N, 4)``.
    """
    point_mass = PointMass(maze.name)
    runs = [roll(point_mass, policy, start=start, steps=maze.time_limit)[0][1:] for start in starts]
    return np.stack([maze.rewards(run, dense=False) for run in runs])


def score(policy: Policy, maze: Maze, starts: NDArray[np.float64] | None = None) -> Score:
    """Drive a policy from all starts and return its score.

    Args:
        policy: state to two forces; deterministic.
        maze: where it is driven.
        starts: ``(N, 4)``; None: `stratified_starts`.
    """
    starts = stratified_starts(maze) if starts is None else starts
    rewards = rewards_from(policy, maze, starts)
    low, high = references(maze)
    earned = float(rewards.sum(axis=1).mean())
    outside = np.asarray(maze.rewards(starts, dense=False) == 0)
    reached = np.asarray(rewards.any(axis=1))
    return Score(
        earned=earned,
        normalised=100 * (earned - low) / (high - low),
        reach=float(reached[outside].mean()),
        hold=_hold(rewards[reached]) if reached.any() else None,
    )


def _hold(rewards: NDArray[np.float64]) -> float:
    """Return the mean share of rewarded steps from the first one on, of runs ``(N, T)``."""
    first = rewards.argmax(axis=1)
    return float(np.mean(rewards.sum(axis=1) / (rewards.shape[1] - first)))


@functools.cache
def references(maze: Maze) -> tuple[float, float]:
    """Return the mean returns of uniform forces and of the planner from `stratified_starts`."""
    rng = Streams(_SEED).numpy(f"protocol/forces/{maze.name}")
    starts = stratified_starts(maze)
    low = rewards_from(lambda state: rng.uniform(-1.0, 1.0, 2).tolist(), maze, starts)
    high = [rewards_from(_planner(maze), maze, start[None]) for start in starts]  # it remembers
    return float(low.sum(axis=1).mean()), float(np.concatenate(high).sum(axis=1).mean())


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean of scores; hold over those that reached the goal."""
    held = [one.hold for one in scores if one.hold is not None]
    return Score(
        earned=float(np.mean([one.earned for one in scores])),
        normalised=float(np.mean([one.normalised for one in scores])),
        reach=float(np.mean([one.reach for one in scores])),
        hold=float(np.mean(held)) if held else None,
    )


def _planner(maze: Maze) -> Policy:
    planner = WaypointPlanner(maze, maze.goal_cell)
    return lambda state: planner.action(*state)
