"""Trajectories as flat rows, whose flags alone say where each ends, and back, as a stream."""

import sys
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


def unpack_rows(
    chunks: Iterable[Transitions], dataset: str, *, most_rows: int | None = None
) -> Iterator[Trajectories]:
    """Yield the whole trajectories in chunks of packed rows.

    Args:
        chunks: rows of whole trajectories in order, cut anywhere.
        dataset: its id, for the message.
        most_rows: of a trajectory; a longer one is cut there and marked truncated, and what is left
            out needs no memory beyond that of a chunk.

    Raises:
        StorageError: the last trajectory does not end.
    """
    most = sys.maxsize if most_rows is None else most_rows
    open_rows: list[Transitions] = []  # of the trajectory that has not ended, `most` of them
    for chunk in chunks:
        room = most - sum(map(len, open_rows))
        ends = np.flatnonzero(ends_of(chunk))
        if len(ends) == 0:
            open_rows += [chunk.select(slice(room))] if len(chunk) and room else []
            continue
        first, stop = int(ends[0]) + 1, int(ends[-1]) + 1
        parts = [*open_rows, chunk.select(slice(min(first, room)))]
        lengths = np.append(sum(map(len, parts)), np.diff(ends))
        rows = Transitions.concatenate([*parts, chunk.select(slice(first, stop))])
        if first > room:
            rows.truncated[lengths[0] - 1] = True
        after = slice(stop, stop + most if most_rows is not None else None)
        open_rows = [chunk.select(after)] if stop < len(chunk) else []
        whole = join_rows(rows, lengths)
        yield whole.cut(np.minimum(lengths, most)) if (lengths > most).any() else whole
    if open_rows:
        raise StorageError(f"dataset {dataset!r} is damaged (its last trajectory does not end)")
