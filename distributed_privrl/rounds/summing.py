"""Clipped sums of many workers, added up on the way to the server."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from distributed_privrl.core.config import summing_processes
from distributed_privrl.core.executor import Executor, WorkerGroup
from distributed_privrl.rounds.totals import PartialSums
from distributed_privrl.rounds.worker import LocalUpdateWorker, WorkerSpec


def start_workers(executor: Executor, specs: Sequence[WorkerSpec], *, fan_in: int) -> WorkerGroup:
    """Start the workers of private rounds; where they are many, with actors that add up for them.

    Args:
        executor: where they run.
        specs: of the workers, in their order.
        fan_in: up to so many answer the server itself. More are divided into as many parts as the
            square root of their number, and a `PartialSums` answers for each.

    Returns:
        a group whose ``clipped_sum`` gives sums that are together those of all workers.
    """
    processes = summing_processes(len(specs), fan_in)
    if not processes:
        return executor.start(LocalUpdateWorker, specs, repeat_lost_calls=True)
    bounds = np.linspace(0, len(specs), processes + 1).astype(int)
    parts = [
        executor.start(LocalUpdateWorker, specs[first:last], repeat_lost_calls=True)
        for first, last in itertools.pairwise(bounds)
    ]
    return SummedWorkers(
        executor.start(PartialSums, parts, repeat_lost_calls=True, service=True), parts
    )


class SummedWorkers:
    """A group of `PartialSums` and the workers behind them.

    Args:
        sums: answers for the workers.
        parts: the workers, as `sums` has them.
    """

    def __init__(self, sums: WorkerGroup, parts: Sequence[WorkerGroup]) -> None:
        self._sums, self._parts = sums, list(parts)

    @property
    def size(self) -> int:
        """The number of answers to a call."""
        return self._sums.size

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call a method of `PartialSums`; see `WorkerGroup.call`."""
        return self._sums.call(method, shared, per_worker)

    def wait_for_lost(self) -> None:
        """Wait until every process that died has been built again; see `WorkerGroup`."""
        for group in (*self._parts, self._sums):
            group.wait_for_lost()

    def close(self) -> None:
        """End them all."""
        for group in (self._sums, *self._parts):
            group.close()
