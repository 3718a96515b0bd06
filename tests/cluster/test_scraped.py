"""A real run on a cluster's head with metrics on, and what its endpoint tells anybody meanwhile."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace

import numpy as np
import pytest
import yaml

from distributed_privrl.data.metadata import PUBLIC_KEY
from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.data.trajectories import Trajectories
from tests.cluster.keeping import kept
from tests.gates.leaks import PRIVATE_FIGURE
from tests.runtime.heads import free_port, whole_ray
from tests.worlds import mazes, ward

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
SECONDS = 900.0
DATASET, PUBLIC = "ward/canaries80417-v0", "ward/public-v0"
FIRST_UNIT = 80_417_000_001
ROUNDS = 12
SEEN = ("ray_privrl_epsilon_reserved{", "ray_privrl_workers_alive{", "ParameterServer.advance")
SCRIPT = """
import sys, threading, time, urllib.request
from distributed_privrl.runtime import launch
from distributed_privrl.experiments.registry import load_config
from pathlib import Path
file, out, port, *names = sys.argv[1:]
seen, ended = {}, threading.Event()
def scrape():
    asked = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20)
    seen.update(dict.fromkeys(asked.read().decode().splitlines()))
def scrape_meanwhile():
    while not ended.wait(1):
        scrape()
while not seen:  # a process that begins before the agent is there reports nothing, ever
    try:
        scrape()
    except OSError:
        time.sleep(0.5)
beside = threading.Thread(target=scrape_meanwhile)
beside.start()
launch.run(load_config(Path(file)), out=out, progress=lambda *facts: None)
ended.set()
beside.join()
for _ in range(90):  # processes report every ten seconds
    scrape()
    if all(any(name in line for line in seen) for name in names):
        break
    time.sleep(1)
print("\\n".join(seen))
"""


def canaries() -> Trajectories:
    """Stays whose rows and patients have numbers that are met by chance nowhere."""
    rows = ward.stays(patients=ward.STAYS)
    return replace(rows, unit_ids=FIRST_UNIT + np.arange(ward.STAYS))


@dataclass(frozen=True)
class Scraped:
    """What was scraped, in a run and after it.

    Args:
        world: of the run.
        text: of all scrapes.
    """

    world: ward.Ward
    text: str

    @property
    def lines(self) -> list[str]:
        return [line for line in self.text.splitlines() if not line.startswith("#")]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    folder = tmp_path_factory.mktemp("scraped")
    world = ward.Ward(folder)
    world.write(DATASET, canaries())
    world.write(PUBLIC, ward.stays(seed=2, patients=ward.STAYS), metadata={PUBLIC_KEY: True})
    world.budget(DATASET, epsilon=6)
    data = {"sensitive": DATASET, "public": [PUBLIC], "unit": "patient", "units": ward.STAYS}
    values = mazes.ar_values(training__rounds=ROUNDS, training__block_rounds=3)
    values |= {"data": data, "runtime": {"executor": "ray", "workers": 1}}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    token, port = os.urandom(32).hex(), free_port()
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_USAGE_STATS_ENABLED": "0"}
    with whole_ray(f"--metrics-export-port={port}", **own) as address:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, folder / "run.yaml", folder / "run", str(port), *SEEN],
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
    return Scraped(world, done.stdout)


def test_what_prometheus_keeps_tells_nothing_private(scraped: Scraped) -> None:
    # Ray's own series count the calls of a run's server: why prometheus.yaml drops them.
    calls = [line for line in scraped.lines if line.startswith("ray_tasks")]
    assert any("ParameterServer.advance" in line for line in calls)
    left = [line for line in scraped.lines if kept().fullmatch(re.split(r"[{ ]", line)[0])]
    names = {line.partition("{")[0] for line in left}
    assert {"ray_privrl_blocks_reserved", "ray_privrl_epsilon_reserved"} <= names
    for line in left:
        assert not PRIVATE_FIGURE.search(line.lower()), line


def test_no_row_unit_or_dataset_is_in_anything_that_is_scraped(scraped: Scraped) -> None:
    """In no series at all, dropped or kept, and in no comment."""
    found = canary_in(scraped.text, scraped.world)
    assert found is None, found
    assert canary_in(f'{scraped.text}\nray_x{{unit="{FIRST_UNIT + 7}"}} 1.0', scraped.world)
    row = float(np.float32(canaries().observations[3, 1]))
    assert canary_in(f"{scraped.text}\nray_x {row!r}", scraped.world)


def canary_in(text: str, world: ward.Ward) -> str | None:
    """Return what of the sensitive dataset is in a text, or None."""
    for word in (DATASET, DATASET.partition("/")[2], str(world.store.root), str(world.folder)):
        if word in text:
            return word
    for unit in re.findall(str(FIRST_UNIT)[:5] + r"\d{6}", text):
        if FIRST_UNIT <= int(unit) < FIRST_UNIT + ward.STAYS:
            return f"unit {unit}"
    parts = (canaries().observations, canaries().actions)
    rows = np.abs(np.concatenate([np.asarray(part).ravel() for part in parts]))
    stored = [*rows.tolist(), *rows.astype(np.float32).tolist()]
    digits = {f"{value:.10f}" for value in stored}  # fewer are met by chance
    written = re.findall(r"0\.\d{10,}", text)
    return next((one for one in written if f"{float(one):.10f}" in digits), None)
