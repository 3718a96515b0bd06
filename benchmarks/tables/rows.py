"""Rows of a stored dataset, real or synthetic, under the names of their table's columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import CATEGORY, Rows
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION


@dataclass(frozen=True, kw_only=True)
class Naming:
    """How the columns of a dataset are called, and which of a Box's numbers are none.

    Args:
        observation: columns of an observation.
        action: of an action.
        whole: numbers that are whole by their nature (hours, miles), ``reward`` among them.
        flags: numbers of an observation that are 0 or 1.
        one_hot: categories of an observation, and the columns of 0 and 1 that hold each.
    """

    observation: Sequence[str]
    action: Sequence[str]
    whole: Sequence[str] = ()
    flags: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str]] = field(default_factory=dict)


def read_rows(store: DatasetStore, dataset: str, naming: Naming) -> Rows:
    """Return a dataset's transitions; real and synthetic ones are treated alike.

    A user who knows that a column is a flag, a category or whole rounds it after the export, and so
    do we. The successor of a terminal row is nobody's concern and missing.

    Args:
        store: where it lies.
        dataset: its id.
        naming: of its columns.
    """
    info = store.info(dataset)
    alone = TRANSITION if info.kind == "transitions" else TRAJECTORY
    read = store.read_transitions(dataset, unit=info.unit_column or alone)
    before = _state(read.observations, info.observation_space, naming)
    after = _state(read.next_observations, info.observation_space, naming)
    gone = np.broadcast_to(read.terminated[:, None], after.shape)
    after = after.mask(gone).add_prefix("next_")
    action = _columns(read.actions, naming.action)
    if not isinstance(info.action_space, Box):
        action = action.astype(CATEGORY)
    reward = np.round(read.rewards) if "reward" in naming.whole else read.rewards
    ends = read.terminated | read.truncated
    frame = pd.concat(
        [
            before,
            action,
            pd.Series(reward.astype(np.float64), name="reward"),
            after,
            pd.Series(read.terminated.astype(np.int64), name="terminated").astype(CATEGORY),
        ],
        axis=1,
    )
    return Rows(
        frame=frame,
        state=tuple(map(str, before)),
        action=tuple(map(str, action)),
        successor=tuple(map(str, after)),
        units=read.unit_ids.astype(np.uint64),
        ends=ends,
    )


def _state(observations: NDArray[np.generic], space: Space, naming: Naming) -> pd.DataFrame:
    """Return observations as numbers and categories; a one-hot category is one column."""
    frame = _columns(observations, naming.observation)
    if not isinstance(space, Box):
        return frame.astype(CATEGORY)
    for name in naming.whole:
        if name in frame:
            frame[name] = frame[name].round()
    for name in naming.flags:
        frame[name] = (frame[name] > 0.5).astype(np.float64).astype(CATEGORY)
    for name, columns in naming.one_hot.items():
        values = frame[list(columns)].to_numpy()
        frame[name] = pd.Series(values.argmax(axis=1).astype(np.float64)).astype(CATEGORY)
        frame = frame.drop(columns=list(columns))
    return frame


def _columns(part: NDArray[np.generic], names: Sequence[str]) -> pd.DataFrame:
    wide = part.reshape(len(part), -1).astype(np.float64)
    return pd.DataFrame(dict(zip(names, wide.T, strict=True)))
