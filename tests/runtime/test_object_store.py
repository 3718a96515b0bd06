"""Datasets, bounds and runs in a server of S3, read and written by every process of a run on Ray.

`make s3` installs the server (moto), apart from what the project runs with; without it these tests
are skipped.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from pyarrow import fs
from safetensors.numpy import load_file
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core import folders
from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import UNFINISHED
from distributed_privrl.core.folders import WORKING_COPY
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.data import objects
from distributed_privrl.data.objects import objects_at
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.stored_folders import opened_folder, private_prefix
from distributed_privrl.experiments import run as program
from tests.runtime.stored_run import KEY
from tests.worlds import grid, mazes
from tests.worlds.bucket import Puts, machine
from tests.worlds.grid import Grid
from tests.worlds.intake import (
    BOUNDS,
    DATASET,
    RELEASED,
    Intake,
    admissions,
    config_values,
    public_admissions,
    write,
)
from tests.worlds.world import World

VENV = Path(__file__).parents[2] / ".venv-s3"
SERVER = Path(os.environ.get("PRIVRL_S3_SERVER", VENV / "bin" / "moto_server"))
URI, RUNS = "s3://clinic/sets", "s3://clinic/runs"
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


def killed(begun: subprocess.Popen[str], when: Callable[[], bool]) -> str:
    """Kill a process as soon as something is there; return what it said."""
    deadline = time.monotonic() + 5 * SECONDS  # on a busy machine Ray alone needs two minutes
    try:
        while begun.poll() is None and not when():
            assert time.monotonic() < deadline, "it has not come so far"
            time.sleep(0.02)
    finally:
        begun.kill()
        said, _ = begun.communicate(timeout=SECONDS)
    assert begun.returncode == -signal.SIGKILL, said
    return said


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


@pytest.mark.timeout(900)
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

    said = killed(
        command.start("run", "run.yaml", "--out", str(out)),
        lambda: (
            (out / "config.yaml").exists()  # until then nothing has begun
            and len(list((out / "checkpoint").glob("[!.]*"))) >= 2
        ),
    )
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


@pytest.mark.timeout(900)
def test_a_run_by_uri_is_killed_on_one_machine_and_ends_on_another_as_if_it_had_stayed(
    store: DatasetStore, tmp_path: Path
) -> None:
    """Driver, server and workers find all of the run in the store; nothing but that is left."""
    world = Intake(tmp_path).budget()
    uri, local = f"{RUNS}/killed", tmp_path / "stayed"
    checkpoints = objects_at(ObjectUri("s3://clinic/private/runs/killed"))

    def start(name: str, *words: str) -> subprocess.Popen[str]:
        (tmp_path / name).mkdir()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.stored_run", str(tmp_path), *words],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"TMPDIR": str(tmp_path / name), "RAY_TMPDIR": "/tmp"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    killed(
        start("one", uri),
        lambda: any("/00000002-" in name for name in checkpoints.names()),
    )
    shutil.rmtree(tmp_path / "one", ignore_errors=True)  # the machine is gone, with its disk
    certificates = objects_at(ObjectUri(uri))
    assert certificates.read("certificate.json") is None
    (entry,) = world.ledger.entries()
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds

    for name, words in {"another": (uri, "--resume"), "third": (str(local),)}.items():
        said, _ = (process := start(name, *words)).communicate(timeout=5 * SECONDS)
        assert process.returncode == 0, said
        assert not list((tmp_path / name).glob(f"{UNFINISHED}*"))
    with opened_folder(ObjectUri(uri), work=False) as folder:
        stored = [
            load_file(one / "checkpoint" / "marginals.safetensors") for one in (folder, local)
        ]
    assert stored[0].keys() == stored[1].keys()
    for name, values in stored[0].items():
        np.testing.assert_array_equal(values, stored[1][name], name)
    for entry in world.ledger.entries():
        assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds
    assert certificates.read("certificate.json") is not None


def value_iteration(folder: Path) -> tuple[World, Callable[[str], RunConfig]]:
    return Grid(folder).budget(), lambda _: grid.config()


def autoregressive(folder: Path) -> tuple[World, Callable[[str], RunConfig]]:
    mazes.maze_store(folder / "datasets")
    world = mazes.Mazes(folder).budget(epsilon=20, delta=1e-3)
    changes = {"evaluation__trainers": [], "training__block_rounds": 2}
    return world, lambda name: mazes.ar_config(output__dataset=f"test/{name}-v0", **changes)


def learned(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return every tensor that a run has kept."""
    return {
        path.name: {name: values.tobytes() for name, values in load_file(path).items()}
        for path in (folder / "checkpoint").rglob("*.safetensors")
    }


