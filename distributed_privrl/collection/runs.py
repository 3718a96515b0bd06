"""Runs of policies in maze2d, stepping the physics without an environment around it."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.collection.planner import WaypointPlanner
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.environments.point_mass import PointMass, State

CHUNK_STEPS = 50_000
"""Steps that are held in memory at a time, rounded up to a whole run."""

_NOISE_BLOCK = 256

Policy = Callable[[State], list[float]]


def roll(
    point_mass: PointMass, policy: Policy, *, start: NDArray[np.float64], steps: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run a policy from a start.

    Args:
        point_mass: stepped in place.
        policy: state to two forces; they are clipped to [-1, 1].
        start: ``(4,)`` first state.
        steps: number of steps T.

    Returns:
        observations ``(T + 1, 4)`` and actions ``(T, 2)``, as they were applied.
    """
    observations = np.empty((steps + 1, 4), dtype=np.float32)
    actions = np.empty((steps, 2), dtype=np.float32)
    point_mass.reset(start.tolist())
    state = point_mass.state
    observations[0] = state
    for step in range(steps):
        force_x, force_y = policy(state)
        actions[step] = min(max(force_x, -1.0), 1.0), min(max(force_y, -1.0), 1.0)
        point_mass.step(actions[step].tolist())
        observations[step + 1] = state = point_mass.state
    return observations, actions


def planner_runs(
    maze: Maze, *, dense: bool, steps: int, steps_per_run: int, noise: float, streams: Streams
) -> Iterator[Trajectories]:
    """Yield runs of the planner in chunks; run i depends on the seed and i alone.

    A shorter run is the beginning of a longer one. Each run goes on to a new random goal whenever
    it reaches one; the reward is for the maze's own goal. So nothing terminates, and each run is
    truncated at its end. Units are runs, numbered.

    Args:
        maze: the maze.
        dense: the reward.
        steps: steps in total; the last run may be shorter than the others.
        steps_per_run: steps of the other runs.
        noise: standard deviation of the noise on each force, before it is clipped to [-1, 1].
        streams: public randomness, one stream a run.
    """
    runs = -(-steps // steps_per_run)
    runs_per_chunk = -(-CHUNK_STEPS // steps_per_run)
    point_mass = PointMass(maze.name)
    for first in range(0, runs, runs_per_chunk):
        numbers = range(first, min(first + runs_per_chunk, runs))
        parts = [
            _run(
                point_mass,
                maze,
                steps=min(steps_per_run, steps - number * steps_per_run),
                noise=noise,
                rng=streams.numpy(f"run/{number}"),
            )
            for number in numbers
        ]
        yield _as_trajectories(parts, numbers, maze=maze, dense=dense)


def _run(
    point_mass: PointMass, maze: Maze, *, steps: int, noise: float, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Run to random goals, a new one as soon as one is reached."""
    cells = maze.free_cells
    start = maze.draw_start(rng)
    kicks = _normal_pairs(rng)
    planner = WaypointPlanner(maze, cells[rng.integers(len(cells))], rng=rng)

    def policy(state: State) -> list[float]:
        force_x, force_y = planner.action(*state)
        while planner.reached:
            planner.set_goal(cells[rng.integers(len(cells))])
            force_x, force_y = planner.action(*state)
        kick_x, kick_y = next(kicks)
        return [force_x + noise * kick_x, force_y + noise * kick_y]

    return roll(point_mass, policy, start=start, steps=steps)


def _normal_pairs(rng: np.random.Generator) -> Iterator[list[float]]:
    """Yield pairs of standard normal numbers, drawn in blocks as they are needed."""
    while True:
        yield from rng.standard_normal((_NOISE_BLOCK, 2)).tolist()


def _as_trajectories(
    parts: list[tuple[NDArray[np.float32], NDArray[np.float32]]],
    numbers: range,
    *,
    maze: Maze,
    dense: bool,
) -> Trajectories:
    offsets = offsets_of([len(actions) for _, actions in parts])
    truncated = np.zeros(offsets[-1], dtype=bool)
    truncated[offsets[1:] - 1] = True
    rewards = [maze.rewards(observations[1:], dense=dense) for observations, _ in parts]
    return Trajectories(
        observations=np.concatenate([observations for observations, _ in parts]),
        actions=np.concatenate([actions for _, actions in parts]),
        rewards=np.concatenate(rewards).astype(np.float32),
        terminated=np.zeros(offsets[-1], dtype=bool),
        truncated=truncated,
        offsets=offsets,
        unit_ids=np.array(numbers, dtype=np.uint64),
    )
