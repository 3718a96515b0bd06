"""On a cluster that grows, trials and workers that wait make nodes join; all on this machine."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds import grid, sweeps

HEAD_NODE = "f" * 51 + "00000"
"""What Ray's fake provider calls the head."""
HEAD_TYPE = "ray.head.default"
SECONDS = 300.0
IDLE_MINUTES = 0.2


class GrowingCluster:
    """A head without CPUs, and an autoscaler that starts nodes with one each where any is wanted.

    ``ray.cluster_utils.AutoscalingCluster`` would end every Ray of the machine first.

    Args:
        folder: of Ray's files; a short path. It tells which processes are this cluster's.
        nodes: how many may join.
    """

    def __init__(self, folder: Path, nodes: int) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": os.urandom(32).hex(),
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        self._own = {
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_NODE,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_NODE,
        }
        config = folder / "autoscaling.json"
        config.write_text(json.dumps(self._config(nodes)))
        port = self.address.rpartition(":")[2]
        words = ["start", "--head", "--block", "--port", port, "--num-cpus", "0"]
        words += ["--include-dashboard", "false", "--autoscaling-config", str(config)]
        script = f"import sys; from ray.scripts.scripts import main; sys.argv[1:] = {words}; main()"
        with (folder / "head.txt").open("w") as said:
            self._head = subprocess.Popen(
                [sys.executable, "-c", script],
                env={**os.environ, **self.environment, **self._own},
                stdout=said,
                stderr=said,
            )

    def _config(self, nodes: int) -> dict[str, Any]:
        size = {"CPU": 1, "object_store_memory": 80 * 2**20}
        commands = ("setup", "head_setup", "worker_setup", "initialization")
        commands += ("head_start_ray", "worker_start_ray")
        return {
            **{f"{name}_commands": [] for name in commands},
            **{name: {} for name in ("auth", "docker", "file_mounts")},
            **{name: [] for name in ("cluster_synced_files", "rsync_exclude", "rsync_filter")},
            "file_mounts_sync_continuously": False,
            "cluster_name": "growing",
            "max_workers": nodes,
            "idle_timeout_minutes": IDLE_MINUTES,
            "upscaling_speed": 10,
            "head_node_type": HEAD_TYPE,
            "available_node_types": {
                HEAD_TYPE: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
                "one": {
                    "resources": size,
                    "node_config": {},
                    "min_workers": 0,
                    "max_workers": nodes,
                },
            },
            "provider": {
                "type": "external",
                "module": "ray.autoscaler._private.fake_multi_node.node_provider"
                ".FakeMultiNodeProvider",
                "gcs_address": self.address,
                "head_node_id": HEAD_NODE,
                "launch_multiple": True,
            },
        }

    def processes(self, name: str = "") -> list[int]:
        """Return the cluster's processes whose command line has this name, too."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                line = path.read_text(errors="replace")
                if str(self._folder) in line and name in line:
                    found.append(int(path.parent.name))
        return found

    @property
    def nodes(self) -> int:
        """How many there are, the head among them."""
        return len(self.processes("raylet/raylet"))

    def wait(self) -> None:
        """Wait until the head is there and answers."""
        deadline = time.monotonic() + SECONDS
        host, _, port = self.address.rpartition(":")
        while time.monotonic() < deadline:
            assert self._head.poll() is None, (self._folder / "head.txt").read_text()
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), timeout=1).close()
                if self.nodes:
                    return
            time.sleep(0.2)
        raise AssertionError("the head does not answer")

    def close(self) -> None:
        """End the head, and the nodes, which outlive it."""
        self._head.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._head.wait(20)
        self._head.kill()
        self._head.wait()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def cluster() -> Iterator[GrowingCluster]:
    folder = Path(tempfile.mkdtemp(prefix="pr-", dir="/tmp"))  # names of sockets are short
    grown = GrowingCluster(folder, nodes=2)
    try:
        grown.wait()
        yield grown
    finally:
        grown.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_pending_trials_make_nodes_join(tmp_path: Path, cluster: GrowingCluster) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=3)
    axis = {"privacy.epsilon": {"grid": [1, 2]}}
    file = sweeps.write(tmp_path, sweeps.COMPOSE, search=axis)
    assert cluster.nodes == 1
    words = ["sweep", str(file), "--out", str(tmp_path / "out")]
    most, said, _ = _watched(_privrl(world, cluster, *words), cluster)
    assert "PENDING" in said
    assert "2 of 2 have ended" in said
    assert len(world.ledger.entries()) == 2
    assert most == 3  # the head, and a node a trial; they may go before the command has ended


@pytest.mark.cluster
@pytest.mark.timeout(1200)
def test_a_run_waits_for_nodes_takes_more_and_leaves_them(
    tmp_path: Path, cluster: GrowingCluster
) -> None:
    """From no CPU at all: the first node begins the run, the second joins it, both go."""
    world = grid.Grid(tmp_path).budget(epsilon=6)
    workers = {"min": 1, "max": 2}
    runtime = {"executor": "ray", "workers": workers, "recovery_seconds": 240}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values(runtime=runtime)))
    words = ["run", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    assert cluster.nodes == 1
    most, _, _ = _watched(_privrl(world, cluster, *words), cluster)
    assert most == 3
    verify_certificate(tmp_path / "out" / "certificate.json", ledger=world.ledger)
    deadline = time.monotonic() + SECONDS
    while cluster.nodes > 1:  # the autoscaler gives idle nodes back
        assert time.monotonic() < deadline
        time.sleep(0.5)


def _watched(command: subprocess.Popen[str], cluster: GrowingCluster) -> tuple[int, str, str]:
    """Wait for a command; return the most nodes that there were meanwhile, and what it said."""
    most, deadline = 0, time.monotonic() + SECONDS
    while command.poll() is None and time.monotonic() < deadline:
        most = max(most, cluster.nodes)
        time.sleep(0.5)
    command.kill()
    said, errors = command.communicate()
    assert command.returncode == 0, said + errors
    return most, said, errors


def _privrl(world: grid.Grid, cluster: GrowingCluster, *words: str) -> subprocess.Popen[str]:
    """Start the command as somebody who joins the cluster."""
    environment = {
        **cluster.environment,
        FOLDER_VARIABLE: str(world.store.root),
        "PRIVRL_LEDGER": world.url,
        "RAY_ADDRESS": cluster.address,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "distributed_privrl.cli", *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
