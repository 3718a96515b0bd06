"""The spaces that a dataset may have: Box and MultiDiscrete, flattened, and Discrete."""

import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, flatten_space
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, PrivRLError

Space = Box | Discrete[np.int64] | MultiDiscrete
Group = tuple[int, int]
"""First column of a category in a Box, and the one after its last."""

_GROUPS = "categories"


class TableBox(Box):
    """A flat Box of numbers, and of categories beside them: one-hot, or a flag of 0 and 1.

    To whoever does not ask it is a Box like any other.

    Args:
        low: ``(W,)``.
        high: ``(W,)``.
        groups: columns of each category, rising; one column alone is a flag.

    Raises:
        ConfigError: groups that overlap or lie outside, or a category that has not [0, 1].
    """

    def __init__(
        self, low: NDArray[np.float32], high: NDArray[np.float32], groups: Sequence[Group]
    ) -> None:
        super().__init__(low, high, dtype=np.float32)
        self.groups = tuple((int(start), int(stop)) for start, stop in groups)
        ends = [end for group in self.groups for end in group]
        empty = any(start == stop for start, stop in self.groups)
        if len(self.shape) != 1 or empty or sorted(ends) != ends:
            raise ConfigError(f"categories {self.groups} must lie side by side in a flat Box")
        if ends and not 0 <= ends[0] <= ends[-1] <= self.shape[0]:
            raise ConfigError(f"categories {self.groups} lie outside {self.shape[0]} columns")
        columns = group_columns(self)
        if (self.low[columns] != 0).any() or (self.high[columns] != 1).any():
            raise ConfigError("columns of categories must be bounded by 0 and 1")

    def __eq__(self, other: object) -> bool:
        """Say whether the other is a Box of the same bounds and categories."""
        same = groups_of(self) == groups_of(other) if isinstance(other, Box) else False
        return bool(super().__eq__(other)) and same

    def __repr__(self) -> str:
        """Return the Box, and where its categories are."""
        return f"{super().__repr__()} with categories {list(self.groups)}"


def groups_of(space: Space) -> tuple[Group, ...]:
    """Return the columns of each category in a Box; () of other spaces."""
    return space.groups if isinstance(space, TableBox) else ()


def group_columns(space: Space) -> NDArray[np.bool_]:
    """Return which columns of an encoded row of ``space`` hold categories, ``(W,)``."""
    if not isinstance(space, Box):
        return np.ones(part_width(space), dtype=bool)
    columns = np.zeros(part_width(space), dtype=bool)
    for start, stop in groups_of(space):
        columns[start:stop] = True
    return columns


def group_values(columns: NDArray[Any]) -> NDArray[np.int64]:
    """Return the category in each row of a group ``(N, K)``: its column, or what a flag says.

    Rows without a category, or with several, have -1.
    """
    if columns.shape[1] == 1:
        flag = columns[:, 0]
        return np.where(flag == 1, 1, np.where(flag == 0, 0, -1)).astype(np.int64)
    proper = (columns == 1).sum(axis=1) == 1
    proper &= (columns == 0).sum(axis=1) == columns.shape[1] - 1
    return np.where(proper, (columns == 1).argmax(axis=1), -1).astype(np.int64)


def nearest_categories(space: Space, part: NDArray[Any]) -> NDArray[Any]:
    """Return rows ``(N, W)`` in which each category is the largest of its columns, and 1.

    A flag is 1 above one half. Numbers stay as they are.
    """
    if not groups_of(space):
        return part
    nearest = part.copy()
    for start, stop in groups_of(space):
        block = part[:, start:stop]
        chosen = block > 0.5
        if stop - start > 1:
            chosen = block.argmax(axis=1)[:, None] == np.arange(stop - start)
        nearest[:, start:stop] = chosen
    return nearest


def supported_space(name: str, space: gymnasium.Space[Any]) -> Space:
    """Return ``space`` if rows can hold it; a Dict of Boxes becomes one flat Box.

    Args:
        name: whose space it is, for the message.
        space: a Gymnasium space.

    Raises:
        ConfigError: another kind of space.
    """
    if isinstance(space, Dict) and all(isinstance(part, Box) for part in space.spaces.values()):
        space = flatten_space(space)
    if isinstance(space, (Box, Discrete, MultiDiscrete)):
        return space
    raise ConfigError(
        f"{name} must be a Box, Discrete or MultiDiscrete space (or a Dict of Boxes), got {space}"
    )


