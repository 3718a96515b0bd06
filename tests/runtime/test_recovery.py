"""What is killed in the middle of a real run comes back, and the certificate tells the truth."""

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.executor import Executor
from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.experiments import run as program
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.runtime.executor import RayExecutor
from tests.chaos.faults import can_mount, emptied, filled, small_file_system
from tests.runtime.killing import below, killing, pids_of, title, wait_for_end
from tests.worlds import crowd, grid, mazes

SECONDS = 400.0


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


def check_against_ledger(
    result: program.RunResult, store: DatasetStore, ledger: Ledger, *, rounds: dict[str, int]
) -> int:
    """The certificate is valid and states what was reserved; return how many rounds were lost.

    ``rounds`` has those of each entry, by what follows the run's id.
    """
    checked = verify_certificate(
        result.directory.certificate, ledger=ledger, outputs_root=store.root
    )
    assert result.certificate.status == "valid"
    assert checked.ledger_checked
    lost = 0
    for name, count in rounds.items():
        entry = ledger.reserved(f"{result.directory.run_id}{name}")
        assert entry is not None
        assert entry.committed_rounds == count
        assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds
        lost += entry.reserved_rounds - count
    return lost


def test_value_iteration_goes_on_when_its_server_or_a_worker_is_killed(
    tmp_path: Path, ray_executor: Executor
) -> None:
    world = grid.Grid(tmp_path).budget()
    values = grid.values(training={"spare": 4}, runtime={"workers": 1})
    with killing("ReleaseServer.__init__", "ReleaseServer.advance", "CountWorker.counts"):
        result = world.run(values, executor=ray_executor, key=None)
    lost = check_against_ledger(result, world.store, world.ledger, rounds={"": grid.HORIZON})
    assert lost <= 1  # the step that was open; a worker's death costs nothing


def test_filter_and_rounds_of_experts_go_on_when_their_servers_are_killed(
    tmp_path: Path, ray_executor: Executor
) -> None:
    world = crowd.Crowd(tmp_path, crowd.crowd_store(tmp_path / "master"))
    with killing("ReleaseServer.advance", "ParameterServer.__init__", "ParameterServer.advance"):
        result = world.run(
            executor=ray_executor,
            key=None,
            runtime__workers=1,
            filter__draws=3,
            filter__spare=2,
            training__rounds=30,
            training__block_rounds=5,
            training__spare=10,
        )
    rounds = {"/filter": 3, "": 30}
    lost = check_against_ledger(result, world.store, world.ledger, rounds=rounds)
    assert lost <= 1 + 5


def test_an_interruption_stays_one_when_the_server_has_died(
    tmp_path: Path, ray_executor: Executor
) -> None:
    world = grid.Grid(tmp_path).budget()

    def stop(stage: str, done: int, *_: Any) -> None:
        if done == 5 and (pids := pids_of("ReleaseServer")):
            os.kill(pids[0], signal.SIGKILL)
            raise KeyboardInterrupt

    values = grid.values(runtime={"workers": 1})
    own = RayExecutor(workers=1, cpus_per_worker=0.5)  # on the Ray that is there; closed at the end
    with closing(own), pytest.raises(KeyboardInterrupt):
        world.run(values, executor=own, key=None, progress=stop)
    result = world.run(values, key=None, resume=True)
    check_against_ledger(result, world.store, world.ledger, rounds={"": grid.HORIZON})


@pytest.mark.skipif(not can_mount(), reason="only root may mount a small file system")
def test_a_disk_that_fills_up_at_a_checkpoint_is_told_and_the_run_goes_on(
    tmp_path: Path, ray_executor: Executor
) -> None:
    world = grid.Grid(tmp_path).budget()
    place = tmp_path / "runs"
    place.mkdir()
    values = grid.values(training={"spare": 4}, runtime={"workers": 1})
    with small_file_system(place):

        def fill(stage: str, done: int, *_: Any) -> None:
            if done == 5:
                filled(place)

        own = RayExecutor(workers=1, cpus_per_worker=0.5)
        with closing(own), pytest.raises(StorageError, match="free some space") as caught:
            world.run(values, "runs/run", executor=own, key=None, progress=fill)
        assert "\n" not in str(caught.value)
        emptied(place)
        result = world.run(values, "runs/run", key=None, resume=True)
        check_against_ledger(result, world.store, world.ledger, rounds={"": grid.HORIZON})


@pytest.mark.cluster
@pytest.mark.timeout(1200)  # on a busy machine Ray alone needs minutes
def test_workers_end_with_a_driver_that_is_killed_and_the_same_command_goes_on(
    tmp_path: Path,
) -> None:
    """Their memory holds rows and the keys of coins and noise."""
    world = grid.Grid(tmp_path).budget()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values(runtime={"executor": "ray"})))
    line = ("-m", "distributed_privrl.cli", "run", "run.yaml", "--out", "out", "--resume=auto")
    own = {**os.environ, FOLDER_VARIABLE: str(world.store.root), "PRIVRL_LEDGER": world.url}
    said, begun = tmp_path / "said.txt", tmp_path / "out" / "checkpoint" / "steps.safetensors"
    with (
        said.open("w") as file,
        subprocess.Popen(
            [sys.executable, *line], cwd=tmp_path, env=own, stdout=file, stderr=file
        ) as driver,
    ):
        try:
            deadline = time.monotonic() + SECONDS
            while not begun.exists():
                assert driver.poll() is None, said.read_text()
                assert time.monotonic() < deadline, said.read_text()
                time.sleep(0.005)
            titles = {pid: title(pid) for pid in below(driver.pid)}
        finally:
            driver.kill()
    assert driver.returncode == -signal.SIGKILL, said.read_text()
    actors = [pid for pid, name in titles.items() if "Worker" in name or "Server" in name]
    assert {"CountWorker", "ReleaseServer"} <= {
        titles[pid].removeprefix("ray::").partition(".")[0].partition("-")[0] for pid in actors
    }
    wait_for_end(actors, seconds=60)
    done = subprocess.run(
        [sys.executable, *line],
        cwd=tmp_path,
        env=own,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verify_certificate(tmp_path / "out" / "certificate.json", ledger=world.ledger)


@pytest.mark.slow
def test_every_process_of_a_run_may_be_killed(tmp_path: Path, ray_executor: Executor) -> None:
    mazes.maze_store(tmp_path / "datasets")
    world = mazes.Mazes(tmp_path).budget()
    training = mazes.config_values()["training"]
    killed = (
        "Pretrainer.__init__",
        "Pretrainer.advance",
        "LocalUpdateWorker.__init__",
        "ParameterServer.__init__",
        "ParameterServer.advance",
        "ParameterServer.__init__",
        "LocalUpdateWorker.clipped_sum",
        "ParameterServer.advance",
        "Sampler.__init__",
        "Sampler.advance",
        "AgentTrial.run",
    )
    with killing(*killed):
        result = world.run(
            executor=ray_executor,
            evaluation={"trainers": ["bc"], "steps": 400, "episodes": 1},
            training=training | {"rounds": 60, "block_rounds": 5, "spare": 20},
        )
    assert check_against_ledger(result, world.store, world.ledger, rounds={"": 60}) <= 2 * 5
