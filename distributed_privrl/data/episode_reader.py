"""Reads Minari's HDF5 file of episodes, ours or plain Minari's, a chunk at a time.

The h5py low-level interface opens and reads five small arrays an episode three times faster than
the usual one.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from h5py import h5a, h5d, h5g, h5i, h5s, h5t
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.bombs import size_on_disk
from distributed_privrl.data.hdf5 import check_array, check_own, open_hdf5
from distributed_privrl.data.spaces import part_width, row_shape
from distributed_privrl.data.trajectories import Trajectories, Transitions, offsets_of

FILE_NAME = "main_data.hdf5"
_SUCCESSORS = b"next_observation"
_SUCCESSORS_PATH = b"infos/next_observation"

Keep = Callable[[NDArray[np.uint64]], NDArray[np.bool_]]


@dataclass(frozen=True)
class _Piece:
    """Consecutive steps of one episode."""

    episode: int
    start: int
    stop: int
    first_row: int


class EpisodeReader:
    """Reads episodes, ours or plain Minari's; a context manager.

    Args:
        path: the file.
        dataset: its id, for messages.
        observation_space: as stored (a Dict of Boxes is read as one flat Box).
        action_space: as stored.

    Raises:
        StorageError: the file cannot be read or is damaged.
        ValueError: while it is read: something in it points to another file, or declares more than
            the file holds.
    """

    def __init__(
        self,
        path: Path,
        dataset: str,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
    ) -> None:
        self._stack = ExitStack()
        self._file = self._stack.enter_context(open_hdf5(path))
        self._size = size_on_disk(path)
        self._dataset = dataset
        self._spaces = {b"observations": observation_space, b"actions": action_space}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def check_count(self, episodes: int) -> None:
        """Check that the file may have as many episodes as its metadata say.

        Raises:
            StorageError: it has fewer.
        """
        if not 0 <= episodes <= len(self._file):
            raise StorageError(
                f"dataset {self._dataset!r} is damaged: its metadata say {episodes} episodes, its"
                f" file has {len(self._file)}; write it again"
            )

    def lengths(self, episodes: int) -> NDArray[np.int64]:
        """Return the number of steps of each episode, (K,)."""
        rewards = (self._opened(self._group(i), b"rewards").shape[0] for i in range(episodes))
        return np.fromiter(rewards, dtype=np.int64, count=episodes)

    def unit_ids(self, episodes: int) -> NDArray[np.uint64]:
        """Return the unit id of each episode, (K,), as the writer was given it."""
        ids = np.empty(episodes, dtype=np.uint64)
        for i in range(episodes):
            h5a.open(self._group(i), b"unit_id").read(ids[i : i + 1].reshape(()))
        return ids

    def trajectories(
        self,
        lengths: NDArray[np.int64],
        unit_ids: NDArray[np.uint64],
        *,
        chunk_rows: int,
        keep: Keep | None,
        most_rows: int | None = None,
    ) -> Iterator[Trajectories]:
        """Yield whole episodes, about ``chunk_rows`` steps at a time.

        Args:
            lengths: steps of each episode, (K,).
            unit_ids: (K,).
            chunk_rows: steps held at a time; a longer episode is held whole.
            keep: chooses among unit ids; episodes of other units are not read.
            most_rows: of an episode; a longer one is read as far, and marked truncated.

        Raises:
            ConfigError: the set holds packed transitions, not trajectories.
        """
        if len(lengths) and self._packed(self._group(0)):
            raise ConfigError(
                f"dataset {self._dataset!r} holds independent transitions, not trajectories:"
                " read it by rows, with unit transition"
            )
        chosen = np.arange(len(lengths)) if keep is None else np.flatnonzero(keep(unit_ids))
        taken = lengths if most_rows is None else np.minimum(lengths, most_rows)
        block = offsets_of(taken[chosen])[:-1] // chunk_rows
        for episodes in np.split(chosen, np.flatnonzero(np.diff(block)) + 1):
            if len(episodes):
                found = self._begun(episodes, taken[episodes], unit_ids[episodes])
                cut = taken[episodes] < lengths[episodes]
                found.truncated[(found.offsets[1:] - 1)[cut]] = True
                yield found

    def _begun(
        self, episodes: NDArray[np.int64], lengths: NDArray[np.int64], unit_ids: NDArray[np.uint64]
    ) -> Trajectories:
        """Read the first steps of each episode, ``(K,)`` of them, and what follows the last."""
        groups = [self._group(i) for i in episodes.tolist()]
        whole = [(group, 0, int(n)) for group, n in zip(groups, lengths, strict=True)]
        return Trajectories(
            observations=self._part(b"observations", whole, extra=1),
            actions=self._part(b"actions", whole),
            rewards=self._column(b"rewards", whole, np.float32),
            terminated=self._flags(b"terminations", whole),
            truncated=self._flags(b"truncations", whole),
            offsets=offsets_of(lengths),
            unit_ids=unit_ids,
        )

    def transitions(
        self,
        lengths: NDArray[np.int64],
        unit_ids: NDArray[np.uint64] | None,
        *,
        chunk_rows: int,
        keep: Keep | None,
    ) -> Iterator[Transitions]:
        """Yield the steps in chunks of at most ``chunk_rows``.

        Args:
            lengths: steps of each episode, (K,).
            unit_ids: (K,), or None: each row is a unit, named by its position.
            chunk_rows: rows held at a time.
            keep: chooses among unit ids; episodes of other units are not read.
        """
        kept = np.ones(len(lengths), dtype=bool)
        if unit_ids is not None and keep is not None:
            kept = keep(unit_ids)
        for pieces in _plan(lengths, kept, chunk_rows):
            chunk = self._chunk(pieces, unit_ids)
            if unit_ids is None and keep is not None:
                chunk = chunk.select(keep(chunk.unit_ids))
            yield chunk

    def _chunk(self, pieces: list[_Piece], unit_ids: NDArray[np.uint64] | None) -> Transitions:
        parts = [(self._group(piece.episode), piece.start, piece.stop) for piece in pieces]
        lengths = np.array([piece.stop - piece.start for piece in pieces])
        if unit_ids is None:
            ranges = [p.first_row + np.arange(p.stop - p.start) for p in pieces]
            units = np.concatenate(ranges).astype(np.uint64)
        else:
            units = np.repeat(unit_ids[[piece.episode for piece in pieces]], lengths)
        observations = self._part(b"observations", parts, extra=1)
        rows = np.arange(int(lengths.sum())) + np.repeat(np.arange(len(pieces)), lengths)
        successors = observations[rows + 1]
        self._replace_successors(successors, parts)
        return Transitions(
            observations=observations[rows],
            actions=self._part(b"actions", parts),
            rewards=self._column(b"rewards", parts, np.float32),
            next_observations=successors,
            terminated=self._flags(b"terminations", parts),
            truncated=self._flags(b"truncations", parts),
            unit_ids=units,
        )

    def _replace_successors(
        self, successors: NDArray[Any], parts: list[tuple[Any, int, int]]
    ) -> None:
        """Take s' from the infos where an episode packs independent transitions."""
        end = 0
        for group, start, stop in parts:
            begin, end = end, end + stop - start
            if self._packed(group):
                source = self._opened(group, _SUCCESSORS_PATH)
                kind = h5t.py_create(successors.dtype)
                self._read(source, start, stop, successors[begin:end], kind)

    def _group(self, episode: int) -> Any:
        name = b"episode_%d" % episode
        check_own(self._file.id, name)
        return h5g.open(self._file.id, name)

    def _opened(self, group: Any, name: bytes) -> Any:
        """Return an array of an episode that lies in the file."""
        check_own(group, name)
        array = h5d.open(group, name)
        check_array(array, self._size)
        return array

    def _packed(self, group: Any) -> bool:
        """Say whether the infos hold a successor for each step; Minari's own infos hold T + 1."""
        if not group.links.exists(b"infos"):
            return False
        infos = h5g.open(group, b"infos")  # its links stay valid as long as it is held
        if not infos.links.exists(_SUCCESSORS):
            return False
        successors = self._opened(group, _SUCCESSORS_PATH)
        return bool(successors.shape[:1] == self._opened(group, b"rewards").shape)

    def _part(
        self, name: bytes, parts: list[tuple[Any, int, int]], *, extra: int = 0
    ) -> NDArray[Any]:
        """Read observations or actions; ``extra`` rows after the last step of each part."""
        space = self._spaces[name]
        parts = [(group, start, stop + extra) for group, start, stop in parts]
        if isinstance(space, Discrete):
            return self._column(name, parts, np.int64)
        if isinstance(space, MultiDiscrete):
            return self._column(name, parts, np.int64, *row_shape(space))
        leaves = {name: space}
        if isinstance(space, Dict):
            leaves = {name + b"/" + key.encode(): leaf for key, leaf in space.spaces.items()}
        columns = [
            self._column(leaf_name, parts, np.float32, part_width(leaf))
            for leaf_name, leaf in leaves.items()
            if isinstance(leaf, Box)
        ]
        return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)

    def _flags(self, name: bytes, parts: list[tuple[Any, int, int]]) -> NDArray[np.bool_]:
        if parts and self._opened(parts[0][0], name).dtype == np.bool_:
            return self._column(name, parts, np.bool_)
        return np.asarray(self._column(name, parts, np.float32) != 0)

    def _column(
        self, name: bytes, parts: list[tuple[Any, int, int]], dtype: type, width: int | None = None
    ) -> NDArray[Any]:
        """Read rows of one array from each part, (sum of rows,) or (sum of rows, width)."""
        total = sum(stop - start for _, start, stop in parts)
        out: NDArray[Any] = np.empty((total,) if width is None else (total, width), dtype=dtype)
        kind, end = h5t.py_create(np.dtype(dtype), logical=True), 0
        for group, start, stop in parts:
            begin, end = end, end + stop - start
            self._read(self._opened(group, name), start, stop, out[begin:end], kind)
        return out

    def _read(self, source: Any, start: int, stop: int, out: NDArray[Any], kind: Any) -> None:
        """Read rows ``start`` to ``stop`` of ``source`` into ``out``, whose row size must fit."""
        shape = source.shape
        if not shape or shape[0] < stop or math.prod(shape[1:]) * (stop - start) != out.size:
            raise StorageError(
                f"dataset {self._dataset!r} is damaged: {h5i.get_name(source).decode()} has shape"
                f" {shape}, which does not fit its space or its rewards; write it again"
            )
        if stop == start:
            return
        if start == 0 and stop == shape[0]:
            source.read(h5s.ALL, h5s.ALL, out, kind)
            return
        count = (stop - start, *shape[1:])
        chosen = source.get_space()
        chosen.select_hyperslab((start, *[0] * (len(shape) - 1)), count)
        source.read(h5s.create_simple(count), chosen, out, kind)


def _plan(
    lengths: NDArray[np.int64], kept: NDArray[np.bool_], chunk_rows: int
) -> Iterator[list[_Piece]]:
    """Yield chunks of pieces with at most ``chunk_rows`` steps; only a long episode is cut."""
    first_rows = offsets_of(lengths)[:-1]
    pieces: list[_Piece] = []
    held = 0
    for episode in np.flatnonzero(kept & (lengths > 0)).tolist():
        length, first_row = int(lengths[episode]), int(first_rows[episode])
        if held and held + length > chunk_rows:
            yield pieces
            pieces, held = [], 0
        for start in range(0, length, chunk_rows):
            stop = min(start + chunk_rows, length)
            pieces.append(_Piece(episode, start, stop, first_row + start))
            held += stop - start
            if held >= chunk_rows:
                yield pieces
                pieces, held = [], 0
    if pieces:
        yield pieces
