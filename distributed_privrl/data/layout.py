"""The columns of a row: observation, action, reward, next observation, terminal bit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import (
    Space,
    check_part,
    components,
    part_width,
    supported_space,
)
from distributed_privrl.data.trajectories import Transitions

_MOST_NUMBERS = 4_000_000
NextObservation = Literal["absolute", "difference"]


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Which column of a row holds what, and raw transitions as unscaled rows and back.

    Args:
        observation_space: Box (flattened), Discrete (one-hot) or MultiDiscrete (one-hot, one
            component after the other); a Dict of Boxes is flattened.
        action_space: as ``observation_space``.
        next_observation: ``"absolute"``: the columns hold s'; ``"difference"``: they hold s' - s.

    Raises:
        ConfigError: a space of another kind, or a difference of categories.
    """

    observation_space: Space
    action_space: Space
    next_observation: NextObservation = "absolute"

    def __post_init__(self) -> None:
        for name in ("observation_space", "action_space"):
            object.__setattr__(self, name, supported_space(name, getattr(self, name)))
        if self.next_observation not in ("absolute", "difference"):
            raise ConfigError(
                f"next_observation must be absolute or difference, got {self.next_observation!r}"
            )
        if self.next_observation == "difference" and not isinstance(self.observation_space, Box):
            raise ConfigError("next_observation='difference' needs a Box observation space")

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
        """The columns that hold zero or one: one-hot parts and the terminal bit, (D,)."""
        mask = np.zeros(self.width, dtype=bool)
        mask[self.blocks["terminal"]] = True
        for name, space in self._parts():
            mask[self.blocks[name]] = not isinstance(space, Box)
        return mask

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
            rows (N, D), and valid (N,): every number finite, every category within its space.

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
            else:
                valid &= _one_hot(part, space, block)
        rows[:, self.blocks["reward"]] = transitions.rewards[:, None]
        rows[:, self.blocks["terminal"]] = transitions.terminated[:, None]
        if self.next_observation == "difference":
            with np.errstate(invalid="ignore"):
                rows[:, self.blocks["next_observation"]] -= rows[:, self.blocks["observation"]]
        valid &= np.isfinite(rows).all(axis=1)
        return rows, valid

    def from_rows(self, rows: NDArray[np.float64]) -> Transitions:
        """Return the transitions in unscaled ``rows`` (N, D); ``truncated`` is False.

        A category is the largest of its component's one-hot columns; the terminal bit is set above
        one half.
        """
        parts: dict[str, NDArray[Any]] = {}
        for name, space in self._parts():
            block = rows[:, self.blocks[name]]
            if not isinstance(space, Box):
                parts[name] = _categories(block, space)
            elif name == "next_observation" and self.next_observation == "difference":
                parts[name] = block + rows[:, self.blocks["observation"]]
            else:
                parts[name] = block
        return Transitions(
            observations=parts["observation"],
            actions=parts["action"],
            rewards=rows[:, self.blocks["reward"]][:, 0].astype(np.float32),
            next_observations=parts["next_observation"],
            terminated=rows[:, self.blocks["terminal"]][:, 0] > 0.5,
            truncated=np.zeros(len(rows), dtype=bool),
            unit_ids=np.arange(len(rows), dtype=np.uint64),
        )

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
    table, valid = values.reshape(len(values), -1), np.ones(len(values), dtype=bool)
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
