"""The columns of a row: observation, action, reward, next observation, terminal bit."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space, check_part, part_width, supported_space
from distributed_privrl.data.trajectories import Transitions

_MOST_NUMBERS = 4_000_000
NextObservation = Literal["absolute", "difference"]


@dataclass(frozen=True, eq=False)
class RowLayout:
    """Which column of a row holds what, and raw transitions as unscaled rows and back.

    Args:
        observation_space: Box (flattened) or Discrete (one-hot); a Dict of Boxes is flattened.
        action_space: Box or Discrete.
        next_observation: ``"absolute"``: the columns hold s'; ``"difference"``: they hold s' - s.

    Raises:
        ConfigError: a space of another kind, or a difference of Discrete observations.
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
        if self.next_observation == "difference" and isinstance(self.observation_space, Discrete):
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
        """The name of each column; ``action_is_3`` is the one-hot column of action 3."""
        observation = _part_names("observation", self.observation_space)
        action = _part_names("action", self.action_space)
        return (*observation, *action, "reward", *(f"next_{n}" for n in observation), "terminal")

    @cached_property
    def binary(self) -> NDArray[np.bool_]:
        """The columns that hold zero or one: one-hot parts and the terminal bit, (D,)."""
        mask = np.zeros(self.width, dtype=bool)
        mask[self.blocks["terminal"]] = True
        for name, space in self._parts():
            mask[self.blocks[name]] = isinstance(space, Discrete)
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
            check_part(name, space, columns[name])
            block = rows[:, self.blocks[name]]
            if isinstance(space, Discrete):
                valid &= _one_hot(columns[name], space, block)
            else:
                block[:] = columns[name]
        rows[:, self.blocks["reward"]] = transitions.rewards[:, None]
        rows[:, self.blocks["terminal"]] = transitions.terminated[:, None]
        if self.next_observation == "difference":
            with np.errstate(invalid="ignore"):
                rows[:, self.blocks["next_observation"]] -= rows[:, self.blocks["observation"]]
        valid &= np.isfinite(rows).all(axis=1)
        return rows, valid

    def from_rows(self, rows: NDArray[np.float64]) -> Transitions:
        """Return the transitions in unscaled ``rows`` (N, D); ``truncated`` is False.

        A category is the largest of its one-hot columns; the terminal bit is set above one half.
        """
        parts: dict[str, NDArray[Any]] = {}
        for name, space in self._parts():
            block = rows[:, self.blocks[name]]
            if isinstance(space, Discrete):
                parts[name] = block.argmax(axis=1) + int(space.start)
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
    return [f"{name}_{i}" for i in range(part_width(space))]


def _one_hot(
    values: NDArray[np.int64], space: Discrete[np.int64], block: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Write the one-hot form of ``values`` into ``block``; say which lie in the space."""
    start, count = int(space.start), int(space.n)
    inside = (values >= start) & (values < start + count)
    block[np.flatnonzero(inside), values[inside] - start] = 1.0
    return inside


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
    names = ", ".join(layout.column_names[i] for i in columns) or "a Discrete column"
    return (
        f"public dataset {dataset!r} has values that are not finite or outside their space in"
        f" {names}: repair or leave out those rows"
    )
