"""Runs handed in to the head of a real cluster, from an empty folder."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from distributed_privrl.privacy.verification import verify_certificate
from tests.cluster.nodes import outside
from tests.docs.pages import ROOT, all_fences
from tests.privacy import postgres
from tests.runtime.heads import free_port, whole_ray
from tests.worlds import grid

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(bool(postgres.MISSING), reason=postgres.MISSING),
]
SECONDS = 300.0
BINARIES = Path(sys.executable).parent


@dataclass(frozen=True)
class Head:
    """A head with a dashboard, a ledger that it reaches, and a dataset that it sees."""

    address: str
    environment: dict[str, str]
    world: grid.Grid
    ledger: str

    @property
    def datasets(self) -> str:
        return str(self.world.store.root)

    def submit(
        self, folder: Path, *words: str, token: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Call ``privrl submit`` in a folder, as somebody who has the token or not."""
        stranger = {"HOME": str(folder), "RAY_AUTH_TOKEN": "0" * 64}
        own = outside(self.environment if token else stranger)
        line = [sys.executable, "-m", "distributed_privrl.cli", "submit", *words]
        return subprocess.run(
            [*line, "--address", self.address, "--python", sys.executable],
            cwd=folder,
            env=own,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """Start them, and end exactly what was started."""
    folder = tmp_path_factory.mktemp("shared")
    dashboard = free_port()
    environment = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": os.urandom(32).hex(),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
    }
    ports = [f"--dashboard-port={dashboard}", f"--dashboard-agent-listen-port={free_port()}"]
    with postgres.running() as server:
        world = grid.Grid(folder)
        world.url = server.database("jobs")
        world.budget(epsilon=7)
        secret = folder / "ledger-url"
        secret.write_text(world.url)
        secret.chmod(0o600)
        with whole_ray("--include-dashboard=true", *ports, **environment):
            address = f"http://127.0.0.1:{dashboard}"
            _wait_for(address)
            yield Head(address, environment, world, f"file:{secret}")
        world.ledger.close()


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(f"{address}/api/jobs/", timeout=5)
        except urllib.error.HTTPError:
            return
        except OSError:
            assert time.monotonic() < deadline, "no dashboard"
            time.sleep(0.5)


def test_a_run_is_handed_in_and_its_certificate_comes_back(head: Head, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values()))
    out = head.world.folder / "out"
    words = ["run.yaml", "--out", str(out), "--ledger", head.ledger]
    words += ["--datasets", head.datasets]
    refused = head.submit(tmp_path, *words)
    assert refused.returncode == 4, refused.stderr  # the shared folder is not named
    assert "lies on a machine of the cluster" in refused.stdout + refused.stderr
    words += ["--shared", str(head.world.folder)]
    for name in ("certificate.json", "again.json"):  # again: it goes on, and is charged once
        done = head.submit(tmp_path, *words, "--certificate", name)
        assert done.returncode == 0, done.stdout + done.stderr
    verify_certificate(tmp_path / "certificate.json", allow_missing_outputs=True)
    here, there = ((tmp_path / n).read_text() for n in ("certificate.json", "again.json"))
    assert json.loads(here) == json.loads(there)
    assert json.loads(here) == json.loads((out / "certificate.json").read_text())
    stranger = head.submit(tmp_path, *words, "--certificate", "no.json", token=False)
    assert stranger.returncode == 2
    assert "does not know this token" in stranger.stderr


def test_the_documented_lines_hand_a_run_in_and_verify_its_certificate(
    head: Head, tmp_path: Path
) -> None:
    """`ray job submit` and what follows, word by word, but for where things are."""
    (said,) = (
        fence.text
        for fence in all_fences(ROOT / "docs" / "ray.md")
        if "\nray job submit " in fence.text
    )
    out = head.world.folder / "documented"
    for documented, here in {
        "http://head.internal:8265": head.address,
        "/shared/datasets": head.datasets,
        "/shared/runs/stays": str(out),
        '"/shared"': f'"{head.world.folder}"',
        "file:/secrets/ledger": head.ledger,
    }.items():
        assert documented in said
        said = said.replace(documented, here)
    job, token = tmp_path / "jobs" / "stays", tmp_path / ".ray" / "auth_token"
    for path, text in {
        job / "stays.yaml": yaml.safe_dump(grid.values(privacy={"epsilon": 1.0})),
        token: head.environment["RAY_AUTH_TOKEN"],
    }.items():
        path.parent.mkdir(parents=True)
        path.write_text(text)
    token.chmod(0o600)
    deadline = time.monotonic() + SECONDS
    while True:
        done = subprocess.run(
            ["bash", "-ec", said],
            cwd=tmp_path,
            env=outside({"HOME": str(tmp_path), "PATH": head.environment["PATH"]}),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        # A head that has just begun takes no jobs; `privrl submit` waits for it.
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((out / "certificate.json").read_text())["epsilon"] == pytest.approx(
        1, rel=0.1
    )
    assert "unchanged" in done.stdout
