"""Trajectories as fragments: a fixed number of steps, the step before them, and a mask.

A fragment is one float32 row, so that shards, batches and workers treat it as they treat an encoded
transition: the linking step (S numbers), H steps (S numbers each), H mask numbers (1: the step
counts). A step is the row of its transition and a last number, the ``truncated`` bit as -1 or 1.

An episode that ends inside its last fragment goes on in absorbing steps, the end bits as its last
step has them and the rest zero, which count like any other: a model that never saw what follows an
end could not learn where one is.

Reference: PrivORL, section VI-A.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.shards import EncodedShard, ShardRef, group_by_unit, load_trajectories
from distributed_privrl.data.store import CHUNK_ROWS
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions, offsets_of

END_BITS = 2
"""The last numbers of a step: whether its episode terminates, and whether its recording stops."""


@dataclass(frozen=True, kw_only=True)
class FragmentLayout:
    """Where the parts of a fragment lie in its row.

    Args:
        step_width: S, numbers of a step.
        horizon: H, steps of a fragment.
    """

    step_width: int
    horizon: int

    @property
    def width(self) -> int:
        """W, numbers of a fragment's row."""
        return (self.horizon + 1) * self.step_width + self.horizon

    def split(self, rows: Any) -> tuple[Any, Any, Any]:
        """Return condition (F, S), steps (F, H, S) and mask (F, H) as views of ``rows`` (F, W).

        Args:
            rows: an array or a tensor.
        """
        steps_end = (self.horizon + 1) * self.step_width
        steps = rows[:, self.step_width : steps_end]
        return (
            rows[:, : self.step_width],
            steps.reshape(len(rows), self.horizon, self.step_width),
            rows[:, steps_end:],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedFragments:
    """Fragments, and which of them hold nothing but proper steps.

    Args:
        rows: (F, W) float32; zeros where not valid.
        valid: (F,) bool.
        unit_ids: (F,) uint64, the unit of each fragment's trajectory.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]
    unit_ids: NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class FragmentEncoder:
    """Cuts trajectories into fragments of ``horizon`` steps and encodes them.

    Args:
        transitions: encodes each step's transition.
        horizon: H, steps of a fragment.
        time_limit: public; a linking step, which never ends its episode, then says in place of its
            truncated bit how much of the limit has passed (`clock`). None: the bit stays.

    Raises:
        ConfigError: ``horizon`` or ``time_limit`` is not above zero.
    """

    transitions: TransitionEncoder
    horizon: int
    time_limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("horizon", "time_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")

    @cached_property
    def layout(self) -> FragmentLayout:
        """Where the parts of a fragment lie in its row."""
        return FragmentLayout(step_width=self.step_width, horizon=self.horizon)

    @property
    def step_width(self) -> int:
        """S, numbers of a step: those of a transition, and the truncated bit."""
        return self.transitions.width + 1

    @property
    def width(self) -> int:
        """W, numbers of a fragment's row."""
        return self.layout.width

    def clock(self, passed: NDArray[np.int64] | int) -> NDArray[np.float32]:
        """Return what stands in place of a linking step's truncated bit.

        Args:
            passed: steps of the episode up to the linking one and with it, ``(F,)``.

        Returns:
            ``(F,)``, from -1 at the start to 1 at the time limit and beyond; -1 without a limit.
        """
        share = 0.0 if self.time_limit is None else np.minimum(passed / self.time_limit, 1.0)
        return (2 * np.broadcast_to(share, np.shape(passed)) - 1).astype(np.float32)

    def encode(self, trajectories: Trajectories) -> EncodedFragments:
        """Return the fragments, trajectory after trajectory; never fails because of a value.

        Fragment k of a trajectory holds its steps kH to (k + 1)H - 1, and absorbing steps after its
        last. The last step of a trajectory that does not terminate is truncated: its recording
        ended.

        Args:
            trajectories: of the encoder's spaces.

        Returns:
            F fragments, ceil(T / H) of a trajectory of T steps. One with an improper step (see
            `TransitionEncoder.encode`), or an improper linking step, is zeros and not valid.

        Raises:
            ConfigError: the columns do not have the form of the spaces (a public fact).

        Privacy:
            A fragment depends on its own trajectory alone, and carries its unit: no trajectory's
            length or presence moves another's cuts. Nothing is released.
        """
        steps, proper = self._steps(trajectories)
        counts = -(-trajectories.lengths // self.horizon)
        trajectory = np.repeat(np.arange(len(trajectories)), counts)
        first = (np.arange(len(trajectory)) - offsets_of(counts)[trajectory]) * self.horizon
        start, left = trajectories.offsets[trajectory] + first, trajectories.lengths[trajectory]
        own = np.arange(self.horizon) < (left - first)[:, None]
        linked = first > 0

        rows = np.zeros((len(trajectory), self.width), dtype=np.float32)
        condition, fragment_steps, row_mask = self.split(rows)
        last = trajectories.offsets[trajectory + 1] - 1
        fragment_steps[..., -END_BITS:] = steps[last, None, -END_BITS:]
        valid = np.ones(len(trajectory), dtype=bool)
        for step in range(self.horizon):
            real = own[:, step]
            fragment_steps[real, step] = steps[start[real] + step]
            valid[real] &= proper[start[real] + step]
        condition[linked] = steps[start[linked] - 1]
        condition[linked, -1] = self.clock(first[linked])
        valid[linked] &= proper[start[linked] - 1]
        row_mask[:] = 1.0
        rows[~valid] = 0.0
        return EncodedFragments(rows=rows, valid=valid, unit_ids=trajectories.unit_ids[trajectory])

    def _steps(self, trajectories: Trajectories) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Return every step (N, S), and which are proper (N,)."""
        encoded = self.transitions.encode(trajectories.transitions(TRAJECTORY))
        truncated = trajectories.truncated.copy()
        last = trajectories.offsets[1:][trajectories.lengths > 0] - 1
        truncated[last] |= ~trajectories.terminated[last]
        bit = np.where(truncated, np.float32(1), np.float32(-1))
        return np.concatenate([encoded.rows, bit[:, None]], axis=1), encoded.valid

    def split(
        self, rows: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Return condition (F, S), steps (F, H, S) and mask (F, H) as views of ``rows`` (F, W)."""
        return self.layout.split(rows)

    def proper(self, chunks: Iterable[Trajectories]) -> NDArray[np.float32]:
        """Return the proper fragments ``(F, W)`` of chunks of trajectories; see `encode`."""
        encoded = [self.encode(chunk) for chunk in chunks]
        rows = [part.rows[part.valid] for part in encoded]
        return np.concatenate([np.empty((0, self.width), np.float32), *rows])

    def own_steps(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the steps ``(N, S)`` of proper fragments ``(F, W)``, absorbing ones left out."""
        _, steps, _ = self.split(rows)
        ends = (steps[..., -END_BITS:] > 0).any(axis=2)
        own: NDArray[np.float32] = steps[ends.cumsum(axis=1) - ends == 0]
        return own

    def decode_steps(
        self, steps: NDArray[np.floating[Any]]
    ) -> tuple[Transitions, NDArray[np.bool_]]:
        """Return the transitions in encoded ``steps``, and which steps end a recording.

        Args:
            steps: (N, S).

        Returns:
            N transitions, clipped as by `TransitionEncoder.decode`, each a unit, their
            ``truncated`` set; and ``truncated`` (N,): the bit is above zero.

        Raises:
            ConfigError: steps of another width.
        """
        if steps.ndim != 2 or steps.shape[1] != self.step_width:
            raise ConfigError(f"steps must be (N, {self.step_width}), got {steps.shape}")
        truncated = steps[:, -1] > 0
        decoded = self.transitions.decode(steps[:, :-1])
        return replace(decoded, truncated=truncated), truncated

    def to_json(self) -> str:
        """Return the encoder as JSON, every number exact."""
        return json.dumps(
            {
                "horizon": self.horizon,
                "time_limit": self.time_limit,
                "transitions": self.transitions.to_json(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "FragmentEncoder":
        """Return the encoder that `to_json` wrote.

        Raises:
            ConfigError: something else.
        """
        try:
            value = json.loads(text)
            return cls(
                TransitionEncoder.from_json(value["transitions"]),
                horizon=int(value["horizon"]),
                time_limit=value["time_limit"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"text is no encoder as written by to_json: {error}") from error


def load_fragments(
    ref: ShardRef,
    encoder: FragmentEncoder,
    max_fragments_per_unit: int,
    *,
    chunk_rows: int = CHUNK_ROWS,
    keep: Keep | None = None,
) -> EncodedShard:
    """Read a shard's trajectories, cut and encode them; rows are fragments, unit after unit.

    Args:
        ref: which shard; ``max_rows_per_unit`` cuts the steps of each unit before fragments are
            made, as in `load_trajectories`.
        encoder: of the dataset's spaces, with a public scaling.
        max_fragments_per_unit: public cap; of each unit's fragments, the first ones are kept.
        chunk_rows: rows read at a time.
        keep: chooses units of the shard by their ids; None: all of them.

    Raises:
        ConfigError: the cap is not above zero, or as in `load_trajectories`.
        StorageError: the dataset cannot be read.

    Privacy:
        Unit: a trajectory, or the unit column's value. Which shard a unit belongs to depends on its
        id alone, and its fragments on its own trajectories alone; all of them lie in one shard, at
        most ``max_fragments_per_unit``. Nothing is released: the result stays in the process that
        reads it.
    """
    if max_fragments_per_unit < 1:
        raise ConfigError(
            f"max_fragments_per_unit must be at least 1, got {max_fragments_per_unit}"
        )
    # A trajectory with steps makes a fragment: later trajectories than these are beyond the cap.
    trajectories = load_trajectories(
        ref,
        max_trajectories_per_unit=max_fragments_per_unit,
        chunk_rows=chunk_rows,
        keep=keep,
    )
    encoded = encoder.encode(trajectories)
    return group_by_unit(
        encoded.rows,
        encoded.valid,
        encoded.unit_ids,
        max_rows_per_unit=max_fragments_per_unit,
        units=trajectories.unit_ids,
    )
