"""Sweeps on Ray Tune: killed, resumed, charged once, and silent about the ledger's password."""

import contextlib
import io
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import Executor
from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, results_of
from distributed_privrl.experiments.sweeps.preparing import prepared_jobs
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.runtime.tuning import run_jobs
from tests.runtime.killing import below, pids_of, title, wait_for_end
from tests.worlds import grid, sweeps
from tests.worlds.events import events_of, scalars_of, searched_in

RUNNING, TRIAL = "ImplicitFunc.train", "ImplicitFunc"
"""Title of a trial's process while it runs, and what stays of it between two trials."""
PASSWORD = "timeout=8675309"
"""A part of the ledger's URL, in place of a password."""
SECONDS = 120.0


@dataclass(frozen=True)
class Swept:
    """A sweep that the stays paid for, and what was seen of it."""

    world: grid.Grid
    jobs: tuple[Job, ...]
    errors: list[Exception]
    shown: str
    killed: list[int]

    @property
    def out(self) -> Path:
        return self.world.folder / "out"


def run_sweep(world: grid.Grid, *, resume: bool = False) -> tuple[tuple[Job, ...], list[Exception]]:
    """Run a sweep, one trial after the other, or go on with it."""
    directory, url = SweepDirectory(world.folder / "out"), f"{world.url}?{PASSWORD}"
    asked = sweeps.sweep(world.folder, sweeps.COMPOSE)
    jobs = prepared_jobs(asked, directory, store=world.store, ledger=url, resume=resume)
    storage = directory.scheduler(public=False)
    errors = run_jobs(jobs, storage=storage, ledger=url, public=False, concurrent=1, retries=2)
    return jobs, errors


def wait_for(condition: str, folder: Path) -> None:
    """Wait until a file of this pattern is there."""
    deadline = time.monotonic() + SECONDS
    while not any(folder.glob(condition)):
        assert time.monotonic() < deadline, f"never seen: {condition}"
        time.sleep(0.005)


