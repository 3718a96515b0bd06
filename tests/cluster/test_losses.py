"""Two nodes of one CPU lose one in mid-run, then the head, and the run ends as if they had not."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.cluster.nodes import SECONDS, Nodes, joining, local_nodes
from tests.cluster.paused_run import config_of
from tests.runtime.heads import whole_ray
from tests.worlds import grid

pytestmark = [pytest.mark.cluster, pytest.mark.short, pytest.mark.timeout(1200)]
SOON = {"RAY_gcs_rpc_server_reconnect_timeout_s": "3"}
"""Ray gives a head a minute to come back."""


def lose_node(cluster: Nodes) -> None:
    hosts = cluster.nodes_of("ShardHost")
    assert hosts == set(cluster.raylets())  # each has its part of the run
    (lost,) = hosts - {cluster.head}
    os.kill(lost, signal.SIGKILL)


def test_a_run_outlives_a_node_and_then_its_head_and_learns_the_same(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget()
    world.start(config_of(workers=2), "calm", insecure_key=world.key, reports=False)
    run_on = partial(joining, "tests.cluster.paused_run", tmp_path, "lost")
    losses = {"step 5\n": lose_node, "step 10\n": Nodes.kill_head}

    options = ("--head-cpus=1", "--no-dashboard")
    with local_nodes(nodes=1, options=options) as cluster:
        joined = cluster.variables | SOON
        with run_on("5", "10", variables=joined) as run:
            assert run.stdin is not None
            assert run.stderr is not None
            said = []
            for line in run.stderr:
                said.append(line)
                if line in losses:
                    losses.pop(line)(cluster)
                    print(file=run.stdin, flush=True)
            assert run.wait(SECONDS) != 0
    assert not losses, "".join(said)
    assert not (tmp_path / "lost" / "certificate.json").exists()

    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": os.urandom(32).hex()}
    with (
        whole_ray("--no-monitor", "--include-log-monitor=false", **secret) as address,
        run_on(variables=secret | {"RAY_ADDRESS": address}) as run,
    ):
        _, more = run.communicate(timeout=SECONDS)
        assert run.returncode == 0, more
    calm, lost = (
        {key: values.tobytes() for key, values in load_file(path).items()}
        for name in ("calm", "lost")
        for path in [tmp_path / name / "checkpoint" / "steps.safetensors"]
    )
    assert lost == calm != {}
