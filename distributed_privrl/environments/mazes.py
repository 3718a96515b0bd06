"""The mazes of D4RL's maze2d and its held-out ones (``eval-``): walls, goals, lengths of a run.

Coordinates are gymnasium-robotics': the origin is the middle of the map, x grows with the column,
y falls with the row, one cell is one metre wide.

Reference: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", section 5 and
appendix A.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError

SPEED_LIMIT = 5.0
"""Each component of the velocity is kept within this, in m/s."""

GOAL_RADIUS = 0.5
"""Distance to the goal, in metres, within which the sparse reward is 1."""

SCALING = 1.0
"""Width of a cell in metres."""


class MazeLayout(NamedTuple):
    """What a plot of a maze needs.

    Args:
        cells: ``(R, C)`` uint8, 1 is a wall; row 0 has the largest y.
        scaling: width of a cell in metres.
        goal: ``(x, y)`` of the goal in metres.
    """

    cells: NDArray[np.uint8]
    scaling: float
    goal: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Maze:
    """A grid of walls with one goal.

    Args:
        name: ``open``, ``umaze``, ``medium``, ``large``, and ``eval-`` before the last three.
        rows: the map, ``#`` a wall, ``O`` free, ``G`` the goal.
        time_limit: steps of an episode.
    """

    name: str
    rows: tuple[str, ...]
    time_limit: int

    @property
    def height(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.rows[0])

    @cached_property
    def cells(self) -> NDArray[np.uint8]:
        """The map, ``(R, C)``, 1 is a wall."""
        cells = np.array([[mark == "#" for mark in row] for row in self.rows], dtype=np.uint8)
        cells.setflags(write=False)
        return cells

    @cached_property
    def free_cells(self) -> tuple[tuple[int, int], ...]:
        """``(row, column)`` of each cell without a wall, row by row."""
        rows, columns = np.nonzero(self.cells == 0)
        return tuple(zip(rows.tolist(), columns.tolist(), strict=True))

    @cached_property
    def goal_cell(self) -> tuple[int, int]:
        """``(row, column)`` of the goal."""
        row = next(row for row, marks in enumerate(self.rows) if "G" in marks)
        return row, self.rows[row].index("G")

    @cached_property
    def goal(self) -> tuple[float, float]:
        """``(x, y)`` of the goal."""
        return self.centre(*self.goal_cell)

    def centre(self, row: int, column: int) -> tuple[float, float]:
        """Return ``(x, y)`` of the middle of a cell.

        Example:
            >>> MAZES["umaze"].centre(1, 1)
            (-1.0, 1.0)
        """
        return (
            (column + 0.5 - self.width / 2) * SCALING,
            (self.height / 2 - row - 0.5) * SCALING,
        )

    def cell(self, x: float, y: float) -> tuple[int, int]:
        """Return ``(row, column)`` of the cell that holds ``(x, y)``, outer cells for the rest.

        Example:
            >>> MAZES["umaze"].cell(-1.2, 1.3)
            (1, 1)
        """
        row = int(self.height / 2 - y / SCALING)
        column = int(self.width / 2 + x / SCALING)
        return min(max(row, 0), self.height - 1), min(max(column, 0), self.width - 1)

    @property
    def bounds(self) -> NDArray[np.float32]:
        """The largest absolute x, y, vx and vy: the inner face of the outer walls, and the speed.

        Contacts are soft: a ball of radius 0.1 comes within 0.05 of a wall, never past its face.
        """
        reach = (self.width / 2 - 1) * SCALING, (self.height / 2 - 1) * SCALING
        return np.array([*reach, SPEED_LIMIT, SPEED_LIMIT], dtype=np.float32)

    def draw_start(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """Return a start state as D4RL draws it: near the middle of a free cell, nearly at rest.

        The numbers are exact in float32, so that a recorded start is the start.

        Args:
            rng: draws the cell, the offset (uniform within 0.1 m) and the velocity (std 0.1 m/s).

        Returns:
            ``(4,)``: x, y and their velocities.
        """
        centre = self.centre(*self.free_cells[rng.integers(len(self.free_cells))])
        position = np.array(centre) + rng.uniform(-0.1, 0.1, size=2)
        velocity = 0.1 * rng.standard_normal(2)
        start = np.concatenate([position, velocity], dtype=np.float32, casting="same_kind")
        return start.astype(np.float64)

    def rewards(self, observations: NDArray[np.floating], *, dense: bool) -> NDArray[np.float64]:
        """Return the reward for arriving at each observation.

        Args:
            observations: ``(..., 4)`` next observations.
            dense: exp(-distance) instead of 1 within `GOAL_RADIUS` of the goal, else 0.

        Returns:
            ``(...)`` rewards.
        """
        offset = observations[..., :2].astype(np.float64) - self.goal
        squared_distance = (offset * offset).sum(axis=-1)
        reward = np.exp(-np.sqrt(squared_distance)) if dense else squared_distance <= GOAL_RADIUS**2
        return np.asarray(reward, dtype=np.float64)


MAZES: Mapping[str, Maze] = {
    maze.name: maze
    for maze in (
        Maze(
            name="open",
            rows=(
                "#######",
                "#OOOOO#",
                "#OOGOO#",
                "#OOOOO#",
                "#######",
            ),
            time_limit=150,
        ),
        Maze(
            name="umaze",
            rows=(
                "#####",
                "#GOO#",
                "###O#",
                "#OOO#",
                "#####",
            ),
            time_limit=300,
        ),
        Maze(
            name="medium",
            rows=(
                "########",
                "#OO##OO#",
                "#OO#OOO#",
                "##OOO###",
                "#OO#OOO#",
                "#O#OO#O#",
                "#OOO#OG#",
                "########",
            ),
            time_limit=600,
        ),
        Maze(
            name="large",
            rows=(
                "############",
                "#OOOO#OOOOO#",
                "#O##O#O#O#O#",
                "#OOOOOO#OOO#",
                "#O####O###O#",
                "#OO#O#OOOOO#",
                "##O#O#O#O###",
                "#OO#OOO#OGO#",
                "############",
            ),
            time_limit=800,
        ),
        Maze(
            name="eval-umaze",
            rows=(
                "#####",
                "#OOG#",
                "#O###",
                "#OOO#",
                "#####",
            ),
            time_limit=300,
        ),
        Maze(
            name="eval-medium",
            rows=(
                "########",
                "#OOOOOG#",
                "#O#O##O#",
                "#OOOO#O#",
                "###OO###",
                "#OOOOOO#",
                "#OO##OO#",
                "########",
            ),
            time_limit=600,
        ),
        Maze(
            name="eval-large",
            rows=(
                "############",
                "#OO#OOO#OGO#",
                "##O###O#O#O#",
                "#OO#O#OOOOO#",
                "#O##O#OO##O#",
                "#OOOOOO#OOO#",
                "#O##O#O#O###",
                "#OOOO#OOOOO#",
                "############",
            ),
            time_limit=800,
        ),
    )
}


def environment_id(maze: str, *, dense: bool) -> str:
    """Return the Gymnasium id of a maze.

    Example:
        >>> environment_id("umaze", dense=True)
        'privrl/Maze2D-umaze-dense-v0'
    """
    return f"privrl/Maze2D-{maze}{'-dense' if dense else ''}-v0"


ENVIRONMENTS: Mapping[str, tuple[Maze, bool]] = {
    environment_id(name, dense=dense): (maze, dense)
    for name, maze in MAZES.items()
    for dense in (False, True)
}
"""Gymnasium id to the maze and whether its reward is dense."""


def find_maze(environment: str) -> tuple[Maze, bool]:
    """Return the maze behind a Gymnasium id, and whether its reward is dense.

    Raises:
        ConfigError: no such maze; the message lists them.
    """
    if environment not in ENVIRONMENTS:
        raise ConfigError(f"environment {environment!r} is no maze: {', '.join(ENVIRONMENTS)}")
    return ENVIRONMENTS[environment]


def maze_layout(environment: str) -> MazeLayout:
    """Return walls, cell width and goal of a maze, for a plot.

    Args:
        environment: Gymnasium id, e.g. ``privrl/Maze2D-umaze-v0``.

    Raises:
        ConfigError: no such maze.

    Example:
        >>> cells, scaling, goal = maze_layout("privrl/Maze2D-umaze-v0")
        >>> cells.shape, scaling, goal
        ((5, 5), 1.0, (-1.0, 1.0))
    """
    maze, _ = find_maze(environment)
    return MazeLayout(cells=maze.cells, scaling=SCALING, goal=maze.goal)
