"""Datasets and bounds in a server of S3, read and written by every process of a run on Ray.

`make s3` installs the server (moto), apart from what the project runs with; without it these tests
are skipped.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import fs

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.files import UNFINISHED
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.data import objects
from distributed_privrl.data.objects import objects_at
from distributed_privrl.data.store import DatasetStore
from tests.worlds.intake import BOUNDS, DATASET, RELEASED, Intake, admissions, config_values, write

VENV = Path(__file__).parents[2] / ".venv-s3"
SERVER = Path(os.environ.get("PRIVRL_S3_SERVER", VENV / "bin" / "moto_server"))
URI = "s3://clinic/sets"
SECRET = "nobodyshallseethis"
SECONDS = 60
pytestmark = pytest.mark.skipif(not SERVER.exists(), reason="no server of S3: make s3 installs one")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(SERVER), "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < deadline, "no server of S3"
            time.sleep(0.1)
    yield f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture
def store(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatasetStore]:
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    objects.filesystem_of.cache_clear()
    fs.S3FileSystem(endpoint_override=server, allow_bucket_creation=True).create_dir("clinic")
    yield DatasetStore(URI)
    objects.filesystem_of.cache_clear()


def test_a_bucket_that_is_not_there_is_named(store: DatasetStore) -> None:
    other = DatasetStore("s3://hospital/sets")
    for asked in (other.ids, lambda: write(other, DATASET, admissions())):
        with pytest.raises(StorageError, match=r"s3://hospital/sets.*: there is no such bucket"):
            asked()


class Command:
    """`privrl` with the datasets in the store, in a process of its own."""

    def __init__(self, world: Intake) -> None:
        self.temporary = world.folder / "temporary"
        self.temporary.mkdir()
        self.world, self.environment = (
            world,
            os.environ
            | {
                "MINARI_DATASETS_PATH": URI,
                "PRIVRL_LEDGER": world.url,
                "TMPDIR": str(self.temporary),
                "RAY_TMPDIR": "/tmp",  # the names of its sockets must be short
            },
        )

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed_privrl.cli", *words],
            cwd=self.world.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def end(self, *words: str) -> str:
        said, _ = (process := self.start(*words)).communicate(timeout=5 * SECONDS)
        assert process.returncode == 0, said
        return said


def test_a_run_on_ray_reads_and_publishes_in_a_store_and_goes_on_when_killed(
    store: DatasetStore, tmp_path: Path
) -> None:
    world = Intake(tmp_path).budget()
    write(store, DATASET, admissions())
    objects_at(ObjectUri("s3://clinic")).put("bounds.yaml", BOUNDS.encode())
    values = config_values(Path(), data__bounds="s3://clinic/bounds.yaml")
    values["runtime"]["executor"] = "ray"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    command, out = Command(world), tmp_path / "out"

    begun = command.start("run", "run.yaml", "--out", str(out))
    deadline = time.monotonic() + 2 * SECONDS
    while len(list((out / "checkpoint").glob("*"))) < 2 and begun.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    begun.send_signal(signal.SIGKILL)
    said, _ = begun.communicate(timeout=SECONDS)
    assert begun.returncode == -signal.SIGKILL, said
    assert (DatasetStore(URI).ids(), (out / "certificate.json").exists()) == ([DATASET], False)

    said += command.end("run", "run.yaml", "--out", str(out), "--resume")
    assert sorted(store.ids()) == [DATASET, RELEASED]
    assert len(store.read_transitions(RELEASED, unit="transition")) == 250
    assert store.info(RELEASED).certificate == json.loads((out / "certificate.json").read_text())
    assert (out / "bounds.yaml").read_text() == BOUNDS
    (entry,) = world.ledger.entries()
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds
    said += command.end(
        "certificate", "verify", str(out / "certificate.json"), "--ledger", world.url
    )
    assert "unchanged" in said

    assert not list(command.temporary.glob(f"{UNFINISHED}*"))  # of nobody's rows a copy is left
    kept = [path for path in out.rglob("*") if path.is_file()]
    assert SECRET not in said
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]

    rows = store.read_transitions(DATASET, unit="patient")
    np.testing.assert_array_equal(rows.rewards, admissions().rewards)
