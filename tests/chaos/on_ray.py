"""Runs of every method on nodes of this machine: their processes, nodes and drivers are killed."""

import contextlib
import json
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distributed_privrl.core.random import Streams
from tests.chaos.disturbed import disturb
from tests.chaos.faults import Fault, Struck
from tests.chaos.keyed import ready_for_forks, shorten_models, take_for_real
from tests.chaos.methods import WORLDS
from tests.chaos.outcomes import UNDISTURBED, BrokenError, Record, Row, told
from tests.chaos.places import MOST_SECONDS, Place, verify_place
from tests.chaos.points import exit_code
from tests.chaos.records import record_draws
from tests.cluster.nodes import Nodes, children, local_nodes

DRIVER, NODE = "driver", "node"
DRAWS = "PRIVRL_CHAOS_DRAWS"
RUNTIME = {"executor": "ray", "workers": 1, "recovery_seconds": 300.0}
GONE_SECONDS = 600.0
"""How long a cluster may take to end what a run left, and a node to come."""
POLL_SECONDS = 0.05
_TITLE = re.compile(rb"ray::(?:.*:)?([A-Z]\w+)")


def prepare_process() -> None:
    """Make a process of the cluster one that follows the key and tells what it draws."""
    shorten_models()
    take_for_real()
    record_draws(Path(os.environ[DRAWS]))


