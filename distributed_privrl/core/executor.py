"""The seam between what runs and where it runs.

A worker is a plain class, built from one shard (a reference to data, never arrays) in the process
where it lives. `LocalExecutor` keeps workers in this process; ``runtime.RayExecutor`` makes actors
of the same classes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol


class WorkerGroup(Protocol):
    """Workers of one class, one for each shard."""

    @property
    def size(self) -> int:
        """The number of workers."""
        ...

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call ``method`` on every worker and return the results in shard order.

        Args:
            method: name of a method of the worker class.
            shared: keyword arguments given to every worker; arrays arrive read-only.
            per_worker: keyword arguments for each worker, in shard order.

        Raises:
            WorkerLostError: a worker died and the group was started with
                ``repeat_lost_calls=False`` (``may_return`` is then true); or it did not come back.
        """
        ...

    def wait_for_lost(self) -> None:
        """Wait until every worker that died has been built again.

        Raises:
            WorkerLostError: one did not come back.
        """
        ...

    def close(self) -> None:
        """End the workers."""
        ...


class Executor(Protocol):
    """Starts groups of workers."""

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> WorkerGroup:
        """Start one ``worker_cls(shard)`` for each shard.

        Args:
            worker_cls: a plain class whose constructor takes one shard.
            shards: picklable references; a shard may hold another `WorkerGroup`.
            repeat_lost_calls: a worker that died is rebuilt from its shard and its call repeated.
                Only for workers that draw no noise and charge nothing. Otherwise the worker is
                rebuilt too, but the call raises ``WorkerLostError``.
            service: the worker mostly waits for others and reserves no CPU or GPU of its own.
        """
        ...

    def close(self) -> None:
        """End every group that is still alive."""
        ...


class DeferredExecutor:
    """An executor that is started when it is needed: a run that is refused before needs none.

    Args:
        start: starts it; what it raises, `begin` raises.
    """

    def __init__(self, start: Callable[[], Executor]) -> None:
        self._start = start
        self._started: Executor | None = None

    def begin(self) -> Executor:
        """Return the executor, started now unless it was before."""
        if self._started is None:
            self._started = self._start()
        return self._started

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> WorkerGroup:
        """Start workers; see `Executor.start`."""
        return self.begin().start(
            worker_cls, shards, repeat_lost_calls=repeat_lost_calls, service=service
        )

    def close(self) -> None:
        """Close the executor, if it was started."""
        if self._started is not None:
            self._started.close()


def begin(executor: Executor) -> None:
    """Start an executor that was deferred, so that what refuses it does so now."""
    if isinstance(executor, DeferredExecutor):
        executor.begin()


class LocalWorkerGroup:
    """Workers in this process, called one after the other."""

    def __init__(self, workers: Sequence[Any]) -> None:
        self._workers = list(workers)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._workers)

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call ``method`` on every worker; see `WorkerGroup.call`."""
        shared = shared or {}
        per_worker = per_worker or [{}] * len(self._workers)
        return [
            getattr(worker, method)(**shared, **own)
            for worker, own in zip(self._workers, per_worker, strict=True)
        ]

    def wait_for_lost(self) -> None:
        """Return at once: workers in this process do not die alone."""

    def close(self) -> None:
        """Close the workers that have something to close."""
        for worker in self._workers:
            close = getattr(worker, "close", None)
            if close is not None:
                close()
        self._workers = []


class LocalExecutor:
    """Runs workers in the calling process: no Ray, no copies, the same results."""

    def __init__(self) -> None:
        self._groups: list[LocalWorkerGroup] = []

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> LocalWorkerGroup:
        """Build one worker a shard in this process; see `Executor.start`."""
        group = LocalWorkerGroup([worker_cls(shard) for shard in shards])
        self._groups.append(group)
        return group

    def close(self) -> None:
        """Close every group."""
        for group in self._groups:
            group.close()
        self._groups = []
