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
from pathlib import Path

SECONDS = 60.0
HOST = "127.0.0.1"
STARTED = "Ray runtime started."
STORE_BYTES = 100 * 2**20


def free_port() -> int:
    """Return a port that nothing listens at."""
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def wait_for(nodes: int, folder: Path) -> None:
    """Wait until so many nodes say that they have started."""
    deadline = time.monotonic() + SECONDS
    while (folder / "nodes.log").read_text(errors="replace").count(STARTED) < nodes:
        if time.monotonic() > deadline:
            raise SystemExit((folder / "nodes.log").read_text(errors="replace"))
        time.sleep(0.1)


def start_node(folder: Path, cpus: int, where: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start one node; its processes are a group of their own, and its words lie in ``folder``."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    options = [f"--num-cpus={cpus}", f"--node-ip-address={HOST}"]
    options += [f"--object-store-memory={STORE_BYTES}"]
    options += [f"--dashboard-agent-listen-port={free_port()}"]
    with (folder / "nodes.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where, *options],
            env=own | {"RAY_USAGE_STATS_ENABLED": "0"},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def end(nodes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End nodes, the last one first."""
    for node in reversed(nodes):
        node.terminate()
    for node in reversed(nodes):
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(node.pid, signal.SIGKILL)
        node.wait()


def main() -> None:
    """Start the nodes, say how they are reached, and end them when asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=2, help="beside the head")
    parser.add_argument("--cpus", type=int, default=1, help="of each of them; the head has none")
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
        nodes = [start_node(folder, 0, [*head, f"--dashboard-port={dashboard}"])]
        try:
            wait_for(1, folder)
            address = [f"--address={HOST}:{port}"]
            for _ in range(options.nodes):  # one after the other: many at once are too slow for Ray
                nodes.append(start_node(folder, options.cpus, address))
                wait_for(len(nodes), folder)
            print(f"export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={token}")
            print(f"export RAY_ADDRESS={HOST}:{port}   # privrl run")
            print(
                f"# privrl submit --address http://{HOST}:{dashboard}; Ctrl-C ends all,"
                f" kill -USR1 {os.getpid()} adds a node",
                flush=True,
            )
            while not asked.wait(0.2):
                if more.acquire(blocking=False):
                    nodes.append(start_node(folder, options.cpus, address))
        finally:
            end(nodes)


if __name__ == "__main__":
    main()
