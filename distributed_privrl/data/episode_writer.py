"""Writes Minari's HDF5 file of episodes, fast; plain Minari reads it.

The h5py low-level interface creates five small arrays an episode several times faster than the
usual one.
"""

import io
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
from gymnasium.spaces import Discrete
from h5py import h5a, h5d, h5g, h5p, h5s, h5t
from numpy.typing import NDArray

from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import Trajectories, Transitions

_STEP_PARTS = (b"rewards", b"terminations", b"truncations")


def _stored(part: NDArray[Any], space: Space) -> NDArray[Any]:
    """Return rows of a part in the shape that plain Minari expects of ``space``."""
    shaped = part if isinstance(space, Discrete) else part.reshape(-1, *space.shape)
    return np.ascontiguousarray(shaped)


class _Sink(io.RawIOBase):
    """A file to HDF5, which does not survive a failed write: the error waits in ``error``.

    Once a write has failed, later ones are dropped and reads give zeros; the file is given up.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._raw = path.open("w+b", buffering=0)
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while self.error is None and done < len(view):
            try:
                done += self._raw.write(view[done:])
            except OSError as error:
                self.error = error
        return len(view)

    def readinto(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        count = self._raw.readinto(view)
        if count < len(view):
            view[count:] = bytes(len(view) - count)
        return len(view)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._raw.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        try:
            return self._raw.truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0

    def close(self) -> None:
        self._raw.close()
        super().close()


class _FileWriter:
    """A new HDF5 file; a context manager that raises ``OSError`` if any write failed."""

    def __init__(
        self, path: Path, observation_space: Space, action_space: Space, *, with_units: bool
    ) -> None:
        self._sink = _Sink(path)
        self._file = h5py.File(self._sink, "w")
        self._spaces = (observation_space, action_space)
        self._with_units = with_units
        self.episodes = 0
        self.steps = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._file.close()
            self._sink.close()
        if kind is None:
            self._check()

    def _finish(self) -> None:
        """Write what must come last."""

    def _check(self) -> None:
        """Raise the error of an earlier write."""
        if self._sink.error is not None:
            raise self._sink.error


class EpisodeWriter(_FileWriter):
    """Appends episodes to a new file; a context manager.

    Args:
        path: the file to create.
        observation_space: Box, Discrete or MultiDiscrete.
        action_space: Box, Discrete or MultiDiscrete.
        with_units: keep each episode's unit id as its attribute ``unit_id``.
    """

    def __init__(
        self, path: Path, observation_space: Space, action_space: Space, *, with_units: bool
    ) -> None:
        super().__init__(path, observation_space, action_space, with_units=with_units)
        self._types: dict[np.dtype[Any], Any] = {}
        self._scalar = h5s.create(h5s.SCALAR)
        self._timeless = h5p.create(h5p.DATASET_CREATE)
        self._timeless.set_obj_track_times(False)  # no copy of the file would leave them out

    def write(self, trajectories: Trajectories) -> None:
        """Append an episode for each trajectory."""
        observations = _stored(trajectories.observations, self._spaces[0])
        actions = _stored(trajectories.actions, self._spaces[1])
        steps = (trajectories.rewards, trajectories.terminated, trajectories.truncated)
        for k, (start, stop) in enumerate(
            zip(trajectories.offsets[:-1].tolist(), trajectories.offsets[1:].tolist(), strict=True)
        ):
            group = h5g.create(self._file.id, b"episode_%d" % self.episodes)
            self._dataset(group, b"observations", observations[start + k : stop + k + 1])
            self._dataset(group, b"actions", actions[start:stop])
            for name, values in zip(_STEP_PARTS, steps, strict=True):
                self._dataset(group, name, values[start:stop])
            h5g.create(group, b"infos")
            self._attribute(group, b"id", np.int64(self.episodes))
            self._attribute(group, b"total_steps", np.int64(stop - start))
            if self._with_units:
                self._attribute(group, b"unit_id", trajectories.unit_ids[k])
            self.episodes += 1
            self.steps += stop - start
            self._check()

    def _type(self, dtype: np.dtype[Any]) -> Any:
        if dtype not in self._types:
            self._types[dtype] = h5t.py_create(dtype, logical=True)
        return self._types[dtype]

    def _dataset(self, group: Any, name: bytes, values: NDArray[Any]) -> None:
        kind = self._type(values.dtype)
        dataset = h5d.create(
            group, name, kind, h5s.create_simple(values.shape), dcpl=self._timeless
        )
        if values.size:
            dataset.write(h5s.ALL, h5s.ALL, values, kind)

    def _attribute(self, group: Any, name: bytes, value: np.generic) -> None:
        kind = self._type(value.dtype)
        h5a.create(group, name, kind, self._scalar).write(np.asarray(value), kind)


class PackedWriter(_FileWriter):
    """Appends independent transitions to one long episode of a new file; a context manager.

    The successors lie in ``infos/next_observation``, row t for step t; ``infos/unit_id`` holds the
    units if they come from a column.
    """

    def __init__(
        self, path: Path, observation_space: Space, action_space: Space, *, with_units: bool
    ) -> None:
        super().__init__(path, observation_space, action_space, with_units=with_units)
        self._episode = self._file.create_group("episode_0")
        self._last: NDArray[Any] | None = None
        self.episodes = 1

    def _finish(self) -> None:
        if self._last is not None:
            self._append("observations", self._last)
            self._episode.attrs["id"] = 0
            self._episode.attrs["total_steps"] = self.steps

    def write(self, transitions: Transitions) -> None:
        """Append a chunk."""
        if len(transitions) == 0:
            return
        successors = _stored(transitions.next_observations, self._spaces[0])
        self._append("observations", _stored(transitions.observations, self._spaces[0]))
        self._append("actions", _stored(transitions.actions, self._spaces[1]))
        self._append("rewards", transitions.rewards)
        self._append("terminations", transitions.terminated)
        self._append("truncations", transitions.truncated)
        self._append("infos/next_observation", successors)
        if self._with_units:
            self._append("infos/unit_id", transitions.unit_ids)
        self._last = successors[-1:]
        self.steps += len(transitions)
        self._check()

    def _append(self, name: str, values: NDArray[Any]) -> None:
        if name not in self._episode:
            self._episode.create_dataset(
                name, data=values, maxshape=(None, *values.shape[1:]), chunks=True
            )
            return
        dataset = self._episode[name]
        dataset.resize(len(dataset) + len(values), axis=0)
        dataset[-len(values) :] = values
