"""Nodes of one machine: started, joined, lost in the middle of a run, and ended."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.privacy.verification import verify_certificate
from tests.cluster.nodes import SECONDS, local_nodes, outside
from tests.worlds import grid

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]


def test_a_run_outlives_a_node_and_the_script_ends_what_it_started(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    runtime = {"executor": "ray", "workers": 1, "recovery_seconds": 60}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values(runtime=runtime)))
    with local_nodes(nodes=2) as cluster:
        assert len(cluster.raylets()) == 3
        token = Path(cluster.variables["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        own = outside(cluster.variables)
        own |= {FOLDER_VARIABLE: str(world.store.root), "PRIVRL_LEDGER": world.url}
        out = tmp_path / "out"
        run = subprocess.Popen(
            [sys.executable, "-m", "distributed_privrl.cli", "run", "run.yaml", "--out", str(out)],
            cwd=tmp_path,
            env=own,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        assert run.stderr is not None
        said, servers = [], []
        for line in run.stderr:
            said.append(line)
            if line.startswith("value iteration 2/20"):
                servers.append(_node_of("ReleaseServer", cluster.raylets()))
                os.kill(_node_of("CountWorker", cluster.raylets()), signal.SIGKILL)
        assert run.wait(SECONDS) == 0, "".join(said)
        raylets = cluster.raylets()
        assert len(raylets) == 2  # the head, and one of two
        assert servers == [min(cluster.raylets())]  # the head began first
    verify_certificate(out / "certificate.json", ledger=world.ledger)
    deadline = time.monotonic() + SECONDS
    while cluster.raylets():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert not cluster.folder.exists()


def _node_of(worker: str, raylets: list[int]) -> int:
    """Return the raylet under which a worker of this class runs."""
    for raylet in raylets:
        for thread in Path(f"/proc/{raylet}/task").iterdir():
            for child in (thread / "children").read_text().split():
                if f"ray::{worker}" in Path(f"/proc/{child}/cmdline").read_text():
                    return raylet
    raise AssertionError(f"no {worker} runs")
