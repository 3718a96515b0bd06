"""The executor whose workers are Ray actors of the same plain classes."""

import itertools
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError, WorkerLostError
from distributed_privrl.core.folders import refresh_all, working_copies
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.runtime.arriving import arriving
from distributed_privrl.runtime.calls import LOSSES_A_CALL, losses, not_built, own_error, shareable
from distributed_privrl.runtime.elastic import ElasticGroup, ShardHost
from distributed_privrl.runtime.gang import Gang
from distributed_privrl.runtime.metrics import show
from distributed_privrl.runtime.session import connect, has_autoscaler, is_cluster, room

logger = logging.getLogger(__name__)
# Ray restarts a process that died and never repeats what it was doing: a call that draws noise or
# charges must not run twice unasked.
# No events of calls are kept: they would count private rounds, and time them, for whoever looks.
ACTOR_OPTIONS = {"max_restarts": -1, "max_task_retries": 0, "enable_task_events": False}
ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""A bit of what every head has; no placement group holds any, so such an actor lies outside."""
POLL_SECONDS = 0.2


class RayWorkerGroup:
    """Actors of one class, one for each shard.

    It travels as the actors' names: a server that is restarted finds its workers again, and nothing
    that it is built from lies in the object store.

    Args:
        names: the actors' names, in shard order.
        actors: their handles.
        repeat_lost_calls: see `Executor.start`.
        recovery_seconds: how long an actor may take to come back, from when it is missed.
        after_call: called once a call is answered.
        on_close: called once the actors are ended.
    """

    def __init__(
        self,
        names: Sequence[str],
        actors: Sequence[Any],
        *,
        repeat_lost_calls: bool,
        recovery_seconds: float,
        after_call: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._names = list(names)
        self._actors = list(actors)
        self._repeat = repeat_lost_calls
        self._recovery_seconds = recovery_seconds
        self._after_call, self._on_close = after_call, on_close
        self._closed = False
        self._shown = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by name."""
        return _find_group, (self._names, self._repeat, self._recovery_seconds)

    @property
    def size(self) -> int:
        """The number of workers."""
        return len(self._actors)

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call ``method`` on every actor; see `WorkerGroup.call`.

        A large shared array is put into the object store once. A lost call is repeated on the
        restarted actor only if the group allows it, and at most ``LOSSES_A_CALL`` times.
        """
        arguments = {name: shareable(value) for name, value in (shared or {}).items()}
        own = per_worker or [{}] * len(self._actors)

        def submit(index: int) -> Any:
            return getattr(self._actors[index], method).remote(**arguments, **own[index])

        self._show_alive(self.size)
        references = [submit(index) for index in range(len(self._actors))]
        answers = [
            self._answer(index, method, reference, submit)
            for index, reference in enumerate(references)
        ]
        self._after_call()
        return answers

    def _answer(self, index: int, method: str, reference: Any, submit: Callable[[int], Any]) -> Any:
        """Return the answer behind a reference, or of the call's repetition."""
        import ray

        for lost in itertools.count(1):
            try:
                return ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise own_error(error) from None
            except losses() as error:
                self._check_may_return(index, error)
                if not self._repeat or lost > LOSSES_A_CALL:
                    times = "" if lost == 1 else f" {lost} times"
                    raise WorkerLostError(
                        f"worker {index} of {self.size} died{times} during {method}: look at its"
                        " node's memory, then run again with --resume",
                        may_return=not self._repeat,
                    ) from error
            logger.warning("worker %d died during %s; it is restarted", index, method)
            self._show_alive(self.size - 1)
            self._wait_for(index)
            self._show_alive(self.size)
            reference = submit(index)
        raise AssertionError("unreachable")

    def _show_alive(self, number: int) -> None:
        """Show the cluster's operator how many answer; once where nothing changed."""
        if number != self._shown and self._names:
            self._shown = number
            show(self._names[0].rpartition("-")[0], workers_alive=PublicValue(number))

    def wait_for_lost(self) -> None:
        """Wait until every actor that died answers again; see `WorkerGroup.wait_for_lost`."""
        for index in range(self.size):
            self._wait_for(index)

    def _wait_for(self, index: int) -> None:
        """Wait until an actor that is missed from now on is built and answers."""
        import ray

        deadline = monotonic() + self._recovery_seconds
        while True:
            left = max(0.0, deadline - monotonic())
            try:
                ray.get(self._actors[index].__ray_ready__.remote(), timeout=left)
                return
            except (*losses(), ray.exceptions.GetTimeoutError) as error:
                self._check_may_return(index, error)
                if monotonic() >= deadline:
                    raise WorkerLostError(
                        f"worker {index} of {self.size} died and did not come back within"
                        f" runtime.recovery_seconds={self._recovery_seconds:g}: look at its node,"
                        " then run again with --resume"
                    ) from error
            time.sleep(POLL_SECONDS)

    def _check_may_return(self, index: int, error: Any) -> None:
        """Raise if an actor that is missed will never come back: it would fail again."""
        if self._closed:
            raise WorkerLostError(f"worker {index} was ended: its group is closed") from error
        if getattr(error, "actor_init_failed", False):
            raise not_built(f"worker {index} of {self.size}", error) from error

    def close(self) -> None:
        """End the actors."""
        import ray

        self._closed = True
        self._show_alive(0)
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        self._on_close()


def _find_group(
    names: Sequence[str], repeat_lost_calls: bool, recovery_seconds: float
) -> RayWorkerGroup:
    import ray

    actors = [ray.get_actor(name) for name in names]
    return RayWorkerGroup(
        names, actors, repeat_lost_calls=repeat_lost_calls, recovery_seconds=recovery_seconds
    )