@pytest.mark.parametrize("method", [value_iteration, autoregressive])
def test_a_run_that_the_store_failed_goes_on_elsewhere_as_if_it_had_not(
    store: DatasetStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Callable[[Path], tuple[World, Callable[[str], RunConfig]]],
) -> None:
    world, config_of = method(tmp_path)
    monkeypatch.setattr(folders, "_OPENED", {})

    def run(name: str, disk: str, *, fails: int = 0, resume: bool = False) -> int:
        machine(tmp_path / disk, monkeypatch)
        uri = ObjectUri(f"{RUNS}/{method.__name__}-{name}")
        with Puts(fails).counted() as puts, opened_folder(uri) as folder:
            program.run(
                config_of(name),
                LocalExecutor(),
                out=folder,
                ledger_url=world.url,
                store=world.store,
                resume=resume,
                insecure_key=KEY,
                reports=False,
            )
            found[name] = learned(folder)
        return len(puts.names)

    found: dict[str, dict[str, dict[str, bytes]]] = {}
    puts = run("calm", "first")
    with pytest.raises(StorageError, match="does not answer"):
        run("failed", "second", fails=puts // 2)
    assert run("failed", "third", resume=True) < puts  # it went on, and began nothing anew
    assert found["failed"] == found["calm"] != {}
    for entry in world.ledger.entries():
        assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds


def test_every_verb_finds_a_run_and_datasets_in_a_store(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sets = Intake(tmp_path).budget(), "s3://clinic/verbs"
    store = DatasetStore(sets)
    write(store, DATASET, admissions())
    write(store, "intake/others-v0", public_admissions(200))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config_values(world.bounds)))
    monkeypatch.setattr(folders, "_OPENED", {})
    monkeypatch.setenv("MINARI_DATASETS_PATH", sets)
    monkeypatch.setenv("PRIVRL_LEDGER", world.url)
    run, disks = f"{RUNS}/verbs", 0

    def privrl(*words: str) -> str:
        nonlocal disks
        disks += 1
        temporary = machine(tmp_path / f"disk{disks}", monkeypatch)
        said = CliRunner().invoke(app, list(words))
        assert said.exit_code == 0, said.output
        assert not list(temporary.glob(f"{WORKING_COPY}*"))
        return said.output

    privrl("run", str(tmp_path / "run.yaml"), "--out", run)
    privrl("certificate", "verify", f"{run}/certificate.json", "--ledger", world.url)
    judged = "s3://clinic/evaluations/one"
    words = ("--synthetic", RELEASED, "--reference", DATASET, "--trainers", "none")
    privrl("evaluate", *words, "--out", judged)
    audit = "s3://clinic/audits/one"
    privrl("audit", run, "--held-out", "intake/others-v0", "--out", audit)
    assert run in privrl("report", run)
    privrl("sample", run, "--size", "20", "--dataset", "intake/more-v0")
    assert sorted(store.ids()) == [DATASET, "intake/more-v0", "intake/others-v0", RELEASED]
    for out in (run, judged, audit):
        assert objects_at(private_prefix(ObjectUri(out))).read("report.html"), out
        assert not [name for name in objects_at(ObjectUri(out)).names() if "private" in name]
