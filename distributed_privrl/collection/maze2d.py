"""The recipes of maze2d: the planner runs to random goals while a fixed goal is rewarded.

Reference: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", appendix A.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments import environment_id, reference_returns
from distributed_privrl.environments.mazes import Maze
from distributed_privrl.environments.random_mazes import (
    RANDOM_MAZES,
    random_maze,
    random_maze_id,
)


class Maze2DOptions(StrictModel):
    """Options of the maze2d recipes."""

    episode_steps: PositiveInt | None = Field(
        default=None, description="steps of one run (default: the environment's time limit)"
    )
    trajectories: PositiveInt | None = Field(
        default=None, description="number of whole runs, instead of a number of steps"
    )
    noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.5, description="standard deviation of the noise on each force (D4RL: 0 or 0.5)"
    )
    layout: Literal["episodes", "packed"] = Field(
        default="episodes", description="packed for very many short runs: read far faster"
    )


class RandomMaze2DOptions(Maze2DOptions):
    """Options of the recipe of random mazes."""

    maze: Annotated[int, Field(ge=0, lt=RANDOM_MAZES)] | None = Field(
        default=None, description="number of the maze (default: the seed)"
    )


@dataclass(frozen=True, kw_only=True)
class Maze2DRecipe:
    """A recipe of one maze and one reward; see `distributed_privrl.collection.recipes.Recipe`.

    The runs of a maze are the same for both rewards.

    Args:
        maze: the maze.
        dense: exp(-distance) as the reward.
        default_steps: steps where none are asked for.
    """

    maze: Maze
    dense: bool
    default_steps: int
    options: type[Maze2DOptions] = Maze2DOptions
    unit_column: None = None

    @property
    def name(self) -> str:
        """Name of the recipe."""
        return f"maze2d-{self.maze.name}{'-dense' if self.dense else ''}"

    def layout(self, options: Maze2DOptions) -> Layout:
        """Return how the runs are stored."""
        return options.layout

    def environment(self, options: Maze2DOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return environment_id(self.maze.name, dense=self.dense)

    def total_steps(self, steps: int | None, options: Maze2DOptions) -> int:
        """Return how many steps to make.

        Raises:
            ConfigError: both steps and trajectories are given.
        """
        if options.trajectories is None:
            return self.default_steps if steps is None else steps
        if steps is not None:
            raise ConfigError(
                f"steps={steps} and trajectories={options.trajectories} exclude each other:"
                " give one of them"
            )
        return options.trajectories * (options.episode_steps or self.maze.time_limit)

    def trajectories(
        self, *, steps: int, options: Maze2DOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Return an iterator over the runs, in chunks.

        Args:
            steps: steps in total; the last run may be shorter than the others.
            options: length of a run and noise.
            streams: public randomness of the dataset.

        Raises:
            MissingExtraError: mujoco or gymnasium-robotics is not installed.
        """
        from distributed_privrl.collection.runs import planner_runs

        return planner_runs(
            self.maze,
            dense=self.dense,
            steps=steps,
            steps_per_run=options.episode_steps or self.maze.time_limit,
            noise=options.noise,
            streams=streams.child(f"collection/maze2d-{self.maze.name}"),
        )

    def references(self, options: Maze2DOptions) -> Mapping[str, Any]:
        """Return ``reference_returns``: what a random policy and a planner earn."""
        return {"reference_returns": asdict(reference_returns(self.environment(options)))}


@dataclass(frozen=True, kw_only=True)
class RandomMaze2DRecipe:
    """A recipe of a random maze; see `distributed_privrl.collection.recipes.Recipe`.

    Args:
        default_steps: steps where none are asked for.
    """

    default_steps: int = 1_000_000
    options: type[RandomMaze2DOptions] = RandomMaze2DOptions
    unit_column: None = None
    name: str = "maze2d-random"

    def seeded(self, options: RandomMaze2DOptions, *, seed: int) -> RandomMaze2DOptions:
        """Return options that name a maze: the one asked for, or that of the seed.

        Raises:
            ConfigError: no maze is asked for, and none has the seed as its number.
        """
        if options.maze is not None:
            return options
        if seed >= RANDOM_MAZES:
            raise ConfigError(
                f"no random maze has the number {seed}: give a seed below {RANDOM_MAZES},"
                " or the option maze"
            )
        return options.model_copy(update={"maze": seed})

    def layout(self, options: RandomMaze2DOptions) -> Layout:
        """Return how the runs are stored."""
        return options.layout

    def environment(self, options: RandomMaze2DOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return random_maze_id(_number(options))

    def total_steps(self, steps: int | None, options: RandomMaze2DOptions) -> int:
        """Return how many steps to make; see `Maze2DRecipe.total_steps`."""
        return self._of(options).total_steps(steps, options)

    def trajectories(
        self, *, steps: int, options: RandomMaze2DOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Return an iterator over the runs; see `Maze2DRecipe.trajectories`."""
        return self._of(options).trajectories(steps=steps, options=options, streams=streams)

    def references(self, options: RandomMaze2DOptions) -> Mapping[str, Any]:
        """Return nothing: what policies earn in a random maze is not stored."""
        return {}

    def _of(self, options: RandomMaze2DOptions) -> Maze2DRecipe:
        return Maze2DRecipe(
            maze=random_maze(_number(options)), dense=False, default_steps=self.default_steps
        )


def _number(options: RandomMaze2DOptions) -> int:
    if options.maze is None:
        raise ConfigError("the option maze must say which random maze")
    return options.maze
