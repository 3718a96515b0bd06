"""A real run on a cluster's head with metrics on, and what its endpoint then tells anybody."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from distributed_privrl.data.store import FOLDER_VARIABLE
from tests.cluster.keeping import kept
from tests.gates.leaks import PRIVATE_FIGURE
from tests.runtime.heads import free_port, whole_ray
from tests.worlds import grid

SECONDS = 120.0
SCRIPT = """
import sys, time, urllib.request
from distributed_privrl.runtime import launch
from distributed_privrl.experiments.registry import load_config
from pathlib import Path
file, out, port = sys.argv[1:]
launch.run(load_config(Path(file)), out=out, progress=lambda *facts: None)
for _ in range(60):  # processes report every ten seconds
    said = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    if "privrl_epsilon_reserved" in said and "ReleaseServer.advance" in said:
        break
    time.sleep(1)
print(said)
"""


@pytest.mark.cluster
def test_what_prometheus_keeps_tells_nothing_private(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget()
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(grid.values(runtime={"executor": "ray", "workers": 1})))
    token, port = os.urandom(32).hex(), free_port()
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    with whole_ray(f"--metrics-export-port={port}", **own) as address:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, file, tmp_path / "run", str(port)],
            env={
                **os.environ,
                **own,
                "RAY_ADDRESS": address,
                "PRIVRL_LEDGER": world.url,
                FOLDER_VARIABLE: str(world.store.root),
            },
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    # Ray's own series count the calls of a run's server: why prometheus.yaml drops them.
    assert any(line.startswith("ray_tasks") and "ReleaseServer.advance" in line for line in lines)
    left = [line for line in lines if kept().fullmatch(re.split(r"[{ ]", line)[0])]
    names = {line.partition("{")[0] for line in left}
    assert {"ray_privrl_blocks_reserved", "ray_privrl_epsilon_reserved"} <= names
    for line in left:
        assert not PRIVATE_FIGURE.search(line.lower()), line
        assert str(world.store.root) not in line
        assert grid.DATASET not in line
