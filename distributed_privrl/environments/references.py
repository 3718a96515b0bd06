"""What a random policy and a planner earn in each environment, to normalise returns by.

The normalised score of a return R is 100 (R - random) / (planner - random), as in D4RL. The numbers
are those of ``benchmarks.maze_references.measure_reference_returns``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from distributed_privrl.environments.mazes import find_maze

EPISODES = 100
"""Episodes behind each mean return below."""

SEED = 0
"""Public seed of those episodes."""


@dataclass(frozen=True, kw_only=True)
class ReferenceReturns:
    """Mean undiscounted returns of two policies within the time limit.

    Args:
        random: uniform actions.
        planner: the shortest way to the goal, then staying there.
        episodes: episodes behind each mean.
    """

    random: float
    planner: float
    episodes: int = EPISODES


REFERENCE_RETURNS: Mapping[str, ReferenceReturns] = {
    "privrl/Maze2D-open-v0": ReferenceReturns(random=7.22, planner=105.32),
    "privrl/Maze2D-open-dense-v0": ReferenceReturns(random=39.82, planner=116.84),
    "privrl/Maze2D-umaze-v0": ReferenceReturns(random=49.98, planner=228.61),
    "privrl/Maze2D-umaze-dense-v0": ReferenceReturns(random=79.46, planner=239.29),
    "privrl/Maze2D-medium-v0": ReferenceReturns(random=15.39, planner=431.93),
    "privrl/Maze2D-medium-dense-v0": ReferenceReturns(random=41.08, planner=446.25),
    "privrl/Maze2D-large-v0": ReferenceReturns(random=6.88, planner=559.86),
    "privrl/Maze2D-large-dense-v0": ReferenceReturns(random=30.86, planner=580.60),
    "privrl/Maze2D-eval-umaze-v0": ReferenceReturns(random=20.31, planner=227.39),
    "privrl/Maze2D-eval-umaze-dense-v0": ReferenceReturns(random=53.81, planner=237.98),
    "privrl/Maze2D-eval-medium-v0": ReferenceReturns(random=20.91, planner=429.72),
    "privrl/Maze2D-eval-medium-dense-v0": ReferenceReturns(random=43.62, planner=441.36),
    "privrl/Maze2D-eval-large-v0": ReferenceReturns(random=11.10, planner=557.18),
    "privrl/Maze2D-eval-large-dense-v0": ReferenceReturns(random=54.99, planner=578.26),
}


def reference_returns(environment: str) -> ReferenceReturns:
    """Return the reference returns of a maze.

    Args:
        environment: Gymnasium id, e.g. ``privrl/Maze2D-umaze-v0``.

    Raises:
        ConfigError: no such maze.
    """
    find_maze(environment)
    return REFERENCE_RETURNS[environment]
