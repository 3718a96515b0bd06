"""Random mazes that nobody has tuned anything on, each made of its number alone."""

import functools

import numpy as np

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import MAZES, Maze

RANDOM_MAZES = 100
"""Mazes that are registered; their numbers begin with 0."""

ROOMS = 4
"""Rooms along each side; walls or passages lie between them."""

LOOPS = 4
"""Passages beyond those that join all rooms, so that there is more than one way."""

TIME_LIMIT = 600
_PREFIX = "random-"


@functools.cache
def random_maze(number: int) -> Maze:
    """Return a random maze of 9 x 9 cells in which every free cell is reached from every other.

    A random walk that turns back where it is stuck joins all rooms, `LOOPS` further walls between
    rooms fall, and one room is the goal.

    Args:
        number: of the maze; the same number gives the same maze.

    Raises:
        ConfigError: there is no such number.
    """
    if not 0 <= number < RANDOM_MAZES:
        raise ConfigError(f"maze must be from 0 to {RANDOM_MAZES - 1}, got {number}")
    rng = Streams(number).numpy("environments/random-maze")
    size = 2 * ROOMS + 1
    marks = np.full((size, size), "#")
    marks[1::2, 1::2] = "O"
    for row, column in _joining(rng):
        marks[row, column] = "O"
    walls = [
        (row, column)
        for row in range(1, size - 1)
        for column in range(1, size - 1)
        if (row + column) % 2 and marks[row, column] == "#"
    ]
    for place in rng.choice(len(walls), size=LOOPS, replace=False).tolist():
        marks[walls[place]] = "O"
    row, column = (2 * rng.integers(ROOMS, size=2) + 1).tolist()
    marks[row, column] = "G"
    return Maze(
        name=f"{_PREFIX}{number}",
        rows=tuple("".join(line) for line in marks.tolist()),
        time_limit=TIME_LIMIT,
    )


def _joining(rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the cells between rooms that join all of them in a tree."""
    way = [(1, 1)]
    seen, opened = {(1, 1)}, []
    while way:
        row, column = way[-1]
        steps = [
            (row + down, column + right)
            for down, right in ((-2, 0), (2, 0), (0, -2), (0, 2))
            if 0 < row + down < 2 * ROOMS
            and 0 < column + right < 2 * ROOMS
            and (row + down, column + right) not in seen
        ]
        if not steps:
            way.pop()
            continue
        onward = steps[int(rng.integers(len(steps)))]
        opened.append(((row + onward[0]) // 2, (column + onward[1]) // 2))
        seen.add(onward)
        way.append(onward)
    return opened


def random_maze_id(number: int) -> str:
    """Return the Gymnasium id of a random maze.

    Example:
        >>> random_maze_id(7)
        'privrl/RandomMaze2D-7-v0'
    """
    return f"privrl/RandomMaze2D-{number}-v0"


def maze_named(name: str) -> Maze:
    """Return a maze by its name, one of D4RL's or a random one.

    Raises:
        ConfigError: no such maze.

    Example:
        >>> maze_named("random-7") is random_maze(7)
        True
    """
    if name in MAZES:
        return MAZES[name]
    number = name.removeprefix(_PREFIX)
    if number == name or not number.isdecimal():
        raise ConfigError(
            f"maze must be one of {', '.join(MAZES)}, or {_PREFIX}NUMBER, got {name!r}"
        )
    return random_maze(int(number))
