"""The columns of a row: observation, action, reward, next observation, terminal bit."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import (
    Space,
    box_bounds,
    check_part,
    components,
    group_columns,
    group_values,
    groups_of,
    nearest_categories,
    part_width,
    supported_space,
)
from distributed_privrl.data.trajectories import Transitions

_MOST_NUMBERS = 4_000_000
MOST_LEVELS = 8
NextObservation = Literal["absolute", "difference"]


@dataclass(frozen=True, kw_only=True)
class RowCoding:
    """How a row codes a transition, so that a generator of continuous numbers can learn it.

    Args:
        next_observation: ``"absolute"``: the columns hold s'; ``"difference"``: they hold s' - s.
        reward_levels: the few values that a reward takes, rising; the column holds the nearest
            one's position, from -1 to 1. Empty: the reward itself.
        action_margin: an action at a finite bound is coded beyond it by this share of half its
            range, so that the gap sets those apart that were clipped. 0: the action itself.

    Raises:
        ConfigError: levels that do not rise or are not finite, one level or more than eight, or a
            margin that is not finite and >= 0.
    """

    next_observation: NextObservation = "absolute"
    reward_levels: tuple[float, ...] = ()
    action_margin: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "reward_levels", tuple(float(v) for v in self.reward_levels))
        levels = np.asarray(self.reward_levels)
        if self.next_observation not in ("absolute", "difference"):
            raise ConfigError(
                f"next_observation must be absolute or difference, got {self.next_observation!r}"
            )
        if len(levels) and not (
            2 <= len(levels) <= MOST_LEVELS
            and np.isfinite(levels).all()
            and (np.diff(levels) > 0).all()
        ):
            raise ConfigError(
                f"reward_levels must be 2 to {MOST_LEVELS} rising numbers, got {levels.tolist()}"
            )
        if not 0 <= self.action_margin < np.inf:
            raise ConfigError(f"action_margin must be >= 0, got {self.action_margin}")


PLAIN = RowCoding()
"""Numbers as they are."""


LABEL = " is "
"""Between a column's name and the value of the category that it is the one-hot column of."""


def grouped_columns(names: Sequence[str]) -> list[tuple[str, slice]]:
    """Return the columns of rows by what they are of: a number alone, a category's all together.

    Args:
        names: as `RowLayout.column_names` or `labels.column_labels` has them.

    Example:
        >>> grouped_columns(["action_is_0", "action_is_1", "reward"])
        [('action', slice(0, 2, None)), ('reward', slice(2, 3, None))]
        >>> grouped_columns(["ward is A", "ward is B", "age"])
        [('ward', slice(0, 2, None)), ('age', slice(2, 3, None))]
    """
    groups: list[tuple[str, slice]] = []
    for place, name in enumerate(names):
        part, category, labelled = _parted(name)
        one_hot = bool(part) and (labelled or category.isdecimal())
        begins = category == "0" and not labelled
        if one_hot and not begins and groups and groups[-1][0] == part:
            groups[-1] = part, slice(groups[-1][1].start, place + 1)
        else:
            groups.append((part if one_hot else name, slice(place, place + 1)))
    return groups


def category_of(name: str) -> tuple[str, str]:
    """Return the category and the value that a one-hot column is of.

    Example:
        >>> category_of("ward is it is A"), category_of("action_is_3")
        (('ward', 'it is A'), ('action', '3'))
    """
    return _parted(name)[:2]


