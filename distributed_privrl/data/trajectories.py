"""Columnar transitions and trajectories, each with the privacy unit that it came from.

Box parts are float32 and flattened, Discrete parts int64 of shape (N,), MultiDiscrete parts int64
and flattened. ``terminated`` (the state has no future) is kept apart from ``truncated`` (the
recording stopped).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space, empty_part

TRANSITION = "transition"
TRAJECTORY = "trajectory"


def hash_unit(value: str) -> int:
    """Return the unit id of a column's value: the first 64 bits of its SHA-256.

    Example:
        >>> hash_unit("patient 7") == hash_unit("patient 7") != hash_unit("patient 8")
        True
    """
    return int.from_bytes(hashlib.sha256(value.encode()).digest()[:8], "big")


def as_part(name: str, value: ArrayLike) -> NDArray[Any]:
    """Return observations or actions in their canonical type.

    Args:
        name: what the array is, for the message.
        value: (N, O) numbers of a Box, or integers of a Discrete (N,) or MultiDiscrete (N, O)
            space.

    Returns:
        float32 (N, O), or int64 (N,) or (N, O).

    Raises:
        ConfigError: another shape or type.
    """
    array = np.asarray(value)
    if array.ndim in (1, 2) and array.dtype.kind in "iu":
        return array.astype(np.int64, copy=False)
    if array.ndim == 2 and array.dtype.kind in "fb":
        with np.errstate(over="ignore"):
            return array.astype(np.float32, copy=False)
    raise ConfigError(
        f"{name} must be (N, O) numbers or (N,) integers, got {array.dtype} {array.shape}"
    )


def _set_columns(
    target: Any, *, parts: Sequence[str], steps: dict[str, type], units: str = "unit_ids"
) -> None:
    """Replace the arrays of a frozen dataclass by their canonical types."""
    for name in parts:
        object.__setattr__(target, name, as_part(name, getattr(target, name)))
    for name, dtype in {**steps, units: np.uint64}.items():
        with np.errstate(over="ignore"):
            array: NDArray[Any] = np.asarray(getattr(target, name)).astype(dtype, copy=False)
        if array.ndim != 1:
            raise ConfigError(f"{name} must have one axis, got shape {array.shape}")
        object.__setattr__(target, name, array)


def _check_lengths(target: Any, expected: dict[str, int]) -> None:
    wrong = [
        f"{name} has {len(getattr(target, name))} rows, not {rows}"
        for name, rows in expected.items()
        if len(getattr(target, name)) != rows
    ]
    if wrong:
        raise ConfigError(f"{type(target).__name__}: {'; '.join(wrong)}")


_STEP_TYPES: dict[str, type] = {
    "rewards": np.float32,
    "terminated": np.bool_,
    "truncated": np.bool_,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Transitions:
    """N transitions in columns.

    Args:
        observations: (N, O) float32 (Box) or int64 (MultiDiscrete), or (N,) int64 (Discrete).
        actions: (N, A) float32 or int64, or (N,) int64.
        rewards: (N,).
        next_observations: as ``observations``.
        terminated: (N,) bool: no future after this step.
        truncated: (N,) bool: the recording stopped after this step.
        unit_ids: (N,) uint64, what one person contributes.

    Raises:
        ConfigError: the arrays do not fit together.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    next_observations: NDArray[Any]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    unit_ids: NDArray[np.uint64]

    def __post_init__(self) -> None:
        _set_columns(
            self, parts=("observations", "actions", "next_observations"), steps=_STEP_TYPES
        )
        _check_lengths(self, {field.name: len(self.rewards) for field in fields(self)})
        if self.observations.shape[1:] != self.next_observations.shape[1:]:
            raise ConfigError(
                f"next_observations has rows of shape {self.next_observations.shape[1:]},"
                f" observations of {self.observations.shape[1:]}"
            )

    def __len__(self) -> int:
        return len(self.rewards)

    def select(self, indices: NDArray[Any] | slice) -> Self:
        """Return the rows at ``indices`` (positions, a mask or a slice)."""
        return type(self)(**{f.name: getattr(self, f.name)[indices] for f in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence["Transitions"]) -> Self:
        """Return the rows of ``parts`` one after the other.

        Raises:
            ConfigError: ``parts`` is empty.
        """
        if not parts:
            raise ConfigError("parts must hold at least one set of transitions, got none")
        names = [field.name for field in fields(cls)]
        return cls(**{n: np.concatenate([getattr(part, n) for part in parts]) for n in names})


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectories:
    """K trajectories of T_1 .. T_K steps in columns, the final observations kept.

    Args:
        observations: (sum(T_k + 1), O) float32 or int64, or (sum(T_k + 1),) int64.
        actions: (sum T_k, A) float32 or int64, or (sum T_k,) int64.
        rewards: (sum T_k,).
        terminated: (sum T_k,) bool.
        truncated: (sum T_k,) bool.
        offsets: (K + 1,) int64, where each trajectory's steps begin; the last is sum T_k.
        unit_ids: (K,) uint64.

    Raises:
        ConfigError: the arrays do not fit together.
    """

    observations: NDArray[Any]
    actions: NDArray[Any]
    rewards: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    unit_ids: NDArray[np.uint64]

    def __post_init__(self) -> None:
        _set_columns(
            self, parts=("observations", "actions"), steps={**_STEP_TYPES, "offsets": np.int64}
        )
        offsets = self.offsets
        if len(offsets) == 0 or offsets[0] != 0 or np.any(np.diff(offsets) < 0):
            raise ConfigError("offsets must start at 0 and never fall")
        count, steps = len(offsets) - 1, int(offsets[-1])
        step_rows = dict.fromkeys(("actions", *_STEP_TYPES), steps)
        _check_lengths(self, {"observations": steps + count, "unit_ids": count, **step_rows})

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """The number of steps of each trajectory, (K,)."""
        return np.diff(self.offsets)

    def transitions(self, unit: str, *, first_row: int = 0) -> Transitions:
        """Return every step with its next observation.

        Args:
            unit: ``"transition"``: each row is a unit of its own, named by its position in the
                dataset; anything else: a row belongs to its trajectory's unit.
            first_row: position in the dataset of this part's first step.
        """
        rows = np.arange(len(self.rewards))
        trajectory = np.repeat(np.arange(len(self)), self.lengths)
        units = rows + first_row if unit == TRANSITION else self.unit_ids[trajectory]
        return Transitions(
            observations=self.observations[rows + trajectory],
            actions=self.actions,
            rewards=self.rewards,
            next_observations=self.observations[rows + trajectory + 1],
            terminated=self.terminated,
            truncated=self.truncated,
            unit_ids=units.astype(np.uint64),
        )

    def select(self, indices: Iterable[int]) -> Self:
        """Return the trajectories at ``indices``, in that order."""
        chosen = np.asarray(list(indices), dtype=np.int64)
        starts, lengths = self.offsets[:-1][chosen], self.lengths[chosen]
        steps = _ranges(starts, lengths)
        return type(self)(
            observations=self.observations[_ranges(starts + chosen, lengths + 1)],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminated=self.terminated[steps],
            truncated=self.truncated[steps],
            offsets=offsets_of(lengths),
            unit_ids=self.unit_ids[chosen],
        )

    def by_unit(self) -> Iterator[Self]:
        """Yield the trajectories of each unit, in rising order of the ids."""
        order = np.argsort(self.unit_ids, kind="stable")
        sorted_ids = self.unit_ids[order]
        whole = self if np.array_equal(order, np.arange(len(self))) else self.select(order)
        starts = np.flatnonzero(np.append(True, sorted_ids[1:] != sorted_ids[:-1]))
        for first, stop in pairwise([*starts.tolist(), len(self)] if len(self) else []):
            yield whole._between(first, stop)

    def _between(self, first: int, stop: int) -> Self:
        """Return the trajectories from ``first`` to before ``stop``, whose arrays are views."""
        low, high = int(self.offsets[first]), int(self.offsets[stop])
        return type(self)(
            observations=self.observations[low + first : high + stop],
            actions=self.actions[low:high],
            rewards=self.rewards[low:high],
            terminated=self.terminated[low:high],
            truncated=self.truncated[low:high],
            offsets=self.offsets[first : stop + 1] - low,
            unit_ids=self.unit_ids[first:stop],
        )

    def cut(self, lengths: NDArray[np.int64]) -> Self:
        """Return the first ``lengths`` steps (K,) of each trajectory (none where below zero).

        The last step left of a trajectory that is cut is marked truncated.
        """
        lengths = np.clip(lengths, 0, self.lengths)
        steps = _ranges(self.offsets[:-1], lengths)
        truncated = self.truncated.copy()
        shortened = (lengths > 0) & (lengths < self.lengths)
        truncated[(self.offsets[:-1] + lengths - 1)[shortened]] = True
        return type(self)(
            observations=self.observations[
                _ranges(self.offsets[:-1] + np.arange(len(self)), lengths + 1)
            ],
            actions=self.actions[steps],
            rewards=self.rewards[steps],
            terminated=self.terminated[steps],
            truncated=truncated[steps],
            offsets=offsets_of(lengths),
            unit_ids=self.unit_ids,
        )

    @classmethod
    def concatenate(cls, parts: Sequence["Trajectories"]) -> Self:
        """Return the trajectories of ``parts`` one after the other.

        Raises:
            ConfigError: ``parts`` is empty.
        """
        if not parts:
            raise ConfigError("parts must hold at least one set of trajectories, got none")
        names = [field.name for field in fields(cls) if field.name != "offsets"]
        joined = {n: np.concatenate([getattr(part, n) for part in parts]) for n in names}
        return cls(**joined, offsets=offsets_of(np.concatenate([part.lengths for part in parts])))


def single_steps(transitions: Transitions) -> Trajectories:
    """Return each transition as a trajectory of one step, truncated where it does not terminate."""
    pairs = np.stack([transitions.observations, transitions.next_observations], axis=1)
    return Trajectories(
        observations=pairs.reshape(-1, *pairs.shape[2:]),
        actions=transitions.actions,
        rewards=transitions.rewards,
        terminated=transitions.terminated,
        truncated=transitions.truncated | ~transitions.terminated,
        offsets=np.arange(len(transitions) + 1),
        unit_ids=transitions.unit_ids,
    )


def no_trajectories(observation_space: Space, action_space: Space) -> Trajectories:
    """Return no trajectories, of the types and shapes of their spaces' rows."""
    return Trajectories(
        observations=empty_part(observation_space),
        actions=empty_part(action_space),
        rewards=np.empty(0, dtype=np.float32),
        terminated=np.empty(0, dtype=np.bool_),
        truncated=np.empty(0, dtype=np.bool_),
        offsets=np.zeros(1, dtype=np.int64),
        unit_ids=np.empty(0, dtype=np.uint64),
    )


def offsets_of(lengths: ArrayLike) -> NDArray[np.int64]:
    """Return where runs of ``lengths`` begin, (K + 1,), the total last.

    Example:
        >>> offsets_of([2, 3]).tolist()
        [0, 2, 5]
    """
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int64)


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``starts[0], starts[0] + 1, ...`` for each start, one after the other."""
    before = offsets_of(lengths)[:-1]
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))
