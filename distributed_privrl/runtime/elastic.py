"""Groups whose actors come and go with a cluster's nodes, while their shards stay the same."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from distributed_privrl.core.errors import WorkerLostError
from distributed_privrl.core.folders import refresh_all
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.rounds.totals import total_of
from distributed_privrl.runtime.calls import LOSSES_A_CALL, losses, not_built, own_error, shareable
from distributed_privrl.runtime.metrics import show

logger = logging.getLogger(__name__)
POLL_SECONDS = 0.2


class ShardHost:
    """Builds and keeps the workers of the shards that it is given: an actor of an elastic group.

    Args:
        worker_cls: see `Executor.start`.
        shards: of the whole group: references, so that any of them may move here.
    """

    def __init__(self, worker_cls: type, shards: Sequence[Any]) -> None:
        self._worker_cls, self._shards = worker_cls, shards
        self._workers: dict[int, Any] = {}

    def begin(self) -> None:
        """End all workers: what a host had before somebody else was asked instead is old."""
        self._keep(())

    def _keep(self, shards: Collection[int]) -> None:
        for shard in set(self._workers) - set(shards):
            close = getattr(self._workers.pop(shard), "close", None)
            if close is not None:
                close()

    def call(
        self,
        method: str,
        keep: Collection[int],
        own: Mapping[int, Mapping[str, Any]],
        /,
        **shared: Any,
    ) -> list[Any]:
        """Call a method of some shards' workers; see `WorkerGroup.call`.

        Args:
            method: its name.
            keep: shards that stay here; the workers of others end.
            own: shards that are called, and the keyword arguments of each alone.
            shared: keyword arguments of all.

        Returns:
            their answers in the order of ``own``, or the sum of them where the class says in
            ``summed`` that they are sums.
        """
        self._keep(keep)
        answers = [
            getattr(self._worker(shard), method)(**shared, **arguments)
            for shard, arguments in own.items()
        ]
        if method in getattr(self._worker_cls, "summed", ()):
            return [total_of(answers, out=np.empty(len(answers[0])))]
        return answers

    def _worker(self, shard: int) -> Any:
        if shard not in self._workers:
            refresh_all()  # it may go on with what a host published that has left
            self._workers[shard] = self._worker_cls(self._shards[shard])
        return self._workers[shard]


class ElasticGroup:
    """A fixed number of shards on as many actors as a cluster has room for.

    All actors are asked for at the start. Those that find no room wait, which is what an autoscaler
    adds nodes for. Before each call those that have come take over shards, and while it runs the
    shards of one that goes move to the others and are asked again there. Shards move as little as
    an even division allows.

    It travels as the actors' names, like `RayWorkerGroup`. An actor that comes, or comes back,
    begins with nothing: what it had may be older than what others did meanwhile.

    Privacy: shards are parts of the work that are fixed before the first call, so coins, slots and
    sums are those of a group that never changed. Calls may be repeated: workers draw no noise, and
    answer the same nonce alike wherever they are.

    Args:
        names: the actors' names.
        actors: their handles, of `ShardHost`.
        shards: how many there are; as many as actors, or more.
        least: actors without which no call begins.
        recovery_seconds: how long it waits for these.
        after_call: called once a call is answered.
        on_close: called once the actors are ended.
    """

    def __init__(
        self,
        names: Sequence[str],
        actors: Sequence[Any],
        *,
        shards: int,
        least: int,
        recovery_seconds: float,
        after_call: Callable[[], None] = lambda: None,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._names, self._actors = list(names), list(actors)
        self._shards, self._least = shards, least
        self._recovery_seconds = recovery_seconds
        self._after_call, self._on_close = after_call, on_close
        self._here: dict[int, set[int]] = {}
        self._asked: dict[int, Any] = {}
        self._shown = 0
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel by name."""
        return _find_group, (self._names, self._shards, self._least, self._recovery_seconds)

    @property
    def size(self) -> int:
        """The number of shards."""
        return self._shards

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        """Call ``method`` for every shard; see `WorkerGroup.call`.

        Sums of a class that names the method in ``summed`` come one an actor.
        """
        import ray

        arguments = {name: shareable(value) for name, value in (shared or {}).items()}
        own = per_worker or [{}] * self._shards
        answers: dict[tuple[int, ...], list[Any]] = {}
        left, lost = set(range(self._shards)), Counter[int]()
        while left:
            self._await_least()
            asked = {}
            for host, duties in divide(self._shards, self._here).items():
                self._here[host] = duties
                now = {shard: own[shard] for shard in sorted(duties & left)}
                if now:
                    reference = self._actors[host].call.remote(method, duties, now, **arguments)
                    asked[host] = tuple(now), reference
            for host, (now_asked, reference) in asked.items():
                try:
                    answers[now_asked] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise own_error(error) from None
                except losses() as error:
                    self._lose(host, error)
                    lost.update(now_asked)
                    if max(lost.values()) > LOSSES_A_CALL:
                        raise WorkerLostError(
                            f"shard {now_asked[0]} lost {max(lost.values())} workers during"
                            f" {method}: look at its nodes' memory, then run again with --resume"
                        ) from error
                else:
                    left -= set(now_asked)
        self._after_call()
        return _in_order(answers)

    def _lose(self, host: int, error: Any) -> None:
        """Do without an actor until it answers again."""
        self._check_may_return(host, error)
        logger.warning("worker %d is gone; what it had moves to the others", host)
        del self._here[host]
        self._show_alive()

    def wait_for_lost(self) -> None:
        """Wait until as many actors answer as a call needs; see `WorkerGroup.wait_for_lost`."""
        for host in list(self._here):
            self._asked[host] = self._actors[host].begin.remote()
        self._here = {}
        self._await_least()

    def _await_least(self) -> None:
        """Take up actors that have come, and wait until there are as many as a call needs."""
        deadline = monotonic() + self._recovery_seconds
        self._take_up(0.0)
        while len(self._here) < self._least:
            if monotonic() >= deadline:
                raise WorkerLostError(
                    f"{len(self._here)} of at least {self._least} workers are there, and no more"
                    f" came within runtime.recovery_seconds={self._recovery_seconds:g}: look at"
                    " the cluster's nodes, then run again with --resume"
                )
            self._take_up(POLL_SECONDS)

    def _take_up(self, seconds: float) -> None:
        """Take up the actors that answer, or do so within some seconds."""
        import ray

        for host, actor in enumerate(self._actors):
            if host not in self._here and host not in self._asked:
                self._asked[host] = actor.begin.remote()
        if not self._asked:
            return
        started = monotonic()
        of = {reference: host for host, reference in self._asked.items()}
        ready, _ = ray.wait(list(of), num_returns=1, timeout=seconds)
        ready, _ = ray.wait(list(of), num_returns=len(of), timeout=0.0)
        came = len(self._here)
        for reference in ready:
            host = of[reference]
            del self._asked[host]
            try:
                ray.get(reference)
                self._here[host] = set()
            except losses() as error:
                self._check_may_return(host, error)
        self._show_alive()
        if len(self._here) == came:  # those that are being built again fail at once
            time.sleep(max(0.0, seconds - (monotonic() - started)))

    def _check_may_return(self, host: int, error: Any) -> None:
        if self._closed:
            raise WorkerLostError(f"worker {host} was ended: its group is closed") from error
        if getattr(error, "actor_init_failed", False):
            raise not_built(f"worker {host}", error) from error

    def _show_alive(self) -> None:
        """Show the cluster's operator how many answer; once where nothing changed."""
        number = 0 if self._closed else len(self._here)
        if number != self._shown:
            self._shown = number
            show(self._names[0].rpartition("-")[0], workers_alive=PublicValue(number))

    def close(self) -> None:
        """End the actors, those that still wait for room among them."""
        import ray

        self._closed = True
        self._show_alive()
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._here, self._asked = [], {}, {}
        self._on_close()