def components(space: Space) -> list[Discrete[np.int64]]:
    """Return the categories of a row: one of a Discrete space, none of a Box."""
    if isinstance(space, Box):
        return []
    if isinstance(space, Discrete):
        return [space]
    sizes, starts = space.nvec.reshape(-1).tolist(), space.start.reshape(-1).tolist()
    return [Discrete(n, start=start) for n, start in zip(sizes, starts, strict=True)]


def row_shape(space: Space) -> tuple[int, ...]:
    """Return the shape of a row in memory: () of a Discrete space, else (columns,)."""
    return () if isinstance(space, Discrete) else (int(np.prod(space.shape)),)


def part_width(space: Space) -> int:
    """Return the number of columns of ``space`` in an encoded row: numbers of a Box, or one-hot."""
    if isinstance(space, Box):
        return int(np.prod(space.shape))
    return sum(int(component.n) for component in components(space))


def same_form(one: Space, other: Space) -> bool:
    """Say whether rows of both have the same columns and categories; bounds may differ."""
    if isinstance(one, Box) and isinstance(other, Box):
        return row_shape(one) == row_shape(other) and groups_of(one) == groups_of(other)
    return one == other


def empty_part(space: Space) -> NDArray[Any]:
    """Return no rows of ``space``, in the type and shape of its rows."""
    return np.empty((0, *row_shape(space)), np.float32 if isinstance(space, Box) else np.int64)


def check_part(name: str, space: Space, part: NDArray[Any]) -> NDArray[Any]:
    """Return the rows of ``part`` if they have the form of ``space``, whole numbers as a Box's.

    Raises:
        ConfigError: rows of another width, or one kind where the other is declared.
    """
    if part.shape[1:] != row_shape(space):
        raise ConfigError(
            f"{name} has rows of shape {part.shape[1:]}, but its space {space} needs"
            f" {row_shape(space)}"
        )
    if isinstance(space, Box):
        return part.astype(np.float32, copy=False)
    if part.dtype.kind != "i":
        raise ConfigError(f"{name} has {part.dtype} numbers, but its space {space} needs integers")
    return part


def box_bounds(space: Box) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the flat bounds of ``space`` in float32, rounded inward, so that clipping stays in."""
    low, high = (np.asarray(side, dtype=np.float64).reshape(-1) for side in (space.low, space.high))
    with np.errstate(over="ignore"):
        low32, high32 = low.astype(np.float32), high.astype(np.float32)
    infinite = np.float32(np.inf)
    return (
        np.where(low32 < low, np.nextafter(low32, infinite), low32),
        np.where(high32 > high, np.nextafter(high32, -infinite), high32),
    )


def space_to_json(space: Space) -> str:
    """Return ``space`` as JSON, in Minari's form; a further key has a Box's categories."""
    if isinstance(space, Discrete):
        start = int(space.start)
        return json.dumps({"type": "Discrete", "dtype": "int64", "start": start, "n": int(space.n)})
    if isinstance(space, MultiDiscrete):
        return json.dumps(
            {
                "type": "MultiDiscrete",
                "dtype": str(space.dtype),
                "nvec": space.nvec.tolist(),
                "start": space.start.tolist(),
            }
        )
    groups = groups_of(space)
    return json.dumps(
        {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": space.low.tolist(),
            "high": space.high.tolist(),
            **({_GROUPS: groups} if groups else {}),
        }
    )


def space_from_json(text: str) -> gymnasium.Space[Any]:
    """Return the space in ``text``, of any kind that Minari knows.

    Raises:
        ConfigError: not a space.
    """
    from minari.serialization import deserialize_space

    try:
        space: gymnasium.Space[Any] = deserialize_space(text)
        groups = json.loads(text).get(_GROUPS) if isinstance(space, Box) else None
        if isinstance(space, Box) and groups:
            return TableBox(space.low, space.high, groups)
        return space
    except (ValueError, KeyError, TypeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(f"space {text[:80]!r} cannot be read: {error}") from error


def environment_spaces(environment: str) -> tuple[Space, Space, gymnasium.Env[Any, Any]]:
    """Return the observation and action space of a registered environment, and the environment.

    Raises:
        ConfigError: it is not registered, or cannot be made.
    """
    try:
        made = gymnasium.make(environment)
    except PrivRLError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"environment {environment!r} cannot be made ({reason}): check its id and its extra"
        ) from error
    return (
        supported_space(f"observation space of {environment}", made.observation_space),
        supported_space(f"action space of {environment}", made.action_space),
        made,
    )