class RayExecutor:
    """Starts groups of Ray actors.

    Those that reserve CPUs lie in one placement group; see `Gang`.

    Args:
        workers: how many workers the largest group will have, to size a local Ray.
        least: workers with which a group begins whose calls may be repeated; the others join it
            when the cluster has room for them, and leave it when it has not. See `ElasticGroup`.
            None: as many as ``workers``, which no group does without.
        cpus_per_worker: logical CPUs a worker.
        gpus_per_worker: GPUs a worker.
        recovery_seconds: how long a worker that died may take to be built again.
        wait_seconds: how long others may hold the CPUs that the workers need.
        address: a cluster's address; None starts a local Ray (or reads ``RAY_ADDRESS``).

    Raises:
        ConfigError: the placement group that this process lies in, or the cluster, which has no
            autoscaler, has fewer CPUs or GPUs than the least workers ask for; it would wait for
            ever.
    """

    def __init__(
        self,
        *,
        workers: int = 2,
        least: int | None = None,
        cpus_per_worker: float = 1.0,
        gpus_per_worker: float = 0.0,
        recovery_seconds: float = RuntimeConfig().recovery_seconds,
        wait_seconds: float = RuntimeConfig().wait_seconds,
        address: str | None = None,
    ) -> None:
        self._workers, self._least = workers, least or workers
        needed = self._least * cpus_per_worker
        local_cpus = max(os.cpu_count() or 1, math.ceil(needed))
        self._ray = connect(address=address, cpus=local_cpus)
        self._cpus, self._gpus = cpus_per_worker, gpus_per_worker
        self._recovery_seconds = recovery_seconds
        self._groups: list[RayWorkerGroup | ElasticGroup] = []
        resources = room()
        grows = has_autoscaler()
        for name, need in (("CPU", needed), ("GPU", self._least * gpus_per_worker)):
            have = resources.get(name, 0.0)
            if need > have + 1e-9 and not grows:
                raise ConfigError(
                    f"{self._least} workers need {need:g} {name}s but Ray has {have:g}: lower"
                    f" runtime.workers or runtime.{name.lower()}s_per_worker"
                )
        self._gang = Gang(
            workers=self._least,
            each={"CPU": cpus_per_worker, "GPU": gpus_per_worker},
            wait_seconds=wait_seconds,
        )

    def start(
        self,
        worker_cls: type,
        shards: Sequence[Any],
        *,
        repeat_lost_calls: bool = False,
        service: bool = False,
    ) -> RayWorkerGroup | ElasticGroup:
        """Start one actor a shard, or as many as there is room for; see `Executor.start`.

        Calls are never retried by Ray itself. Files of a run in an object store are where a worker
        is built, and here once its call is answered.

        Raises:
            ConfigError: others held the CPUs for longer than ``wait_seconds``.
        """
        options: dict[str, Any] = {
            **ACTOR_OPTIONS,
            "num_cpus": 0 if service else self._cpus,
            "num_gpus": 0 if service else self._gpus,
        }
        if getattr(worker_cls, "spread", False):
            options["scheduling_strategy"] = "SPREAD"
        elif getattr(worker_cls, "on_head", False):
            options |= {"resources": ON_THE_HEAD, "scheduling_strategy": "DEFAULT"}
        place = object()
        leave = partial(self._gang.leave, place)
        inside = options if service else options | self._gang.enter(place)
        least = max(1, self._least * len(shards) // self._workers)
        group: RayWorkerGroup | ElasticGroup
        if least < len(shards) and repeat_lost_calls and not service:
            most = self._most_hosts(least, len(shards))
            given = [(worker_cls, list(shards))]
            names, actors = self._actors(worker_cls.__name__, ShardHost, inside, given * least)
            more, others = self._actors(
                worker_cls.__name__, ShardHost, options, given * (most - least)
            )
            group = ElasticGroup(
                names + more,
                actors + others,
                shards=len(shards),
                least=least,
                recovery_seconds=self._recovery_seconds,
                after_call=refresh_all,
                on_close=leave,
            )
        else:
            own = [(shard,) for shard in shards]
            names, actors = self._actors(worker_cls.__name__, worker_cls, inside, own)
            group = RayWorkerGroup(
                names,
                actors,
                repeat_lost_calls=repeat_lost_calls,
                recovery_seconds=self._recovery_seconds,
                after_call=refresh_all,
                on_close=leave,
            )
        self._groups.append(group)
        return group

    def _actors(
        self, label: str, cls: type, options: Mapping[str, Any], given: Sequence[tuple[Any, ...]]
    ) -> tuple[list[str], list[Any]]:
        """Start an actor for each tuple of arguments; return their names and handles."""
        actor_cls = self._ray.remote(**options)(arriving(cls, working_copies()))
        names = [f"{label}-{uuid.uuid4().hex}" for _ in given]
        actors = [
            actor_cls.options(name=name).remote(*own)
            for name, own in zip(names, given, strict=True)
        ]
        return names, actors

    def _most_hosts(self, least: int, shards: int) -> int:
        """Return how many hosts to ask for: what cannot grow gets no more than it has room for."""
        if is_cluster():
            return shards
        have = int(room().get("CPU", 0.0) / self._cpus + 1e-9)
        return min(shards, max(least, have))

    def close(self) -> None:
        """End every group; a Ray that was joined or started stays up for the process."""
        for group in self._groups:
            group.close()
        self._groups = []
        self._gang.close()