def divide(shards: int, held: Mapping[int, Collection[int]]) -> dict[int, set[int]]:
    """Divide shards evenly among hosts; each keeps what it holds as far as that allows.

    Args:
        shards: how many there are.
        held: the hosts, and what each holds; some may be held twice, or by nobody.

    Returns:
        the shards of each host: each shard once, no host with two more than another.
    """
    least, more = divmod(shards, len(held))
    divided: dict[int, set[int]] = {}
    taken: set[int] = set()
    for place, host in enumerate(sorted(held, key=lambda one: (-len(held[one]), one))):
        room = least + (place < more)
        divided[host] = set(sorted(set(held[host]) - taken)[:room])
        taken |= divided[host]
    left = [shard for shard in range(shards) if shard not in taken]
    for place, (_host, own) in enumerate(divided.items()):
        room = least + (place < more) - len(own)
        own.update(left[:room])
        left = left[room:]
    return divided


def _in_order(answers: Mapping[tuple[int, ...], list[Any]]) -> list[Any]:
    """Return answers in the order of their shards; sums in that of their first ones."""
    if any(len(shards) != len(found) for shards, found in answers.items()):
        return [found[0] for _, found in sorted(answers.items())]
    by_shard = {
        shard: answer
        for shards, found in answers.items()
        for shard, answer in zip(shards, found, strict=True)
    }
    return [by_shard[shard] for shard in sorted(by_shard)]


def _find_group(
    names: Sequence[str], shards: int, least: int, recovery_seconds: float
) -> ElasticGroup:
    import ray

    actors = [ray.get_actor(name) for name in names]
    return ElasticGroup(
        names, actors, shards=shards, least=least, recovery_seconds=recovery_seconds
    )
