"""A Ray cluster of several nodes on this machine: `python cluster/local_nodes.py`.

It listens on loopback, asks for a token, and ends what it started, and nothing else, on Ctrl-C.
SIGUSR1 adds a node, as an autoscaler would.
"""

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SECONDS = 600.0
HOST = "127.0.0.1"
STARTED = "Ray runtime started."
STORE_BYTES = 100 * 2**20


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


@dataclass
class Node:
    """A node that was asked for; Ray gives one up that needs half a minute, and it is asked again.

    Args:
        folder: of the cluster, where what the node says lies.
        cpus: that it has.
        where: arguments that say whether it is the head, or which one it joins.
    """

    folder: Path
    cpus: int
    where: Sequence[str]

    def __post_init__(self) -> None:
        self._log = self.folder / f"node-{secrets.token_hex(4)}.log"
        self._deadline = time.monotonic() + SECONDS
        self.process = self._begun()

    def is_there(self) -> bool:
        """Say whether the node has started; one that Ray gave up is begun again, for a while."""
        if STARTED in self.said():
            return True
        if self.has_ended() and not self.is_late():
            self.kill()
            self.process = self._begun()
        return False

    def has_ended(self) -> bool:
        """Say whether nothing of it runs any more."""
        return self.process.poll() is not None

    def is_late(self) -> bool:
        """Say whether nothing comes of it any more."""
        return time.monotonic() > self._deadline

    def said(self) -> str:
        """Return what it has said."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End at once whatever is left of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _begun(self) -> subprocess.Popen[bytes]:
        """Start its processes, a group of their own."""
        kept = ("RAY_USE_TLS", "RAY_TLS_", "RAY_worker_niceness")
        own = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RAY_") or name.startswith(kept)
        }
        own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.folder / "token")}
        options = [f"--num-cpus={self.cpus}", f"--node-ip-address={HOST}"]
        options += [f"--object-store-memory={STORE_BYTES}"]
        options += [f"--dashboard-agent-listen-port={free_port()}"]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                [*command, *self.where, *options],
                env=own | {"RAY_USAGE_STATS_ENABLED": "0"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def wait_for(nodes: Sequence[Node]) -> None:
    """Wait until the last node has started: on a busy machine minutes.

    Raises:
        SystemExit: it does not in time, or the head has ended.
    """
    head, last = nodes[0], nodes[-1]
    while not last.is_there():
        for one, ended in ((last, last.is_late()), (head, head is not last and head.has_ended())):
            if ended:
                raise SystemExit(one.said())
        time.sleep(0.1)


def end(nodes: Sequence[Node]) -> None:
    """End nodes, the last one first."""
    for node in reversed(nodes):
        node.process.terminate()
    for node in reversed(nodes):
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.process.wait(20)
        node.kill()


def main() -> None:
    """Start the nodes, say how they are reached, and end them when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, help="beside the head")
    parser.add_argument("--cpus", type=int, default=1, help="of each of them")
    parser.add_argument("--head-cpus", type=int, default=0, help="of the head")
    parser.add_argument(
        "--no-dashboard", action="store_true", help="start sooner; no job can be submitted"
    )
    options = parser.parse_args()
    asked, more = threading.Event(), threading.Semaphore(0)
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: asked.set())
    signal.signal(signal.SIGUSR1, lambda *_: more.release())
    with tempfile.TemporaryDirectory(prefix="ray") as name:  # names of sockets are short
        folder, port, dashboard = Path(name), free_port(), free_port()
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        head = ["--head", f"--port={port}", f"--temp-dir={folder}"]
        head += [f"--dashboard-port={dashboard}"]
        head += ["--include-dashboard=false"] if options.no_dashboard else []
        nodes = [Node(folder, options.head_cpus, head)]
        try:
            wait_for(nodes)
            # The head tells what all log: they share its folder.
            joins = [f"--address={HOST}:{port}", "--include-log-monitor=false"]
            for _ in range(options.nodes):  # one after the other: many at once are too slow for Ray
                nodes.append(Node(folder, options.cpus, joins))
                wait_for(nodes)
            print(f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}")
            print(f"export RAY_ADDRESS={HOST}:{port}   # privrl run")
            print(
                f"# privrl submit --address http://{HOST}:{dashboard}; Ctrl-C ends all,"
                f" kill -USR1 {os.getpid()} adds a node",
                flush=True,
            )
            added: list[Node] = []
            while not asked.wait(0.2):
                if more.acquire(blocking=False):
                    added.append(Node(folder, options.cpus, joins))
                    nodes.append(added[-1])
                added = [node for node in added if not (node.is_there() or node.is_late())]
        finally:
            end(nodes)


if __name__ == "__main__":
    main()
