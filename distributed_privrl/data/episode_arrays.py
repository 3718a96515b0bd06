"""A file of episodes, as Minari writes them, as arrays of one row a step."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.memory import check_fits
from distributed_privrl.data.bombs import size_on_disk

EPISODE = "episode"
"""Name of the array that numbers the episodes."""
_GROUP = re.compile(r"episode_(\d+)")
_STEPS = "rewards"
_BEFORE = "next_"


def episodes_of(file: Any) -> tuple[str, ...]:
    """Return the groups of a file's episodes, in their order; none where it has arrays of rows.

    Args:
        file: an open HDF5 file.
    """
    numbers = [int(match[1]) for match in map(_GROUP.fullmatch, file) if match]
    return tuple(f"episode_{number}" for number in sorted(numbers))


def array_names(file: Any, episodes: Sequence[str]) -> list[str]:
    """Return the names of the arrays that can be read.

    Args:
        file: an open HDF5 file.
        episodes: its groups, as `episodes_of` returns them.
    """
    import h5py

    names: list[str] = []
    file[episodes[0]].visititems(
        lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None
    )
    observed = [name for name in names if name.split("/")[0] == "observations"]
    return [*names, *(_BEFORE + name for name in observed), EPISODE]


def read_array(file: Any, episodes: Sequence[str], name: str) -> NDArray[Any]:
    """Return an array of one row a step, episode after episode.

    An episode of T steps has T + 1 observations: the first T are those that steps begin with, the
    last T those that they lead to, under the name ``next_observations``.

    Args:
        file: an open HDF5 file.
        episodes: its groups.
        name: of `array_names`.

    Raises:
        ValueError: an episode lacks the array, or has another number of rows than of rewards.
    """
    lengths = [len(_stored(file, f"{episode}/{_STEPS}")) for episode in episodes]
    if name == EPISODE:
        return np.repeat(np.arange(len(episodes)), lengths)
    led = name.startswith(f"{_BEFORE}observations")
    stored = name.removeprefix(_BEFORE) if led else name
    begins = int(led)
    parts = []
    for episode, length in zip(episodes, lengths, strict=True):
        values = _stored(file, f"{episode}/{stored}")
        if len(values) not in ({length + 1} if led else {length, length + 1}):
            raise ValueError(f"{episode}/{stored} has {len(values)} rows for {length} rewards")
        parts.append(values[begins : begins + length])
    return np.concatenate(parts)


def _stored(file: Any, path: str) -> NDArray[Any]:
    from h5py import h5d

    from distributed_privrl.data.hdf5 import check_array, check_own

    check_own(file.id, path.encode())
    size = check_array(h5d.open(file.id, path.encode()), size_on_disk(Path(file.filename)))
    check_fits(f"{file.filename}: {path}", size)
    return np.asarray(file[path])
