"""The cluster of `cluster/local_nodes.py`, as a user starts it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "cluster" / "local_nodes.py"
SECONDS = 90.0


@dataclass(frozen=True)
class Nodes:
    """What the script says of the cluster.

    Args:
        variables: for a process that joins.
        dashboard: address of the Jobs API.
    """

    variables: dict[str, str]
    dashboard: str

    @property
    def folder(self) -> Path:
        return Path(self.variables["RAY_AUTH_TOKEN_PATH"]).parent

    def raylets(self) -> list[int]:
        """Return the processes of its nodes."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_text(errors="replace")
            except OSError:
                continue
            if "raylet/raylet" in line and str(self.folder) in line:
                found.append(int(path.parent.name))
        return found


@contextmanager
def local_nodes(*, nodes: int) -> Iterator[Nodes]:
    """Start the script, wait until all nodes are there, and interrupt it at the end."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), "--nodes", str(nodes)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        lines = [process.stdout.readline() for _ in range(3)]
        variables = dict(re.findall(r"(RAY_\w+)=(\S+)", "".join(lines)))
        (dashboard,) = re.findall(r"http://\S+(?=;)", lines[2])
        yield Nodes(variables, dashboard)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)


def outside(variables: dict[str, str]) -> dict[str, str]:
    """Return this environment as somebody has it who joins a cluster."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return own | variables
