"""Measures the reference returns that ``distributed_privrl.environments.references`` lists."""

import numpy as np

from distributed_privrl.collection.planner import WaypointPlanner
from distributed_privrl.collection.runs import Policy, roll
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import MAZES, Maze, environment_id
from distributed_privrl.environments.point_mass import PointMass
from distributed_privrl.environments.references import ReferenceReturns


def measure_reference_returns(
    maze: str, *, episodes: int, streams: Streams
) -> dict[str, ReferenceReturns]:
    """Run a random policy and the planner within the time limit.

    Args:
        maze: name of the maze.
        episodes: episodes of each policy.
        streams: public randomness, one stream an episode and policy.

    Returns:
        environment id (sparse and dense) to mean undiscounted returns.
    """
    layout = MAZES[maze]
    point_mass = PointMass(maze)
    means = {
        kind: np.mean(
            [
                _returns(point_mass, layout, kind, streams.numpy(f"{maze}/{kind}/{episode}"))
                for episode in range(episodes)
            ],
            axis=0,
        ).tolist()
        for kind in ("random", "planner")
    }
    return {
        environment_id(maze, dense=dense): ReferenceReturns(
            random=means["random"][dense], planner=means["planner"][dense], episodes=episodes
        )
        for dense in (False, True)
    }


def _returns(
    point_mass: PointMass, maze: Maze, kind: str, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the sparse and the dense return of one episode."""
    start = maze.draw_start(rng)
    policy = _random_policy(maze, rng) if kind == "random" else _planner_policy(maze)
    observations, _ = roll(point_mass, policy, start=start, steps=maze.time_limit)
    sparse, dense = (maze.rewards(observations[1:], dense=dense).sum() for dense in (False, True))
    return float(sparse), float(dense)


def _random_policy(maze: Maze, rng: np.random.Generator) -> Policy:
    forces = iter(rng.uniform(-1.0, 1.0, size=(maze.time_limit, 2)).tolist())
    return lambda state: next(forces)


def _planner_policy(maze: Maze) -> Policy:
    planner = WaypointPlanner(maze, maze.goal_cell)
    return lambda state: planner.action(*state)