class Cluster:
    """The nodes, and what runs on them.

    Args:
        nodes: a head without CPUs, and two of one CPU each.
    """

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self._raylets = nodes.raylets()  # looking for them takes long

    def actors(self) -> dict[int, str]:
        """Return the class of each process that an actor lives in."""
        return {pid: one for raylet in self._raylets for pid, one in self._actors(raylet).items()}

    def _actors(self, raylet: int) -> dict[int, str]:
        found = {}
        with contextlib.suppress(OSError):
            for pid in children(raylet):
                title = _TITLE.match(Path(f"/proc/{pid}/cmdline").read_bytes())
                if title and title[1] != b"IDLE" and not title[1].endswith(b"Agent"):
                    found[pid] = title[1].decode()
        return found

    def join(self, draws: Path) -> None:
        """Let this process's runs be drivers of the cluster, whose processes are prepared."""
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]  # such as the token of a Ray that this process would have started
        os.environ.update(self.nodes.variables)
        from distributed_privrl.runtime import session

        session.prepare_environment()
        import ray

        init = ray.init

        def prepared(**options: Any) -> Any:
            environment = options.pop("runtime_env")
            environment["env_vars"] |= {DRAWS: str(draws)}
            environment["worker_process_setup_hook"] = "tests.chaos.on_ray.prepare_process"
            return init(runtime_env=environment, **options)

        ray.init = prepared
        session.check_token_needed = lambda _: None  # takes a process that imports Ray

    def kill(self, name: str, generator: np.random.Generator) -> bool:
        """Kill a process of this class; False: there is none."""
        own = sorted(pid for pid, one in self.actors().items() if one == name)
        if not own:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(generator.choice(own)), signal.SIGKILL)
        return True

    def kill_node(self, generator: np.random.Generator) -> bool:
        """Kill a node that a run has processes on; another one is asked for.

        Returns:
            False: there is none.
        """
        found = [one for one in self._raylets if one != self.nodes.head and self._actors(one)]
        if not found:
            return False
        raylet = int(generator.choice(sorted(found)))
        self._raylets = [one for one in self._raylets if one != raylet]
        for pid in (raylet, *children(raylet)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.nodes.add_node()
        return True

    def wait_until_calm(self) -> None:
        """Wait until all nodes are there and nothing of a run is left on them.

        Raises:
            BrokenError: something stays, or a node stays away.
        """
        end = time.monotonic() + GONE_SECONDS
        while (left := self.actors()) or len(self._raylets) < 3:
            self._raylets = self.nodes.raylets()
            if time.monotonic() > end:
                raise BrokenError(f"left on the cluster: {sorted(left.values())}")
            time.sleep(0.5)


class RayPlace(Place):
    """Where one method's runs on the cluster are disturbed.

    Args:
        method: its name.
        work: a folder of its own.
        cluster: that they run on.
    """

    unit = "steps"

    def __init__(self, method: str, work: Path, cluster: Cluster) -> None:
        super().__init__(method, work)
        self._cluster = cluster
        self._local = Place(method, work / "local")
        self._steps: set[str] = set()
        self._lives = work / "lives.json"

    def fresh(self) -> None:
        """Bring the world back; its configuration says where it runs."""
        super().fresh()
        self._steps = set()
        path = self.bench.world / "run.yaml"
        values = yaml.safe_load(path.read_text())
        values["runtime"] |= RUNTIME
        path.write_text(yaml.safe_dump(values, sort_keys=False))

    def prepare(self, fault: Fault | None) -> None:
        """Make this process a driver of the cluster; see `Place.prepare`."""
        super().prepare(fault)
        self._cluster.join(self.draws)

    def steps(self) -> int:
        """Return how far the run is, however busy the machine: what it drew, and files it made.

        How often a file is written anew does not count: a busy machine's eyes see each time.
        """
        out = self.bench.world / "out"
        for path in out.rglob("*"):
            if not any(part.startswith(".") for part in path.relative_to(out).parts):
                self._steps.add(str(path))
        drawn = self.draws.read_bytes().count(b"\n") if self.draws.exists() else 0
        return len(self._steps) + drawn

    def measure(self) -> float:
        """Run undisturbed, here and on the cluster, once; return the steps of the run there.

        Raises:
            BrokenError: what it learned there is not what it learned here.
        """
        if self._lives.exists():
            return float(self._known_lives()[DRIVER][1])
        self._local.measure()
        shutil.copyfile(self._local.reference, self.reference)
        self.fresh()
        begin, pid = time.monotonic(), self.start()
        lives = {DRIVER: (0, 0)}
        while (code := exit_code(pid, block=False)) is None:
            here, now = self._cluster.actors().values(), self.steps()
            for one in (DRIVER, *here, *(NODE for _ in here)):
                lives[one] = (lives.get(one, (now, now))[0], now)
            _end_late(pid, begin)
            time.sleep(POLL_SECONDS)
        if code:
            raise BrokenError(f"undisturbed: exit {code}: {self.bench.log.read_text()[-600:]}")
        verify_place(self, spent=False)
        self._cluster.wait_until_calm()
        self._lives.write_text(json.dumps(lives))
        return float(lives[DRIVER][1])

    def lives(self) -> dict[str, tuple[int, int]]:
        """Return the steps of an undisturbed run between which processes were there, by class."""
        self.measure()
        return self._known_lives()

    def _known_lives(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = json.loads(self._lives.read_text())
        return found

    def undisturbed(self) -> Row:
        """Return the row of a run that nothing happened to."""
        return {self.unit: self.measure(), "ended": "by itself", "lost": 0}

    def due(self, fault: Fault, share: float) -> float:
        """Return after how many steps a fault is due; see `Place.due`."""
        first, last = self.lives()[fault.victim]
        return first + share * (last - first)

    def hold(self, pid: int, fault: Fault, due: float) -> int | None:
        """Wait until the run is so far, and its victim there; see `Place.hold`."""
        begin = time.monotonic()
        while (code := exit_code(pid, block=False)) is None:
            there = self._cluster.actors().values() if fault.victim != DRIVER else (DRIVER,)
            if (fault.victim in there or (there and fault.victim == NODE)) and self.steps() >= due:
                break
            _end_late(pid, begin)
            time.sleep(POLL_SECONDS)
        return code

    def check_after(self) -> None:
        """Check that nothing of the run is left on the cluster."""
        self._cluster.wait_until_calm()


def _end_late(pid: int, begin: float) -> None:
    if time.monotonic() - begin > MOST_SECONDS:
        os.kill(pid, signal.SIGKILL)


def _fault(cluster: Cluster, victim: str, generator: np.random.Generator) -> Fault:
    def strike(struck: Struck) -> bool | None:
        if victim == DRIVER:
            return struck.signal(signal.SIGKILL)
        if victim == NODE:
            return cluster.kill_node(generator)
        return cluster.kill(victim, generator)

    codes = (-signal.SIGKILL,) if victim == DRIVER else (0,)
    return Fault(name=f"SIGKILL of {victim}", strike=strike, codes=codes, victim=victim)


def killed_on_ray(
    work: Path, *, seed: int, until: float, methods: Sequence[str] = tuple(WORLDS)
) -> Iterator[Row]:
    """Yield what came of each kill; those in the record are not repeated.

    Each method's driver, a node of its and one process of each class that it has are killed.

    Args:
        work: folder of worlds and the record.
        seed: of when they are.
        until: of the monotonic clock; later nothing is killed any more.
        methods: their names.
    """
    record, streams = Record(work / "outcomes.jsonl", "method", "fault"), Streams(seed)
    if time.monotonic() > until:
        yield from record.rows()
        return
    ready_for_forks()
    with local_nodes(nodes=2, options=("--no-dashboard",), attempts=5) as nodes:
        cluster = Cluster(nodes)
        for method in methods:
            place, row = RayPlace(method, work / method, cluster), {"method": method}
            found = record.once(row | {"fault": UNDISTURBED}, place.undisturbed, until=until)
            if found is not None:
                yield found
            if found is None or found["error"]:
                continue
            for victim in (DRIVER, NODE, *sorted(set(place.lives()) - {DRIVER, NODE})):
                generator = streams.numpy(f"{method} {victim}")
                share = float(generator.uniform(0.02, 0.9))
                fault = _fault(cluster, victim, generator)
                known, happens = {"fault": fault.name, "share": share}, partial(disturb, place)
                found = record.once(row | known, partial(happens, fault, share), until=until)
                if found is not None:
                    yield found


def ray_cells(
    work: Path, *, seed: int, until: float, methods: Sequence[str] = tuple(WORLDS)
) -> list[Row]:
    """Kill on the cluster; return a row of the table for each kind of process.

    Args:
        work: folder of worlds and the record.
        seed: of when they are killed.
        until: of the monotonic clock; later nothing is killed any more.
        methods: their names.
    """
    kinds: Counter[str] = Counter()

    def counted() -> Iterator[Row]:
        for row in killed_on_ray(work, seed=seed, until=until, methods=methods):
            kinds[row["fault"]] += 1
            yield row

    everywhere = {UNDISTURBED, *(f"SIGKILL of {one}" for one in (DRIVER, NODE))}
    return told(
        counted(),
        planned=lambda name: len(methods) if name in everywhere else kinds[name],
        where="on Ray",
    )
