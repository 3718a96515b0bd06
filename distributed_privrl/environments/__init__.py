"""Gymnasium environments; importing this folder registers them under ``privrl/``."""

import gymnasium

from distributed_privrl.environments.cartpole import CARTPOLES
from distributed_privrl.environments.cartpole import HORIZON as CARTPOLE_HORIZON
from distributed_privrl.environments.hiv import HIV
from distributed_privrl.environments.hiv import HORIZON as HIV_HORIZON
from distributed_privrl.environments.mazes import (
    ENVIRONMENTS,
    MazeLayout,
    environment_id,
    maze_layout,
)
from distributed_privrl.environments.problems import HORIZON, PROBLEMS, tabular_problem
from distributed_privrl.environments.random_mazes import (
    RANDOM_MAZES,
    TIME_LIMIT,
    random_maze_id,
)
from distributed_privrl.environments.references import ReferenceReturns, reference_returns

__all__ = [
    "MazeLayout",
    "ReferenceReturns",
    "environment_id",
    "maze_layout",
    "reference_returns",
    "register",
    "tabular_problem",
]


def register() -> None:
    """Make the environments known to ``gymnasium.make``; a second call changes nothing.

    Nothing of MuJoCo is imported, and no table read, until one is made.
    """
    for environment, (maze, dense) in ENVIRONMENTS.items():
        if environment not in gymnasium.registry:
            gymnasium.register(
                environment,
                entry_point="distributed_privrl.environments.maze2d:Maze2DEnv",
                max_episode_steps=maze.time_limit,
                kwargs={"maze": maze.name, "dense": dense},
            )
    for number in range(RANDOM_MAZES):
        if random_maze_id(number) not in gymnasium.registry:
            gymnasium.register(
                random_maze_id(number),
                entry_point="distributed_privrl.environments.maze2d:Maze2DEnv",
                max_episode_steps=TIME_LIMIT,
                kwargs={"maze": f"random-{number}", "dense": False},
            )
    for environment in CARTPOLES:
        if environment not in gymnasium.registry:
            gymnasium.register(
                environment,
                entry_point="distributed_privrl.environments.cartpole_environment:CartpoleEnv",
                max_episode_steps=CARTPOLE_HORIZON,
                kwargs={"task": environment},
            )
    if HIV not in gymnasium.registry:
        gymnasium.register(
            HIV,
            entry_point="distributed_privrl.environments.hiv:HivEnv",
            max_episode_steps=HIV_HORIZON,
        )
    for environment in PROBLEMS:
        if environment not in gymnasium.registry:
            gymnasium.register(
                environment,
                entry_point="distributed_privrl.environments.tabular_environment:TabularEnvironment",
                max_episode_steps=HORIZON,
                kwargs={"problem": environment},
            )


register()
