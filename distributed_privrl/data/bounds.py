"""Public bounds of every numeric column, from an environment, public datasets or a file."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.config import StrictModel, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.places import ObjectUri, Place
from distributed_privrl.core.yaml_files import mapping_in, read_yaml
from distributed_privrl.data.layout import RowLayout, public_rows
from distributed_privrl.data.spaces import Space, environment_spaces, group_columns
from distributed_privrl.data.trajectories import Transitions

_ADVICE = (
    "give the bounds of every column in a YAML file"
    " ({observation: {low: [..], high: [..]}, action: .., reward: [low, high]}) as data.bounds"
)


_WHOLE = 1e-9
"""How far the range of a column may be from a whole number of steps, in steps."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Bounds:
    """Where the values of each numeric column lie, and how finely.

    Args:
        low: (B,) float64.
        high: (B,) float64.
        columns: their names: ``observation_0 ..``, ``action_0 ..`` (numbers of Box parts alone),
            ``reward``.
        step: (B,) float64; values are ``low + k * step`` with whole k; 0: any number, as by
            default.
        source: where they come from, for the message.

    Raises:
        ConfigError: a column is unbounded, its bounds are the wrong way round, or its range is no
            whole number of steps.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    columns: tuple[str, ...]
    step: NDArray[np.float64] = field(default_factory=lambda: np.zeros(()))
    source: str = "bounds"

    def __post_init__(self) -> None:
        if not np.ndim(self.step):
            object.__setattr__(self, "step", np.full(len(self.columns), self.step))
        for name in ("low", "high", "step"):
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
        self._check_steps()

    def _check_steps(self) -> None:
        wrong = np.flatnonzero(~(np.isfinite(self.step) & (self.step >= 0)))
        if len(wrong):
            raise ConfigError(
                f"{self.source}: step of {self.columns[wrong[0]]} must be a finite number >= 0, got"
                f" {self.step[wrong[0]]:g}"
            )
        for column in np.flatnonzero(self.step):
            low, high, step = (float(side[column]) for side in (self.low, self.high, self.step))
            steps = (high - low) / step
            if not (math.isfinite(steps) and abs(steps - round(steps)) <= _WHOLE):
                raise ConfigError(
                    f"{self.source}: from low to high of {self.columns[column]} must be a whole"
                    f" number of steps, ({high:g} - {low:g}) / {step:g} is {steps:g}: move low or"
                    " high to a value that the column can have, or leave step out"
                )


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
            (np.array(reward[:1]), np.array(reward[1:]), np.zeros(1)),
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
    step: float | list[float] = 0.0


class _RewardSides(StrictModel):
    low: float
    high: float
    step: float = 0.0


class _BoundsFile(StrictModel):
    observation: _Sides | None = None
    action: _Sides | None = None
    reward: tuple[float, float] | _RewardSides | None = None


def bounds_text(place: Place) -> str:
    """Return the text of a bounds file.

    Args:
        place: a path, or an object.

    Raises:
        ConfigError: there is no such file or object.
        StorageError: it cannot be read.
    """
    if isinstance(place, ObjectUri):
        from distributed_privrl.data.objects import read_text  # imports what few runs need

        return read_text(place, name="data.bounds")
    with storage_errors(f"read {place}"):
        return place.read_text()


def _declared(path: Place) -> _BoundsFile:
    if isinstance(path, ObjectUri):
        return validate(_BoundsFile, mapping_in(bounds_text(path), source=path), source=path)
    if not path.is_file():
        raise ConfigError(
            f"data.bounds={path}: there is no such file (a relative path starts at {Path.cwd()}):"
            f" {_ADVICE}"
        )
    return validate(_BoundsFile, read_yaml(path), source=str(path))


def bounds_a_reward(path: Place) -> bool:
    """Return whether a bounds file has the range of a reward.

    Raises:
        ConfigError: as `check_bounds_file`.
    """
    return _declared(path).reward is not None


def check_bounds_file(path: Place) -> tuple[int | None, int | None]:
    """Check all of a bounds file that it tells without the columns it is for.

    Args:
        path: as in `bounds_from_file`.

    Returns:
        How many columns of the observation and of the action it lists. 0: the part is left out, as
        categories are; None: one number stands for all columns.

    Raises:
        ConfigError: there is no such file, a key is wrong, sides differ in length, low is above
            high, or a range is no whole number of steps.
    """
    declared = _declared(path)
    widths: list[int | None] = []
    parts, names = [], []
    for name, given in (("observation", declared.observation), ("action", declared.action)):
        if given is None:
            widths.append(0)
            continue
        sides = (given.low, given.high, given.step)
        listed = sorted({len(side) for side in sides if isinstance(side, list)})
        if len(listed) > 1:
            raise ConfigError(
                f"{path}: {name}: low, high and step list {' and '.join(map(str, listed))} values:"
                " give as many of each as there are columns, or one number for all"
            )
        widths.append(listed[0] if listed else None)
        parts.append(_declared_sides(f"{path}: {name}", given, listed[0] if listed else 1))
        names += [f"{name}_{i}" for i in range(len(parts[-1][0]))]
    low, high, step = _sides_of([*parts, _reward_sides(declared) or NO_REWARD])
    Bounds(low=low, high=high, step=step, columns=(*names, "reward"), source=str(path))
    return widths[0], widths[1]


def bounds_from_file(
    path: Place, observation_space: Space, action_space: Space, *, has_reward: bool = True
) -> Bounds:
    """Return the bounds in a YAML file.

    Args:
        path: of the file, or of an object: ``{observation: {low: [..], high: [..], step: [..]},
            action: {..}, reward: [low, high]}``; one number stands for every number of its part,
            categories and flags have no bounds, and a part that has nothing else is left out;
            ``step`` may be absent, and ``reward: {low: .., high: .., step: ..}`` has one, too.
        observation_space: as in `RowLayout`.
        action_space: as in `RowLayout`.
        has_reward: whether rows have a reward; without one it is not named, and has `NO_REWARD`.

    Raises:
        ConfigError: a column is missing or unbounded, has low above high, or a range of no whole
            number of steps.
    """
    layout = RowLayout(observation_space, action_space)
    declared = _declared(path)
    sides = []
    for name, space, given in (
        ("observation", layout.observation_space, declared.observation),
        ("action", layout.action_space, declared.action),
    ):
        numbers = int((~group_columns(space)).sum())
        if (numbers > 0) != (given is not None):
            wanted = "needs low and high" if numbers else "holds no numbers: leave it out"
            raise ConfigError(f"{path}: {name} {wanted}")
        if given is not None:
            sides.append(_declared_sides(f"{path}: {name}", given, numbers))
    reward = _reward_sides(declared)
    if (reward is not None) != has_reward:
        wanted = (
            "needs its range, [low, high]"
            if has_reward
            else "is none in the schema: leave its range out"
        )
        raise ConfigError(f"{path}: reward {wanted}")
    sides.append(reward or NO_REWARD)
    return _join(layout, sides, source=str(path))


_PartSides = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]
"""Low, high and step of the columns of a part."""
NO_REWARD: _PartSides = (np.zeros(1), np.ones(1), np.ones(1))
"""Bounds of a reward that rows have not, which is 0 in all of them."""


def _reward_sides(declared: _BoundsFile) -> _PartSides | None:
    reward = declared.reward
    if reward is None:
        return None
    if isinstance(reward, tuple):
        reward = _RewardSides(low=reward[0], high=reward[1])
    return np.array([reward.low]), np.array([reward.high]), np.array([reward.step])


def _sides_of(parts: list[_PartSides]) -> _PartSides:
    """Return low, high and step of the columns of several parts."""
    low, high, step = (np.concatenate([part[i] for part in parts]) for i in range(3))
    return low, high, step


def _declared_sides(name: str, given: _Sides, width: int) -> _PartSides:
    def columns(side: str) -> NDArray[np.float64]:
        values = getattr(given, side)
        if isinstance(values, list) and len(values) != width:
            raise ConfigError(
                f"{name}: {side} has {len(values)} values, its space has {width} columns of numbers"
            )
        return np.broadcast_to(np.asarray(values, dtype=np.float64), (width,))

    return columns("low"), columns("high"), columns("step")


def _box_sides(space: Space) -> _PartSides:
    if not isinstance(space, Box):
        return np.empty(0), np.empty(0), np.empty(0)
    numbers = ~group_columns(space)
    low, high = (
        np.asarray(side, dtype=np.float64).reshape(-1)[numbers] for side in (space.low, space.high)
    )
    return low, high, np.zeros(len(low))


def _join(layout: RowLayout, sides: list[_PartSides], *, source: str) -> Bounds:
    low, high, step = _sides_of(sides)
    return Bounds(low=low, high=high, step=step, columns=bounded_columns(layout), source=source)
