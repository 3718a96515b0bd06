"""A Ray of one node, started as an operator does."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def wait_for(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing listens at port {port}"
            time.sleep(0.05)
        else:
            return


@contextmanager
def whole_ray(*more: str, **environment: str) -> Iterator[str]:
    """Start a Ray of one node as an operator does, on loopback; yield its address."""
    port = free_port()
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with tempfile.TemporaryDirectory(prefix="ray") as folder:  # paths of sockets are short
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        options = ["--include-dashboard=false", "--num-cpus=1", "--object-store-memory=80000000"]
        process = subprocess.Popen(
            [
                *command,
                *options,
                "--node-ip-address=127.0.0.1",
                f"--port={port}",
                f"--temp-dir={folder}",
                *more,
            ],
            env=own | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            wait_for(port)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
