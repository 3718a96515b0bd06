"""The spaces that a dataset may have: Box, flattened, and Discrete."""

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, flatten_space
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, PrivRLError

Space = Box | Discrete[np.int64]


def supported_space(name: str, space: gymnasium.Space[Any]) -> Space:
    """Return ``space`` as a Box or Discrete space; a Dict of Boxes becomes one flat Box.

    Args:
        name: whose space it is, for the message.
        space: a Gymnasium space.

    Raises:
        ConfigError: another kind of space.
    """
    if isinstance(space, Dict) and all(isinstance(part, Box) for part in space.spaces.values()):
        space = flatten_space(space)
    if isinstance(space, (Box, Discrete)):
        return space
    raise ConfigError(f"{name} must be a Box or Discrete space (or a Dict of Boxes), got {space}")


def part_width(space: Space) -> int:
    """Return the number of columns of ``space`` in a row: numbers of a Box, or one-hot."""
    return int(space.n) if isinstance(space, Discrete) else int(np.prod(space.shape))


def check_part(name: str, space: Space, part: NDArray[Any]) -> None:
    """Check that the rows of ``part`` have the form of ``space``.

    Raises:
        ConfigError: a Box of another width, or one kind where the other is declared.
    """
    expected = () if isinstance(space, Discrete) else (part_width(space),)
    if part.shape[1:] != expected:
        raise ConfigError(
            f"{name} has rows of shape {part.shape[1:]}, but its space {space} needs {expected}"
        )


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
    """Return ``space`` as JSON, in Minari's form."""
    if isinstance(space, Discrete):
        start = int(space.start)
        return json.dumps({"type": "Discrete", "dtype": "int64", "start": start, "n": int(space.n)})
    return json.dumps(
        {
            "type": "Box",
            "dtype": str(space.dtype),
            "shape": list(space.shape),
            "low": space.low.tolist(),
            "high": space.high.tolist(),
        }
    )


def space_from_json(text: str) -> gymnasium.Space[Any]:
    """Return the space in ``text``, of any kind that Minari knows.

    Raises:
        ConfigError: not a space.
    """
    from minari.serialization import deserialize_space

    try:
        return deserialize_space(text)  # type: ignore[no-any-return]
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
