"""Trajectories as flat rows, whose flags alone say where each ends, and back, as a stream."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.trajectories import (
    TRAJECTORY,
    Trajectories,
    Transitions,
    offsets_of,
)


def pack_rows(trajectories: Trajectories) -> Transitions:
    """Return every step in order; exactly the last of each trajectory is terminated or truncated.

    A last step that is neither is marked truncated. Each row has its trajectory's unit id.

    Raises:
        ConfigError: a trajectory has no steps, or goes on after a step that ends it.
    """
    if (trajectories.lengths == 0).any():
        raise ConfigError(
            "layout 'packed' holds no trajectories without steps: leave them out, or use layout"
            " 'episodes'"
        )
    last = trajectories.offsets[1:] - 1
    if ends_of(trajectories).sum() != ends_of(trajectories)[last].sum():
        raise ConfigError(
            "layout 'packed' needs trajectories that stop where they are terminated or truncated:"
            " split them there, or use layout 'episodes'"
        )
    truncated = trajectories.truncated.copy()
    truncated[last] |= ~trajectories.terminated[last]
    return replace(trajectories.transitions(TRAJECTORY), truncated=truncated)


def ends_of(rows: Transitions | Trajectories) -> NDArray[np.bool_]:
    """Return which steps are terminated or truncated, (N,)."""
    return rows.terminated | rows.truncated


def join_rows(rows: Transitions, lengths: NDArray[np.int64]) -> Trajectories:
    """Return rows as trajectories; the last row's successor is the final observation.

    Args:
        rows: N transitions, trajectory after trajectory.
        lengths: rows of each trajectory, (K,), all above zero; their sum is N.
    """
    offsets = offsets_of(lengths)
    count = len(lengths)
    observations = np.empty(
        (len(rows) + count, *rows.observations.shape[1:]), rows.observations.dtype
    )
    observations[np.arange(len(rows)) + np.repeat(np.arange(count), lengths)] = rows.observations
    observations[offsets[1:] + np.arange(count)] = rows.next_observations[offsets[1:] - 1]
    return Trajectories(
        observations=observations,
        actions=rows.actions,
        rewards=rows.rewards,
        terminated=rows.terminated,
        truncated=rows.truncated,
        offsets=offsets,
        unit_ids=rows.unit_ids[offsets[:-1]],
    )


def unpack_rows(chunks: Iterable[Transitions], dataset: str) -> Iterator[Trajectories]:
    """Yield the whole trajectories in chunks of packed rows.

    Args:
        chunks: rows of whole trajectories in order, cut anywhere.
        dataset: its id, for the message.

    Raises:
        StorageError: the last trajectory does not end.
    """
    open_rows: list[Transitions] = []
    for chunk in chunks:
        ends = np.flatnonzero(ends_of(chunk))
        if len(ends) == 0:
            open_rows += [chunk] if len(chunk) else []
            continue
        stop = int(ends[-1]) + 1
        before = sum(map(len, open_rows))
        rows = Transitions.concatenate([*open_rows, chunk.select(slice(stop))])
        open_rows = [chunk.select(slice(stop, None))] if stop < len(chunk) else []
        yield join_rows(rows, np.diff(ends + before + 1, prepend=0))
    if open_rows:
        raise StorageError(f"dataset {dataset!r} is damaged (its last trajectory does not end)")
