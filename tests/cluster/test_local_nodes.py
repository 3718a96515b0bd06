"""Nodes of one machine: shared by runs, lost in the middle of a run, head and all, and ended."""

import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from safetensors.numpy import load_file

from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.privacy.verification import verify_certificate
from tests.cluster import keyed_run
from tests.cluster.nodes import SECONDS, Nodes, joining, local_nodes, outside
from tests.runtime.heads import whole_ray
from tests.worlds import grid, mazes, sweeps
from tests.worlds.world import World

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Two nodes of one CPU beside a head; the tests go on with what the ones before left."""
    with local_nodes(nodes=2) as found:
        token = Path(found.variables["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o600
        assert len(found.raylets()) == 3
        yield found
    deadline = time.monotonic() + SECONDS
    while found.raylets():
        assert time.monotonic() < deadline, "the script left nodes"
        time.sleep(0.2)
    assert not found.folder.exists()


@dataclass(frozen=True)
class Keyed:
    """A run under the test key that nothing disturbed, and a place for those that something does.

    Args:
        world: of both.
    """

    world: World

    def parameters(self, name: str) -> dict[str, bytes]:
        """Return all that a run learned, and what it drew from it."""
        folder = self.world.folder / name / "checkpoint"
        learned = {k: v.tobytes() for k, v in load_file(folder / "rounds.safetensors").items()}
        rows = {one.name: one.read_bytes() for one in (folder / "synthetic").glob("*.npy")}
        assert rows
        return learned | rows

    def begun(
        self, name: str, variables: dict[str, str], *most: str
    ) -> AbstractContextManager["subprocess.Popen[str]"]:
        """Begin a run, or go on with it, on a cluster."""
        words = (self.world.folder, name, *most)
        return joining("tests.cluster.keyed_run", *words, variables=variables)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Keyed:
    folder = tmp_path_factory.mktemp("keyed")
    mazes.maze_store(folder / "datasets")
    world = mazes.Mazes(folder).budget(epsilon=60, delta=1e-3)
    key = keyed_run.KEY
    world.start(keyed_run.config_of("calm"), "calm", insecure_key=key, reports=False)
    return Keyed(world)


def test_two_runs_and_a_sweep_share_a_cluster_and_all_end(cluster: Nodes, tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=30)
    both = {"executor": "ray", "workers": 2}  # all CPUs that there are
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values(runtime=both)))
    axis = {"privacy.epsilon": {"grid": [1, 2]}}
    sweeps.write(tmp_path, sweeps.COMPOSE, search=axis, runtime__executor="ray")
    own = outside(cluster.variables)
    own |= {FOLDER_VARIABLE: str(world.store.root), "PRIVRL_LEDGER": world.url}
    lines = ("run run.yaml --out one", "run run.yaml --out two", "sweep sweep.yaml --out many")
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", "distributed_privrl.cli", *line.split()],
            cwd=tmp_path,
            env=own,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in lines
    ]
    try:
        said = ["".join(process.communicate(timeout=2 * SECONDS)) for process in begun]
    finally:
        for process in begun:
            process.kill()
    assert [process.returncode for process in begun] == [0, 0, 0], said
    for name in ("one", "two"):
        verify_certificate(tmp_path / name / "certificate.json", ledger=world.ledger)
    assert "2 of 2 have ended" in said[2]


def test_a_run_outlives_a_node_and_learns_the_same(cluster: Nodes, keyed: Keyed) -> None:
    said = []
    with keyed.begun("node", cluster.variables) as run:
        assert run.stderr is not None
        for line in run.stderr:
            said.append(line)
            if line.startswith("private rounds 12/30"):
                assert cluster.node_of("ParameterServer") == cluster.head
                os.kill(cluster.node_of("LocalUpdateWorker"), signal.SIGKILL)
        assert run.wait(SECONDS) == 0, "".join(said)
    assert len(cluster.raylets()) == 2  # the head, and one of two
    assert keyed.parameters("node") == keyed.parameters("calm")


def test_a_node_that_joins_a_run_answers_for_one_that_goes(cluster: Nodes, keyed: Keyed) -> None:
    """Four shards; a node joins in mid-run and takes some, and all when those before it go."""
    first = set(cluster.raylets())
    with keyed.begun("grown", cluster.variables, "4") as run:
        assert run.stderr is not None
        said = []
        for line in run.stderr:
            said.append(line)
            if line.startswith("private rounds 12/30"):
                os.kill(run.pid, signal.SIGSTOP)  # it would have ended before the node is there
                gone = cluster.nodes_of("ShardHost")
                cluster.add_node()
                joined = _joined(cluster, gone)
                assert joined not in first
                for raylet in gone:
                    os.kill(raylet, signal.SIGKILL)
                os.kill(run.pid, signal.SIGCONT)
        assert run.wait(SECONDS) == 0, "".join(said)
    assert set(cluster.raylets()) == {cluster.head, joined}
    assert keyed.parameters("grown") == keyed.parameters("calm")


def _joined(cluster: Nodes, before: set[int]) -> int:
    """Wait until another node has a host of shards, and return it."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if more := cluster.nodes_of("ShardHost") - before:
            return more.pop()
        time.sleep(0.2)
    raise AssertionError("no host of shards runs on another node")


def test_a_run_that_lost_its_head_goes_on_under_another_and_learns_the_same(
    cluster: Nodes, keyed: Keyed
) -> None:
    soon = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}  # Ray gives a head a minute to come back
    with keyed.begun("head", cluster.variables | soon) as run:
        assert run.stderr is not None
        for line in run.stderr:
            if line.startswith("private rounds 12/30"):
                cluster.kill_head()
        assert run.wait(SECONDS) != 0
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
    with (
        whole_ray(**secret) as address,
        keyed.begun("head", secret | {"RAY_ADDRESS": address}) as run,
    ):
        _, said = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, said
    assert keyed.parameters("head") == keyed.parameters("calm")
