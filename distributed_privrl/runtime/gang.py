"""Room for all workers of a run at once: a placement group, made when the first of them starts.

Runs that took CPUs one by one could each hold a part of a cluster and wait for ever for the rest.
"""

import logging
import threading
import time
from typing import Any

from distributed_privrl.core.errors import ConfigError, WorkerLostError
from distributed_privrl.runtime.session import has_autoscaler, surrounding_group

logger = logging.getLogger(__name__)
STRATEGY = "PACK"
"""On few nodes: an autoscaler then starts few."""
QUIET_SECONDS = 3.0
"""A run that waits longer says so: CPUs of processes that just ended are free within that time."""
LOOK_SECONDS = 1


class Gang:
    """Reserves what a run's workers need, all of it or nothing, while there are groups of them.

    In a placement group whose children belong to it, such as a trial's, it reserves nothing: the
    room is there already. Ray removes the placement group with the process, or actor, that made it,
    however that ends.

    Args:
        workers: how many there are at most.
        each: what one reserves, by resource; those of zero do not count.
        wait_seconds: how long others may hold what is needed.
    """

    def __init__(self, *, workers: int, each: dict[str, float], wait_seconds: float) -> None:
        self._bundle = {name: value for name, value in each.items() if value}
        self._workers, self._wait_seconds = workers, wait_seconds
        self._lock = threading.Lock()
        self._inside: set[Any] = set()
        self._group: Any = None
        self._closed = False
        if surrounding_group() is None and not has_autoscaler():
            self._check_places()

    def _check_places(self) -> None:
        """Refuse workers for which the nodes have no places, even when nobody else is there.

        Where an autoscaler runs, nodes may come, and the placement group is what they come for.

        Raises:
            ConfigError: so it is: a placement group would wait for ever.
        """
        import ray

        places = 0
        for node in ray.nodes():
            have = node["Resources"] if node["Alive"] else {}
            places += min(int(have.get(r, 0.0) / n + 1e-9) for r, n in self._bundle.items())
        if places < self._workers:
            raise ConfigError(
                f"{self._workers} workers of {_shown(self._bundle)} each do not fit on the nodes,"
                f" which have places for {places}: lower runtime.workers or what each needs"
            )

    def enter(self, group: Any) -> dict[str, Any]:
        """Let a group of workers in, and return the options that its actors are started with.

        Args:
            group: anything that is told to `leave` later.

        Raises:
            ConfigError: others held the CPUs for too long.
            WorkerLostError: the executor is closed, or was closed meanwhile.
        """
        if surrounding_group() is not None:
            return {}
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        with self._lock:
            self._check_open()
            if self._group is None:
                self._group = self._reserve()
            self._inside.add(group)
            return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group)}

    def _reserve(self) -> Any:
        """Make the placement group and wait until it is there."""
        from ray.util.placement_group import placement_group, remove_placement_group

        made = placement_group([self._bundle] * self._workers, strategy=STRATEGY)
        began, said = time.monotonic(), False
        try:
            while not made.wait(LOOK_SECONDS):
                waited = time.monotonic() - began
                self._check_open()
                if waited > self._wait_seconds:
                    raise ConfigError(
                        f"{self._needs} found no room within"
                        f" runtime.wait_seconds={self._wait_seconds:g}: others hold it, or no node"
                        " came; run again with --resume, or raise it"
                    )
                if waited > QUIET_SECONDS and not said:
                    said = True
                    logger.warning(
                        "%s wait until others have freed so much or nodes have joined, %g seconds"
                        " at most",
                        self._needs,
                        self._wait_seconds,
                    )
        except BaseException:
            remove_placement_group(made)
            raise
        if said:
            logger.warning("%s have their places", self._needs)
        return made

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerLostError("no worker was started: the executor is closed")

    @property
    def _needs(self) -> str:
        return f"{self._workers} workers of {_shown(self._bundle)} each"

    def leave(self, group: Any) -> None:
        """Free what is reserved once no group is left inside."""
        with self._lock:
            self._inside.discard(group)
            if not self._inside:
                self._free()

    def _free(self) -> None:
        from ray.util.placement_group import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def close(self) -> None:
        """Free what is reserved, and let nobody wait any longer."""
        self._closed = True
        with self._lock:
            self._inside.clear()
            self._free()


def _shown(bundle: dict[str, float]) -> str:
    return " and ".join(f"{number:g} {name}s" for name, number in bundle.items())