def check_charges(world: grid.Grid, jobs: tuple[Job, ...]) -> None:
    """Each trial is charged once, and its certificate states what was."""
    entries = {entry.id: entry for entry in world.ledger.entries()}
    assert set(entries) == {RunDirectory(job.run).run_id for job in jobs}
    assert not [held for held in world.ledger.holds() if held.status == "open"]
    for job in jobs:
        checked = verify_certificate(job.run / "certificate.json", ledger=world.ledger)
        assert checked.ledger_checked


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, ray_executor: Executor) -> Swept:
    """One sweep for all tests; a trial's process is killed in the middle of its run."""
    world = grid.Grid(tmp_path_factory.mktemp("swept")).budget(epsilon=6)
    killed = list[int]()

    def kill() -> None:
        wait_for("out/trials/*/run/checkpoint/steps.safetensors", world.folder)
        killed.extend(pids_of(RUNNING)[:1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        jobs, errors = run_sweep(world)
    killer.join()
    return Swept(world, jobs, errors, shown.getvalue(), killed)


def test_a_trial_whose_process_was_killed_goes_on_by_itself(swept: Swept) -> None:
    assert swept.killed
    assert not swept.errors
    results = results_of(swept.jobs)
    assert [one.failed for one in results] == [""] * 4
    assert all(one.score is not None for one in results)


def test_each_trial_is_charged_once_and_released(swept: Swept) -> None:
    check_charges(swept.world, swept.jobs)


def test_each_trial_has_its_score_and_values_as_events(swept: Swept) -> None:
    for job, found in zip(swept.jobs, results_of(swept.jobs), strict=True):
        assert scalars_of(job.events) == [(0, "score", pytest.approx(found.score))]
        assert searched_in(job.events) == {
            "epsilon": job.values["privacy.epsilon"],
            "horizon": job.values["model.horizon"],
        }
        assert {event.wall_time for event in events_of(job.events)} == {0}
        assert RunDirectory(job.run).events.exists()


def test_the_table_has_a_column_for_each_value_the_score_and_epsilon(swept: Swept) -> None:
    head = next(line for line in swept.shown.splitlines() if "Trial name" in line)
    columns = [name.strip() for name in head.strip("| ").split("|")]
    assert columns[:2] == ["Trial name", "status"]
    assert columns[3:5] == ["horizon", "epsilon"]
    last = [line for line in swept.shown.splitlines() if "TERMINATED |" in line][-4:]
    found = [[cell.strip() for cell in line.strip("| ").split("|")] for line in last]
    for job, score in zip(swept.jobs, results_of(swept.jobs), strict=True):
        row = next(row for row in found if job.name.endswith(row[0]))
        assert row[3:5] == [str(value) for value in job.values.values()]
        assert float(row[5]) == pytest.approx(score.score, abs=1e-5)
        assert float(row[6]) == pytest.approx(score.epsilon, rel=1e-4)
    assert "time" not in head


def test_what_tune_keeps_of_sensitive_trials_is_their_owners_alone(swept: Swept) -> None:
    from ray._private.worker import _global_node

    private, session = swept.out / "private", Path(_global_node.get_session_dir_path())
    for folder in (private, session / "artifacts"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(private.glob("tune/trials/tuner.pkl"))
    assert {path.name for path in swept.out.iterdir()} == {"private", "sweep.yaml", "trials"}
    loggers = ("result.json", "progress.csv", "params.json", "*.tfevents.*")
    assert not [path for name in loggers for path in private.rglob(name)]
    assert not [path for name in loggers for path in session.rglob(name)]
    with pytest.raises(UnsafeError, match="trackers go with"):
        run_jobs(
            swept.jobs,
            storage=private / "tune",
            ledger=swept.world.url,
            public=False,
            concurrent=None,
            retries=0,
            trackers=["mlflow"],
        )


def test_the_password_of_the_ledger_reaches_no_file(swept: Swept) -> None:
    from ray._private.worker import _global_node

    session = Path(_global_node.get_session_dir_path())
    places = [path for folder in (swept.out, session) for path in folder.rglob("*")]
    files = [path for path in places if path.is_file()]
    names = {path.name for path in files}
    assert "tuner.pkl" in names
    assert any(name.startswith("worker-") for name in names)
    marks = (PASSWORD.encode(), PASSWORD.encode().hex().encode())
    assert not [path for path in files if any(mark in path.read_bytes() for mark in marks)]


def test_a_sweep_that_has_ended_runs_nothing_again(swept: Swept) -> None:
    def state() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (swept.out / "trials").rglob("*")}

    before, entries = state(), swept.world.ledger.entries()
    _, errors = run_sweep(swept.world, resume=True)
    assert not errors
    assert state() == before
    assert swept.world.ledger.entries() == entries


def test_a_sweep_whose_driver_was_killed_goes_on(tmp_path: Path, ray_executor: Executor) -> None:
    """The same command begins it and goes on with it; nothing is run or paid twice."""
    world = grid.Grid(tmp_path).budget(epsilon=6)
    selection, out = {**sweeps.COMPOSE, "concurrent": 1}, tmp_path / "out"
    file = sweeps.write(tmp_path, selection)
    words = ["sweep", str(file), "--out", str(out), "--resume=auto"]
    environment = {FOLDER_VARIABLE: str(world.store.root), "PRIVRL_LEDGER": world.url}
    script = f"import sys; from distributed_privrl.cli import main; sys.argv[1:] = {words}; main()"
    with (tmp_path / "said.txt").open("w") as said:
        driver = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, **environment},
            stdout=said,
            stderr=said,
        )
        wait_for("trials/*/trial.json", out)
        workers = [pid for pid in below(driver.pid) if TRIAL in title(pid)]
        driver.kill()
        driver.wait()
    assert workers
    wait_for_end(workers, seconds=SECONDS)
    ended = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/trial.json")}
    assert 1 <= len(ended) < 4
    charged = {entry.id for entry in world.ledger.entries()}

    again = CliRunner().invoke(app, words, env=environment)
    assert again.exit_code == 0, again.output
    assert "4 of 4 have ended" in again.output
    assert {path: path.stat().st_mtime_ns for path in ended} == ended
    jobs = prepared_jobs(
        sweeps.sweep(tmp_path, selection),
        SweepDirectory(out),
        store=world.store,
        ledger=world.url,
        resume=True,
    )
    check_charges(world, jobs)
    assert charged <= {entry.id for entry in world.ledger.entries()}
    assert (out / "chosen.yaml").exists()