def _parted(name: str) -> tuple[str, str, bool]:
    labelled = LABEL in name
    parted = name.partition(LABEL) if labelled else name.rpartition("_is_")
    return parted[0], parted[2], labelled


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Which column of a row holds what, and raw transitions as unscaled rows and back.

    Args:
        observation_space: Box (flattened; some of its columns may hold categories), Discrete
            (one-hot) or MultiDiscrete (one-hot, one component after the other); a Dict of Boxes is
            flattened.
        action_space: as ``observation_space``.
        coding: of next observations, rewards and actions.

    Raises:
        ConfigError: a space of another kind, or a difference of categories.
    """

    observation_space: Space
    action_space: Space
    coding: RowCoding = PLAIN

    def __post_init__(self) -> None:
        for name in ("observation_space", "action_space"):
            object.__setattr__(self, name, supported_space(name, getattr(self, name)))
        if self._differences and not isinstance(self.observation_space, Box):
            raise ConfigError("next_observation='difference' needs a Box observation space")

    @property
    def _differences(self) -> bool:
        return self.coding.next_observation == "difference"

    @cached_property
    def width(self) -> int:
        """The number D of columns."""
        return 2 * part_width(self.observation_space) + part_width(self.action_space) + 2

    @cached_property
    def blocks(self) -> dict[str, slice]:
        """Where each part lies in a row."""
        observation, action = part_width(self.observation_space), part_width(self.action_space)
        ends = np.cumsum([0, observation, action, 1, observation, 1]).tolist()
        names = ("observation", "action", "reward", "next_observation", "terminal")
        return {n: slice(ends[i], ends[i + 1]) for i, n in enumerate(names)}

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The name of each column.

        ``action_is_3`` is the one-hot column of action 3, ``action_0_is_3`` that of the first
        component of a MultiDiscrete action.
        """
        observation = _part_names("observation", self.observation_space)
        action = _part_names("action", self.action_space)
        return (*observation, *action, "reward", *(f"next_{n}" for n in observation), "terminal")

    @cached_property
    def binary(self) -> NDArray[np.bool_]:
        """The columns that hold zero or one: categories, flags and the terminal bit, (D,)."""
        mask = np.zeros(self.width, dtype=bool)
        mask[self.blocks["terminal"]] = True
        for name, space in self._parts():
            mask[self.blocks[name]] = group_columns(space)
        return mask

    @cached_property
    def _differing(self) -> NDArray[np.bool_]:
        """The columns of next observations that hold a difference, (O,): numbers, if any do."""
        return ~group_columns(self.observation_space) & self._differences

    @cached_property
    def coded(self) -> NDArray[np.bool_]:
        """The columns that lie in [-1, 1] by their coding: a reward of few levels, (D,)."""
        mask = np.zeros(self.width, dtype=bool)
        mask[self.blocks["reward"]] = bool(self.coding.reward_levels)
        return mask

    @cached_property
    def limits(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The lowest and the highest number of each column, (D,); infinite where there is none."""
        low, high = np.full(self.width, -np.inf), np.full(self.width, np.inf)
        low[self.binary], high[self.binary] = 0.0, 1.0
        low[self.coded], high[self.coded] = -1.0, 1.0
        for name, space in self._parts():
            if isinstance(space, Box):
                least, most = (side.astype(np.float64) for side in box_bounds(space))
                if name == "next_observation" and self._differences:
                    changes = self._differing
                    least, most = (
                        np.where(changes, least - most, least),
                        np.where(changes, most - least, most),
                    )
                elif name == "action":
                    margin = self._margins(space)[2]
                    least, most = least - margin, most + margin
                low[self.blocks[name]], high[self.blocks[name]] = least, most
        return low, high

    def slices(self, count: int) -> Iterator[slice]:
        """Yield consecutive slices of ``count`` rows, each small enough for 32 MB as float64."""
        step = max(1, _MOST_NUMBERS // self.width)
        for start in range(0, count, step):
            yield slice(start, min(start + step, count))

    def to_rows(self, transitions: Transitions) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Return unscaled rows, and which of them are proper.

        Args:
            transitions: N transitions.

        Returns:
            rows (N, D), and valid (N,): every number finite, every category within its space, and
            one of each category among numbers.

        Raises:
            ConfigError: the columns do not have the form of the spaces.
        """
        rows = np.zeros((len(transitions), self.width))
        valid = np.ones(len(transitions), dtype=bool)
        columns = {
            "observation": transitions.observations,
            "action": transitions.actions,
            "next_observation": transitions.next_observations,
        }
        for name, space in self._parts():
            part, block = check_part(name, space, columns[name]), rows[:, self.blocks[name]]
            if isinstance(space, Box):
                block[:] = part
                for start, stop in groups_of(space):
                    valid &= group_values(part[:, start:stop]) >= 0
            else:
                valid &= _one_hot(part, space, block)
        self._set_clipped_apart(rows[:, self.blocks["action"]])
        rows[:, self.blocks["reward"]] = self._coded_rewards(transitions.rewards)[:, None]
        rows[:, self.blocks["terminal"]] = transitions.terminated[:, None]
        if self._differences:
            with np.errstate(invalid="ignore"):
                after, before = (
                    rows[:, self.blocks[name]] for name in ("next_observation", "observation")
                )
                after -= np.where(self._differing, before, 0.0)
        valid &= np.isfinite(rows).all(axis=1)
        return rows, valid

    def from_rows(self, rows: NDArray[np.float64]) -> Transitions:
        """Return the transitions in unscaled ``rows`` (N, D); ``truncated`` is False.

        A category is the largest of its one-hot columns; flags and the terminal bit are set above
        one half.
        """
        parts: dict[str, NDArray[Any]] = {}
        for name, space in self._parts():
            block = rows[:, self.blocks[name]]
            if not isinstance(space, Box):
                parts[name] = _categories(block, space)
            elif name == "next_observation" and self._differences:
                before = rows[:, self.blocks["observation"]]
                parts[name] = block + np.where(self._differing, before, 0.0)
            elif name == "action":
                parts[name] = self._clipped_again(block)
            else:
                parts[name] = block
            if isinstance(space, Box):
                parts[name] = nearest_categories(space, parts[name])
        return Transitions(
            observations=parts["observation"],
            actions=parts["action"],
            rewards=self._decoded_rewards(rows[:, self.blocks["reward"]][:, 0]),
            next_observations=parts["next_observation"],
            terminated=rows[:, self.blocks["terminal"]][:, 0] > 0.5,
            truncated=np.zeros(len(rows), dtype=bool),
            unit_ids=np.arange(len(rows), dtype=np.uint64),
        )

    def _coded_rewards(self, rewards: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the nearest level's place in [-1, 1], NaN for a reward that is not finite."""
        values = rewards.astype(np.float64)
        levels = np.asarray(self.coding.reward_levels)
        if not len(levels):
            return values
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, values)
        return np.where(np.isfinite(values), 2 * nearest / (len(levels) - 1) - 1, np.nan)

    def _decoded_rewards(self, column: NDArray[np.float64]) -> NDArray[np.float32]:
        levels = np.asarray(self.coding.reward_levels, dtype=np.float32)
        if not len(levels):
            return column.astype(np.float32)
        place = np.clip((np.nan_to_num(column) + 1) / 2, 0, 1) * (len(levels) - 1)
        decoded: NDArray[np.float32] = levels[np.rint(place).astype(np.int64)]
        return decoded

    def _margins(
        self, space: Box
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Return the actions' bounds, infinite where there is no margin, and the margins (A,)."""
        low, high = box_bounds(space)
        low, high = low.astype(np.float64), high.astype(np.float64)
        bounded = np.isfinite(low) & np.isfinite(high) & ~group_columns(space)
        margin = np.where(bounded, self.coding.action_margin * (high - low) / 2, 0.0)
        return np.where(bounded, low, -np.inf), np.where(bounded, high, np.inf), margin

    def _set_clipped_apart(self, actions: NDArray[np.float64]) -> None:
        """Move actions ``(N, A)`` at a bound beyond it, in place."""
        if self.coding.action_margin and isinstance(self.action_space, Box):
            low, high, margin = self._margins(self.action_space)
            moved = np.where(actions >= high, high + margin, actions)
            actions[:] = np.where(moved <= low, low - margin, moved)

    def _clipped_again(self, actions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return actions, those nearer to their coded bound than to it as that bound."""
        if not (self.coding.action_margin and isinstance(self.action_space, Box)):
            return actions
        low, high, margin = self._margins(self.action_space)
        inside = np.clip(actions, low, high)
        # What lies less than half a margin beyond a bound was meant to lie inside it: its mirror
        # image is as far from the bound, and keeps the share of clipped actions as it was learned.
        near_high = (actions > high) & (actions < high + margin / 2)
        near_low = (actions < low) & (actions > low - margin / 2)
        inside = np.where(near_high, 2 * high - actions, inside)
        return np.where(near_low, 2 * low - actions, inside)

    def _parts(self) -> tuple[tuple[str, Space], ...]:
        return (
            ("observation", self.observation_space),
            ("action", self.action_space),
            ("next_observation", self.observation_space),
        )


def _part_names(name: str, space: Space) -> list[str]:
    if isinstance(space, Discrete):
        return [f"{name}_is_{int(space.start) + i}" for i in range(int(space.n))]
    if isinstance(space, Box):
        return [f"{name}_{i}" for i in range(part_width(space))]
    each = [_part_names(f"{name}_{i}", part) for i, part in enumerate(components(space))]
    return [column for names in each for column in names]


def _blocks(space: Space) -> Iterator[tuple[int, Discrete[np.int64], slice]]:
    """Yield each component of a space of categories, its number and its one-hot columns."""
    begin = 0
    for number, component in enumerate(components(space)):
        yield number, component, slice(begin, begin := begin + int(component.n))


def _one_hot(
    values: NDArray[np.int64], space: Space, block: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Write the one-hot form of ``values`` into ``block``; say which lie in the space."""
    table = values[:, None] if values.ndim == 1 else values
    valid = np.ones(len(values), dtype=bool)
    for number, component, columns in _blocks(space):
        chosen, start = table[:, number], int(component.start)
        inside = (chosen >= start) & (chosen < start + int(component.n))
        block[:, columns][np.flatnonzero(inside), chosen[inside] - start] = 1.0
        valid &= inside
    return valid


def _categories(block: NDArray[np.float64], space: Space) -> NDArray[np.int64]:
    """Return the largest column of each component, (N,) of a Discrete space, else (N, C)."""
    chosen = [block[:, c].argmax(axis=1) + int(part.start) for _, part, c in _blocks(space)]
    return chosen[0] if isinstance(space, Discrete) else np.stack(chosen, axis=1)


def public_rows(
    layout: RowLayout, public: Mapping[str, Iterable[Transitions]]
) -> Iterator[NDArray[np.float64]]:
    """Yield the unscaled rows of public datasets, a slice at a time.

    Args:
        layout: of the rows.
        public: chunks of transitions for each dataset id.

    Raises:
        ConfigError: a value is not finite or outside its space; names the dataset and the column.
    """
    for dataset, chunks in public.items():
        for chunk in chunks:
            for part in layout.slices(len(chunk)):
                rows, valid = layout.to_rows(chunk.select(part))
                if not valid.all():
                    raise ConfigError(_bad_public(layout, rows, dataset))
                yield rows


def _bad_public(layout: RowLayout, rows: NDArray[np.float64], dataset: str) -> str:
    columns = np.flatnonzero(~np.isfinite(rows).all(axis=0))
    names = ", ".join(layout.column_names[i] for i in columns) or "a column of categories"
    return (
        f"public dataset {dataset!r} has values that are not finite or outside their space in"
        f" {names}: repair or leave out those rows"
    )
