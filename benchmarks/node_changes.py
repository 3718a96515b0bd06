"""How long an elastic run does without a node that comes, and with one that goes.

The cluster is `cluster/local_nodes.py`: a head without CPUs and nodes of one CPU, all on this
machine. The product's own elastic group has two parts, whose workers answer at once. A node is
added as an autoscaler would, and goes in two ways: all of its processes are killed, which breaks
its connections, or they are stopped, as when a machine loses its network. What is
timed is how soon Ray's list of nodes has changed, and how soon a call of both parts is answered
again: by both nodes, or by the one that is left.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Result
from distributed_privrl.runtime.elastic import ElasticGroup
from distributed_privrl.runtime.executor import RayExecutor

SCRIPT = Path(__file__).parents[1] / "cluster" / "local_nodes.py"
PARTS = 2
SECONDS = 600.0
POLL_SECONDS = 0.05
FULL_TURNS = 2


class Beacon:
    """Says under which node it runs.

    Args:
        part: that it is.
    """

    def __init__(self, part: int) -> None:
        self.part = part

    def raylet(self) -> int:
        """Return the process of its node."""
        return os.getppid()


@contextmanager
def cluster() -> Iterator[int]:
    """Start a head and one node, have this process join them, and yield the script's process."""
    words = [sys.executable, str(SCRIPT), "--nodes", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        said = "".join(script.stdout.readline() for _ in range(3))
        os.environ |= dict(re.findall(r"(RAY_\w+)=(\S+)", said))
        try:
            yield script.pid
        finally:
            script.send_signal(signal.SIGINT)


def since(start: float, done: Callable[[], bool]) -> float:
    """Return the seconds from ``start`` until ``done``."""
    while not done():
        if time.monotonic() - start > SECONDS:
            raise SystemExit(f"nothing came within {SECONDS:g} s: look at the load")
        time.sleep(POLL_SECONDS)
    return time.monotonic() - start


def known_nodes() -> int:
    """Return how many nodes Ray takes for alive."""
    import ray

    return sum(node["Alive"] for node in ray.nodes())


def join(group: ElasticGroup, script: int) -> tuple[float, float]:
    """Add a node; return seconds until Ray has it, and until it answers for a part."""
    before, start = known_nodes(), time.monotonic()
    os.kill(script, signal.SIGUSR1)
    known = since(start, lambda: known_nodes() > before)
    return known, since(start, lambda: len(set(group.call("raylet"))) == PARTS)


def lose(group: ElasticGroup, first: int, *, silent: bool) -> tuple[float, float]:
    """Lose the node that is not ``first``; return seconds until Ray knows, and until an answer."""
    (raylet,) = set(group.call("raylet")) - {first}
    processes = [*children(raylet), raylet]
    before, start = known_nodes(), time.monotonic()
    for process in processes:
        os.kill(process, signal.SIGSTOP if silent else signal.SIGKILL)
    try:
        if set(group.call("raylet")) != {first}:
            raise SystemExit("a node that is gone has answered")
        answered = time.monotonic() - start
        return since(start, lambda: known_nodes() < before), answered
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def cell(what: str, found: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return a row of the table, with each turn's seconds."""
    return {
        "a node": what,
        "s until Ray knows": [known for known, _ in found],
        "s until all parts are answered": [answered for _, answered in found],
        "load": round(os.getloadavg()[0], 1),
    }


def run(quick: bool) -> Result:
    """Add nodes and lose them."""
    turns = 1 if quick else FULL_TURNS
    joins, losses, silences = [], [], []
    with cluster() as script:
        executor = RayExecutor(workers=PARTS, least=1, recovery_seconds=SECONDS)
        group = executor.start(Beacon, list(range(PARTS)), repeat_lost_calls=True)
        assert isinstance(group, ElasticGroup)
        first = group.call("raylet")[0]
        for _ in range(turns):
            for found, silent in ((losses, False), (silences, True)):
                joins.append(join(group, script))
                found.append(lose(group, first, silent=silent))
                print("joined", joins[-1], "gone", found[-1], flush=True)
        group.close()
        executor.close()
    cells = [cell("joins", joins), cell("is killed", losses), cell("falls silent", silences)]
    ratios = {
        f"seconds_{name}": sorted(answered for _, answered in found)[len(found) // 2]
        for name, found in (("joins", joins), ("killed", losses), ("silent", silences))
    }
    return Result(
        cells=cells,
        ratios=ratios,
        notes=[
            f"{len(joins)} nodes joined, one after the other; {turns} were killed and {turns} fell"
            " silent. The ratios are medians of the seconds until all parts are answered."
            " All nodes are on one machine: a cloud's time to start one is not in it, nor is that"
            " of reading units."
        ],
    )


if __name__ == "__main__":
    harness.main("node_changes", run)
