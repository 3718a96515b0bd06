"""Public bounds of every numeric column, from an environment, public datasets or a file."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.config import StrictModel, read_yaml, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.layout import RowLayout, public_rows
from distributed_privrl.data.spaces import Space, environment_spaces, part_width
from distributed_privrl.data.trajectories import Transitions

_ADVICE = (
    "give the bounds of every column in a YAML file"
    " ({observation: {low: [..], high: [..]}, action: .., reward: [low, high]}) as data.bounds"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """Where the values of each numeric column lie.

    Args:
        low: (B,) float64.
        high: (B,) float64.
        columns: their names: ``observation_0 ..``, ``action_0 ..`` (Box parts only), ``reward``.
        source: where they come from, for the message.

    Raises:
        ConfigError: a column is unbounded, or its bounds are the wrong way round.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    columns: tuple[str, ...]
    source: str = "bounds"

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
            if getattr(self, name).shape != (len(self.columns),):
                raise ConfigError(f"{self.source}: {name} must have {len(self.columns)} values")
        bounded = np.isfinite(self.low) & np.isfinite(self.high)
        if not bounded.all():
            unbounded = ", ".join(self.columns[i] for i in np.flatnonzero(~bounded))
            raise ConfigError(f"{self.source} leaves {unbounded} unbounded: {_ADVICE}")
        reversed_ = [self.columns[i] for i in np.flatnonzero(self.low > self.high)]
        if reversed_:
            raise ConfigError(f"{self.source}: low is above high for {', '.join(reversed_)}")


def bounded_columns(layout: RowLayout) -> tuple[str, ...]:
    """Return the names of the columns that need bounds."""
    names = np.array(layout.column_names)[~layout.binary]
    return tuple(str(name) for name in names if not name.startswith("next_"))


def check_bounds_columns(bounds: Bounds, layout: RowLayout) -> None:
    """Check that ``bounds`` are of the columns of ``layout``.

    Raises:
        ConfigError: they are of others.
    """
    if bounds.columns != bounded_columns(layout):
        raise ConfigError(
            f"{bounds.source} bounds {', '.join(bounds.columns)}; the dataset's columns are"
            f" {', '.join(bounded_columns(layout))}"
        )


def bounds_from_environment(environment: str) -> Bounds:
    """Return the bounds of a registered environment's spaces.

    Gymnasium environments declare no bounds of the reward: one that knows them says so in an
    attribute ``reward_range`` (low, high); otherwise the reward counts as unbounded.

    Raises:
        ConfigError: a column is unbounded (the message lists them all), or no such environment.
    """
    observation_space, action_space, made = environment_spaces(environment)
    reward = getattr(made.unwrapped, "reward_range", (-np.inf, np.inf))
    made.close()  # type: ignore[no-untyped-call]
    return _join(
        RowLayout(observation_space, action_space),
        [
            _box_sides(observation_space),
            _box_sides(action_space),
            (np.array(reward[:1]), np.array(reward[1:])),
        ],
        source=f"environment {environment!r}",
    )


def bounds_from_public(
    public: Mapping[str, Iterable[Transitions]], observation_space: Space, action_space: Space
) -> Bounds:
    """Return the smallest and largest public value of each column; s' counts as an observation.

    Args:
        public: chunks of transitions for each dataset id; read once.
        observation_space: as in `RowLayout`.
        action_space: as in `RowLayout`.

    Raises:
        ConfigError: a public value is not finite (names dataset and column), or there are no rows.
    """
    layout = RowLayout(observation_space, action_space)
    low, high = np.full(layout.width, np.inf), np.full(layout.width, -np.inf)
    for rows in public_rows(layout, public):
        low = np.minimum(low, rows.min(axis=0))
        high = np.maximum(high, rows.max(axis=0))
    if np.isinf(low).any():
        raise ConfigError(f"public datasets {sorted(public)} have no rows: nothing to bound by")
    before, after = layout.blocks["observation"], layout.blocks["next_observation"]
    low[before] = np.minimum(low[before], low[after])
    high[before] = np.maximum(high[before], high[after])
    columns = bounded_columns(layout)
    chosen = [layout.column_names.index(name) for name in columns]
    return Bounds(low=low[chosen], high=high[chosen], columns=columns, source="public datasets")


class _Sides(StrictModel):
    low: float | list[float]
    high: float | list[float]


class _BoundsFile(StrictModel):
    observation: _Sides | None = None
    action: _Sides | None = None
    reward: tuple[float, float]


def bounds_from_file(path: Path, observation_space: Space, action_space: Space) -> Bounds:
    """Return the bounds in a YAML file.

    Args:
        path: ``{observation: {low: [..], high: [..]}, action: {..}, reward: [low, high]}``; one
            number stands for every column of its part, a Discrete part is left out.
        observation_space: as in `RowLayout`.
        action_space: as in `RowLayout`.

    Raises:
        ConfigError: a column is missing, unbounded or has low above high.
    """
    layout = RowLayout(observation_space, action_space)
    declared = validate(_BoundsFile, read_yaml(path), source=str(path))
    sides = []
    for name, space, given in (
        ("observation", layout.observation_space, declared.observation),
        ("action", layout.action_space, declared.action),
    ):
        if isinstance(space, Box) != (given is not None):
            wanted = "needs low and high" if isinstance(space, Box) else "is Discrete: leave it out"
            raise ConfigError(f"{path}: {name} {wanted}")
        if given is not None:
            sides.append(_declared_sides(f"{path}: {name}", given, part_width(space)))
    sides.append((np.array(declared.reward[:1]), np.array(declared.reward[1:])))
    return _join(layout, sides, source=str(path))


_Pair = tuple[NDArray[np.float64], NDArray[np.float64]]


def _declared_sides(name: str, given: _Sides, width: int) -> _Pair:
    sides = []
    for side in (given.low, given.high):
        values = np.atleast_1d(np.asarray(side, dtype=np.float64))
        if isinstance(side, list) and len(side) != width:
            raise ConfigError(f"{name} has {len(side)} bounds, its space has {width} columns")
        sides.append(np.broadcast_to(values, (width,)))
    return sides[0], sides[1]


def _box_sides(space: Space) -> _Pair:
    if not isinstance(space, Box):
        return np.empty(0), np.empty(0)
    low, high = (np.asarray(side, dtype=np.float64).reshape(-1) for side in (space.low, space.high))
    return low, high


def _join(layout: RowLayout, sides: list[_Pair], *, source: str) -> Bounds:
    low, high = (np.concatenate([pair[i] for pair in sides]) for i in (0, 1))
    return Bounds(low=low, high=high, columns=bounded_columns(layout), source=source)
