"""Small tables of steps, and workers that hold them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.executor import LocalExecutor, WorkerGroup
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.shards import shard_of
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import Steps, time_groups

STATE, ACTION = Box(0, 3, (1,)), Discrete(2)


def step_bounds(
    low: float = 0.0, high: float = 3.0, step: float = 1.0, reward: float = 1.0
) -> Bounds:
    """Return bounds of one observation and of a reward from 0."""
    return Bounds(
        low=np.array([low, 0.0]),
        high=np.array([high, 1.0]),
        step=np.array([step, reward]),
        columns=("observation_0", "reward"),
    )


def few_columns(**changes: Any) -> TableColumns:
    """Return columns of an observation 0 .. 3, two actions, a reward of 0 or 1, and an end."""
    settings = {"next_observation": "absolute"} | changes
    return step_columns(STATE, ACTION, step_bounds(), **settings)


def columns_of(*, difference: bool = False, longest: int = 12) -> TableColumns:
    """Return columns of a trajectory's steps: an observation 0 .. 9, two actions, a reward."""
    bounds = Bounds(
        low=np.array([0.0, 0.0]),
        high=np.array([9.0, 1.0]),
        columns=("observation_0", "reward"),
        step=np.array([1.0, 1.0]),
    )
    steps = step_columns(
        Box(0, 9, (1,)),
        Discrete(2),
        bounds,
        next_observation="difference" if difference else "absolute",
        ends=3,
    )
    return trajectory_columns(steps, groups=time_groups(longest), previous=True, longest=longest)


def steps_of(
    rows: Sequence[tuple[float, int, float, float, bool]], units: Sequence[int] | None = None
) -> Transitions:
    """Return rows (s, a, r, s', terminated) as transitions, each a unit if nothing is said."""
    state, action, reward, after, ended = ([row[part] for row in rows] for part in range(5))
    return Transitions(
        observations=np.array(state, np.float32)[:, None],
        actions=np.array(action, np.int64),
        rewards=np.array(reward, np.float32),
        next_observations=np.array(after, np.float32)[:, None],
        terminated=np.array(ended, bool),
        truncated=np.zeros(len(rows), bool),
        unit_ids=np.arange(len(rows)) if units is None else np.array(units),
    )


@dataclass(frozen=True, eq=False)
class Listed:
    """Rows that lie in memory; of a shard those of its units, read in chunks.

    Args:
        rows: of all shards; None: there are none.
        index: which shard.
        count: number of shards.
        chunk: rows that are read at once.
    """

    rows: Transitions | None
    index: int = 0
    count: int = 1
    chunk: int = 1 << 30

    def __call__(self) -> Iterator[tuple[Steps, NDArray[np.uint64]]]:
        if self.rows is None:
            return
        own = self.rows.select(
            np.flatnonzero(shard_of(self.rows.unit_ids, self.count) == self.index)
        )
        for start in range(0, len(own), self.chunk):
            part = own.select(slice(start, start + self.chunk))
            yield Steps(part), part.unit_ids


def count_specs(
    rows: Transitions | None,
    columns: TableColumns,
    *,
    workers: int = 1,
    cap: int = 1,
    most: int | None = None,
    chunk: int = 1 << 30,
) -> list[CountSpec]:
    """Return what workers are built from that share the rows."""
    return [
        CountSpec(
            source=Listed(rows, index, workers, chunk),
            columns=columns,
            rows_per_unit=cap,
            max_rows_per_unit=most,
        )
        for index in range(workers)
    ]


def group(rows: Transitions | None, columns: TableColumns, **settings: Any) -> WorkerGroup:
    """Return workers that hold the rows."""
    return LocalExecutor().start(CountWorker, count_specs(rows, columns, **settings))


def column_counts(
    rows: Transitions | None, columns: TableColumns, **settings: Any
) -> NDArray[np.int64]:
    """Return the counts of single columns over all workers."""
    answers = group(rows, columns, **settings).call("columns")
    return np.asarray(np.sum(answers, axis=0, dtype=np.int64))


def joint_counts(
    rows: Transitions | None, columns: TableColumns, clique: tuple[int, ...], **settings: Any
) -> NDArray[np.int64]:
    """Return the joint counts of a clique, over bins that are the cells, over all workers."""
    asked = {"bins": [np.arange(size) for size in columns.sizes], "cliques": [clique]}
    answers = group(rows, columns, **settings).call("tables", asked)
    return np.asarray(np.sum([one[0] for one in answers], axis=0, dtype=np.int64))
