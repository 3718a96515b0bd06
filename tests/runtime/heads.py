"""A Ray of one node, started as an operator does."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.gates.around_ray import Dashboard

SECONDS = 120.0
ATTEMPTS = 5
"""So often a head is begun that Ray gives up: it does so after half a minute."""
KEPT = "RAY_worker_niceness"
STARTED = "Ray runtime started."
LATE_SECONDS = 300.0
"""That a dashboard's ten processes may take on a busy machine."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@contextmanager
def _listening(
    command: Sequence[str | Path],
    port: int,
    given: Mapping[str, str],
    log: Path,
    seconds: float = SECONDS,
    says: str = "",
) -> Iterator[str]:
    """Run a command in a group of its own until it is no longer needed.

    Args:
        command: that listens at ``port`` of loopback.
        port: this one.
        given: variables, beside this process's own that are not Ray's.
        log: file of what it says.
        seconds: that it may take to listen.
        says: what must be in its log by then.

    Yields:
        its address.
    """
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") or name == KEPT
    }
    with log.open("w") as file:
        process = subprocess.Popen(
            command, env=own | dict(given), stdout=file, stderr=file, start_new_session=True
        )
    try:
        deadline = time.monotonic() + seconds
        while not _listens(port) or says not in log.read_text(errors="replace"):
            ended = process.poll() is not None or time.monotonic() > deadline
            assert not ended, log.read_text(errors="replace")
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def whole_ray(*more: str, patient: bool = True, **environment: str) -> Iterator[str]:
    """Start a Ray of one node as an operator does, on loopback; yield its address.

    Args:
        more: arguments of `ray start`.
        patient: wait until all of it is there, and begin again where Ray gives it up; else until
            something listens.
        environment: of its processes.
    """
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="ray") as folder,  # paths of sockets are short
        contextlib.ExitStack() as stack,
    ):
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
        options = ["--include-dashboard=false", "--num-cpus=1", "--object-store-memory=80000000"]
        place = ["--node-ip-address=127.0.0.1", f"--port={port}", f"--temp-dir={folder}"]
        words = [*command, *options, *place, *more]
        log, says = Path(folder) / "head.txt", STARTED if patient else ""
        for attempt in range(1, ATTEMPTS + 1):
            one = _listening(words, port, environment, log, says=says)
            try:
                address = stack.enter_context(one)
                break
            except AssertionError:
                if attempt == ATTEMPTS:
                    raise
        yield address


@contextmanager
def head(folder: Path, **environment: str) -> Iterator[str]:
    """Start what a cluster's head is asked first, Ray's GCS, on loopback; yield its address."""
    import ray

    binary = Path(ray.__file__).parent / "core" / "src" / "ray" / "gcs" / "gcs_server"
    port = free_port()
    words: list[str | Path] = [
        binary,
        f"--log_dir={folder}",
        "--config_list=e30=",  # {}
        f"--gcs_server_port={port}",
        "--node-ip-address=127.0.0.1",
        "--session-name=test",
        f"--session-dir={folder}",
        f"--node-id={'ab' * 28}",
    ]
    with _listening(words, port, environment, folder / "gcs.log") as address:
        yield address


@contextmanager
def dashboard_beside(log: Path) -> Iterator[Dashboard]:
    """Start a dashboard beside this process's Ray, which has none, as Ray starts one.

    Args:
        log: file of what it says.
    """
    import ray

    node, port = ray._private.worker._global_node, free_port()
    session = Path(node.get_session_dir_path())
    command: list[str | Path] = [
        sys.executable,
        Path(ray.__file__).parent / "dashboard" / "dashboard.py",
        "--host=127.0.0.1",
        f"--port={port}",
        "--port-retries=0",
        f"--temp-dir={session.parent}",
        f"--log-dir={session / 'logs'}",
        f"--session-dir={session}",
        f"--gcs-address={node.gcs_address}",
        f"--cluster-id-hex={node.cluster_id.hex()}",
        f"--node-ip-address={node.node_ip_address}",
        "--proxy-server-url=",
    ]
    variables = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    with _listening(command, port, variables, log, seconds=LATE_SECONDS) as address:
        dashboard = Dashboard(f"http://{address}")
        dashboard.wait(LATE_SECONDS)
        yield dashboard
