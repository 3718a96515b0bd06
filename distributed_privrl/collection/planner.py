"""The waypoint planner of maze2d: the shortest way over the grid, driven by a PD controller.

Reference: Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement Learning", appendix A. D4RL
plans by Q-iteration at every new goal; on a grid with equal costs breadth-first search gives the
same ways, here once for all goals.
"""

import functools
import math
from collections import deque
from collections.abc import Mapping

import numpy as np

from distributed_privrl.environments.mazes import Maze

Cell = tuple[int, int]

PROPORTIONAL_GAIN = 10.0
DERIVATIVE_GAIN = -1.0
REACHED_DISTANCE = 0.1
"""A waypoint or goal within this many metres is reached."""


@functools.cache
def next_cells(maze: Maze) -> Mapping[Cell, Mapping[Cell, Cell]]:
    """Return, for each goal cell and each free cell, the next cell of a shortest way.

    The goal itself is followed by itself.

    Raises:
        KeyError: on look-up, for a cell that is a wall.
    """
    return {goal: _ways_to(goal, frozenset(maze.free_cells)) for goal in maze.free_cells}


def _ways_to(goal: Cell, free: frozenset[Cell]) -> dict[Cell, Cell]:
    following = {goal: goal}
    frontier = deque([goal])
    while frontier:
        row, column = cell = frontier.popleft()
        for neighbour in (
            (row - 1, column),
            (row + 1, column),
            (row, column - 1),
            (row, column + 1),
        ):
            if neighbour in free and neighbour not in following:
                following[neighbour] = cell
                frontier.append(neighbour)
    return following


class WaypointPlanner:
    """Drives the point mass to one goal cell after the other.

    Args:
        maze: the maze.
        goal: the first goal cell.
        rng: draws where in a cell on the way the waypoint lies, within 0.1 m of its middle; None:
            in the middle.
    """

    def __init__(self, maze: Maze, goal: Cell, *, rng: np.random.Generator | None = None) -> None:
        self._maze = maze
        self._ways = next_cells(maze)
        self._rng = rng
        self.set_goal(goal)

    def set_goal(self, goal: Cell) -> None:
        """Plan towards the middle of another cell from now on."""
        self.goal = goal
        self.reached = False
        self._target = self._maze.centre(*goal)
        self._leg: tuple[Cell, Cell] | None = None
        self._waypoint = self._target

    def action(self, x: float, y: float, velocity_x: float, velocity_y: float) -> list[float]:
        """Return the forces towards the next waypoint, each in [-1, 1].

        ``reached`` then says whether the ball was at the goal.
        """
        self.reached = _is_near(x, y, self._target)
        cell = self._maze.cell(x, y)
        if self._leg is None or cell not in self._leg:
            self._head_from(cell)
        elif _is_near(x, y, self._waypoint) and not self.reached:
            self._head_from(self._leg[1])
        toward_x, toward_y = self._target if self.reached else self._waypoint
        return [
            _force(toward_x - x, velocity_x),
            _force(toward_y - y, velocity_y),
        ]

    def _head_from(self, cell: Cell) -> None:
        """Set the waypoint to the next cell after ``cell``."""
        following = self._ways[self.goal][cell]
        self._leg = cell, following
        x, y = self._maze.centre(*following)
        if following != self.goal and self._rng is not None:
            offset_x, offset_y = self._rng.uniform(-REACHED_DISTANCE, REACHED_DISTANCE, 2).tolist()
            x, y = x + offset_x, y + offset_y
        self._waypoint = x, y


def _is_near(x: float, y: float, point: tuple[float, float]) -> bool:
    return math.hypot(point[0] - x, point[1] - y) < REACHED_DISTANCE


def _force(offset: float, speed: float) -> float:
    return min(max(PROPORTIONAL_GAIN * offset + DERIVATIVE_GAIN * speed, -1.0), 1.0)
