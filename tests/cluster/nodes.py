"""The cluster of `cluster/local_nodes.py`, as a user starts it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "cluster" / "local_nodes.py"
SECONDS = 300.0


@dataclass(frozen=True)
class Nodes:
    """What the script says of the cluster.

    Args:
        variables: for a process that joins.
        dashboard: address of the Jobs API.
        script: its process.
    """

    variables: dict[str, str]
    dashboard: str
    script: int

    @property
    def folder(self) -> Path:
        return Path(self.variables["RAY_AUTH_TOKEN_PATH"]).parent

    def raylets(self) -> list[int]:
        """Return the processes of its nodes."""
        return self._processes("raylet/raylet")

    @property
    def head(self) -> int:
        """The head's process, which is told that it is one."""
        (found,) = self._processes("raylet/raylet", "\0--head\0")
        return found

    def kill_head(self) -> None:
        """End all processes of the head at once, as if its machine were gone."""
        (store,) = self._processes("gcs/gcs_server")
        head = self.head
        for pid in (store, head, *children(head)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def add_node(self) -> None:
        """Ask for another node; it is there some seconds later."""
        os.kill(self.script, signal.SIGUSR1)

    def node_of(self, worker: str) -> int:
        """Return the node under which the worker of this class runs."""
        (found,) = self.nodes_of(worker)
        return found

    def nodes_of(self, worker: str) -> set[int]:
        """Return the nodes under which workers of this class run."""
        return {
            raylet
            for raylet in self.raylets()
            for child in children(raylet)
            if f"ray::{worker}" in _command(Path(f"/proc/{child}"))
        }

    def _processes(self, *parts: str) -> list[int]:
        return [
            int(path.name)
            for path in Path("/proc").glob("[0-9]*")
            if all(part in _command(path) for part in (*parts, str(self.folder)))
        ]


def children(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""  # it ended just now


@contextmanager
def local_nodes(*, nodes: int, options: Sequence[str] = (), attempts: int = 1) -> Iterator[Nodes]:
    """Start the script, wait until all nodes are there, and interrupt it at the end.

    Args:
        nodes: beside the head.
        options: of the script.
        attempts: how often it may be started; on a busy machine Ray's head may not come up.
    """
    for _ in range(attempts):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), "--nodes", str(nodes), *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        if lines[2]:
            break
        process.wait(SECONDS)
    try:
        variables = dict(re.findall(r"(RAY_\w+)=(\S+)", "".join(lines)))
        (dashboard,) = re.findall(r"http://\S+(?=;)", lines[2])
        yield Nodes(variables, dashboard, process.pid)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def outside(variables: dict[str, str]) -> dict[str, str]:
    """Return this environment as somebody has it who joins a cluster."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return own | variables


@contextmanager
def joining(
    module: str, *words: str | Path, variables: dict[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    """Run a module as somebody who joins a cluster; its standard input and error are open.

    Args:
        module: run by ``python -m``.
        words: that follow.
        variables: of the cluster.
    """
    with subprocess.Popen(
        [sys.executable, "-m", module, *words],
        env=outside(variables),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
