"""Datasets, bounds and runs in an object store, read and written by every process of a run on Ray.

`make s3` installs a server of S3, `make gs` one of Google Cloud Storage, apart from what the
project runs with; without one its tests are skipped.
"""

import json
import os
import re
import shlex
import shutil
import signal
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
from distributed_privrl.core.files import UNFINISHED, write_atomically
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
from tests.worlds.stores import AWS, GS, S3, SECRET, StoreKind
from tests.worlds.world import World

SECONDS = 60
DOCUMENTED = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, id=kind.scheme, marks=pytest.mark.skipif(bool(why), reason=why))
        for kind in (S3, GS)
        for why in (kind.missing,)
    ],
)
def server(request: pytest.FixtureRequest) -> Iterator[tuple[StoreKind, str]]:
    kind: StoreKind = request.param
    with kind.started() as endpoint:
        yield kind, endpoint


@pytest.fixture
def root(server: tuple[StoreKind, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URI of a bucket that is there."""
    kind, endpoint = server
    kind.reached(endpoint, monkeypatch)
    objects.filesystem_of.cache_clear()
    makes: fs.FileSystem = (
        fs.S3FileSystem(endpoint_override=endpoint, allow_bucket_creation=True)
        if kind is S3
        else fs.GcsFileSystem(anonymous=True, project_id="clinic")
    )
    makes.create_dir("clinic")
    yield kind.root
    objects.filesystem_of.cache_clear()


def test_a_bucket_that_is_not_there_is_named(root: str) -> None:
    other = DatasetStore(f"{root.replace('clinic', 'hospital')}/sets")
    for asked in (other.ids, lambda: write(other, DATASET, admissions())):
        with pytest.raises(StorageError, match=r"//hospital/sets.*: there is no such bucket"):
            asked()


def test_objects_are_replaced_listed_and_removed(root: str, tmp_path: Path) -> None:
    store = objects_at(ObjectUri(f"{root}/some where"))
    assert (store.names(), store.read("none"), store.read("a/none")) == ([], None, None)
    store.remove("none")
    names = ["a/b@c d%e.txt", "a/empty", "large"]
    large = tmp_path / "large"
    large.write_bytes(bytes(range(256)) * 2**16)  # 16 MiB: in parts
    store.put(names[0], b"before")
    store.put(names[0], b"after")
    store.put("a/empty", b"")
    assert store.put_file("large", large)[0] == 2**24
    assert (store.names(), store.names("a")) == (names, names[:2])
    assert store.names(seconds=3600) == []
    assert [store.read(name) for name in names[:2]] == [b"after", b""]
    assert store.fetch("large", tmp_path / "copy")[0] == 2**24
    assert (tmp_path / "copy").read_bytes() == large.read_bytes()
    store.remove("large")
    assert store.names() == names[:2]


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

    def __init__(self, world: Intake, sets: str) -> None:
        self.temporary = world.folder / "temporary"
        self.temporary.mkdir()
        self.world, self.environment = (
            world,
            os.environ
            | {
                "MINARI_DATASETS_PATH": sets,
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
    root: str, tmp_path: Path
) -> None:
    world, store = Intake(tmp_path).budget(), DatasetStore(f"{root}/sets")
    write(store, DATASET, admissions())
    objects_at(ObjectUri(root)).put("bounds.yaml", BOUNDS.encode())
    values = config_values(Path(), data__bounds=f"{root}/bounds.yaml")
    values["runtime"]["executor"] = "ray"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    command, out = Command(world, f"{root}/sets"), tmp_path / "out"

    said = killed(
        command.start("run", "run.yaml", "--out", str(out)),
        lambda: (
            (out / "config.yaml").exists()  # until then nothing has begun
            and len(list((out / "checkpoint").glob("[!.]*"))) >= 2
        ),
    )
    assert (DatasetStore(f"{root}/sets").ids(), (out / "certificate.json").exists()) == (
        [DATASET],
        False,
    )

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
    root: str, tmp_path: Path
) -> None:
    """Driver, server and workers find all of the run in the store; nothing but that is left."""
    world = Intake(tmp_path).budget()
    uri, local = f"{root}/runs/killed", tmp_path / "stayed"
    checkpoints = objects_at(ObjectUri(f"{root}/private/runs/killed"))

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
    root: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    method: Callable[[Path], tuple[World, Callable[[str], RunConfig]]],
) -> None:
    world, config_of = method(tmp_path)
    monkeypatch.setattr(folders, "_OPENED", {})

    def run(name: str, disk: str, *, fails: int = 0, resume: bool = False) -> int:
        machine(tmp_path / disk, monkeypatch)
        uri = ObjectUri(f"{root}/runs/{method.__name__}-{name}")
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
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, sets = Intake(tmp_path).budget(), f"{root}/verbs"
    store = DatasetStore(sets)
    write(store, DATASET, admissions())
    write(store, "intake/others-v0", public_admissions(200))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config_values(world.bounds)))
    monkeypatch.setattr(folders, "_OPENED", {})
    monkeypatch.setenv("MINARI_DATASETS_PATH", sets)
    monkeypatch.setenv("PRIVRL_LEDGER", world.url)
    run, disks = f"{root}/runs/verbs", 0

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
    judged = f"{root}/evaluations/one"
    words = ("--synthetic", RELEASED, "--reference", DATASET, "--trainers", "none")
    privrl("evaluate", *words, "--out", judged)
    audit = f"{root}/audits/one"
    privrl("audit", run, "--held-out", "intake/others-v0", "--out", audit)
    assert run in privrl("report", run)
    privrl("sample", run, "--size", "20", "--dataset", "intake/more-v0")
    assert sorted(store.ids()) == [DATASET, "intake/more-v0", "intake/others-v0", RELEASED]
    for out in (run, judged, audit):
        assert objects_at(private_prefix(ObjectUri(out))).read("report.html"), out
        assert not [name for name in objects_at(ObjectUri(out)).names() if "private" in name]


@pytest.mark.skipif(not AWS.exists(), reason="no command aws: make s3 installs it")
def test_a_bucket_with_the_documented_default_encrypts_what_is_private_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def aws(*words: str) -> str:
        return subprocess.check_output([AWS, *words], text=True, timeout=SECONDS)

    (line,) = re.findall(r"^ *aws (s3api put-bucket-encryption .*)$", DOCUMENTED.read_text(), re.M)
    monkeypatch.setattr(folders, "_OPENED", {})
    with S3.started() as endpoint:
        S3.reached(endpoint, monkeypatch)
        objects.filesystem_of.cache_clear()
        aws("s3api", "create-bucket", "--bucket", "clinic")
        aws(*shlex.split(line))
        with opened_folder(ObjectUri(f"{S3.root}/runs/one")) as out:
            (out / "private").mkdir()
            for name, content in {
                "metrics.jsonl": b"public",
                "private/report.html": b"not for release",
                "private/large.bin": bytes(2**24),  # in parts
            }.items():
                write_atomically(out / name, content)
        objects.filesystem_of.cache_clear()
        listed = json.loads(aws("s3api", "list-objects-v2", "--bucket", "clinic"))["Contents"]
        heads = {
            key: json.loads(aws("s3api", "head-object", "--bucket", "clinic", "--key", key))
            for key in (one["Key"] for one in listed)
        }
    assert len([key for key in heads if key.startswith("private/runs/one/")]) >= 4
    for key, head in heads.items():
        assert (head["ServerSideEncryption"], head["SSEKMSKeyId"]) == ("aws:kms", "alias/clinic"), (
            key
        )
