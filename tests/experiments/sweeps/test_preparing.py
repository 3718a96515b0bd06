"""What is refused before a sweep's first trial starts, and what a public one never looks at."""

import shutil
import stat
from pathlib import Path

import pytest

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.metadata import FILE_NAME
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, results_of
from distributed_privrl.experiments.sweeps.preparing import check_budget, prepared_jobs
from distributed_privrl.experiments.sweeps.trial import run_trial
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import read_certificate
from tests.worlds import grid, sweeps
from tests.worlds.events import scalars_of, searched_in
from tests.worlds.ledgers import holding


def prepare(folder: Path, selection: dict, *, resume: bool = False, **changes) -> tuple[Job, ...]:
    """Return the jobs of a sweep over the stays in ``folder``."""
    return prepared_jobs(
        sweeps.sweep(folder, selection, **changes),
        SweepDirectory(folder / "out"),
        store=DatasetStore(folder / "datasets"),
        ledger=f"sqlite:///{folder / 'ledger.sqlite'}",
        resume=resume,
    )


def test_a_sweep_that_pays_needs_a_budget_for_all_its_trials(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match=r"no budget .*--epsilon 6 --delta 0\.0004"):
        prepare(tmp_path, sweeps.COMPOSE)
    world = grid.Grid(tmp_path).budget(epsilon=5.9)
    with pytest.raises(BudgetError, match=r"this needs 6 and 0\.0004: .*--epsilon 6 "):
        prepare(tmp_path, sweeps.COMPOSE)
    assert not world.ledger.entries()
    assert not world.ledger.holds()
    assert not (tmp_path / "out").exists()
    world.budget(epsilon=6)
    assert len(prepare(tmp_path, sweeps.COMPOSE)) == 4
    assert not world.ledger.holds()


def test_deltas_of_all_trials_stay_below_one_unit(tmp_path: Path) -> None:
    grid.Grid(tmp_path).budget(epsilon=50, delta=0.1)
    with pytest.raises(BudgetError, match="not below 1/units"):
        prepare(tmp_path, sweeps.COMPOSE, privacy__delta=1 / (4 * grid.UNITS))


def test_what_a_trial_has_charged_is_not_asked_for_again(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    jobs = prepare(tmp_path, sweeps.COMPOSE)
    directory = RunDirectory(jobs[-1].run)
    directory.begin("test")
    rows = {"dataset": grid.DATASET, "fingerprint": _identity(world), "unit": "trajectory"}
    relation = world.ledger.accounts()[0].relation
    world.ledger.open_hold(holding(directory.run_id, epsilon=2.0, **rows, relation=relation))
    check_budget(jobs, world.url)
    with pytest.raises(BudgetError, match="this needs 6"):
        check_budget([*jobs[:-1], _elsewhere(jobs[-1], tmp_path)], world.url)


def _identity(world: grid.Grid) -> str:
    account = world.ledger.accounts()[0]
    return f"{account.fingerprint}:{account.partition}"


def _elsewhere(job: Job, folder: Path) -> Job:
    return Job(**{**vars(job), "folder": str(folder / "elsewhere")})


def test_a_sweeps_folder_is_new_or_resumed_with_the_same_file(tmp_path: Path) -> None:
    grid.Grid(tmp_path).budget(epsilon=50)
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match="holds no sweep to go on with: leave --resume out"):
        prepare(tmp_path, sweeps.COMPOSE, resume=True)
    prepare(tmp_path, sweeps.COMPOSE)
    with pytest.raises(ConfigError, match="holds a sweep: choose another --out, or --resume"):
        prepare(tmp_path, sweeps.COMPOSE)
    with pytest.raises(ConfigError, match="holds a sweep of another file"):
        prepare(tmp_path, sweeps.COMPOSE, resume=True, privacy__delta=2e-4)
    assert len(prepare(tmp_path, sweeps.COMPOSE, resume=True)) == 4
    assert stat.S_IMODE((out / "private").stat().st_mode) == 0o700


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="not empty and holds no sweep: choose another --out"):
        prepare(tmp_path, sweeps.COMPOSE)
    assert (tmp_path / "out" / "letter.txt").exists()


def test_trackers_are_told_of_public_trials_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="trackers"):
        sweeps.sweep(tmp_path, {**sweeps.COMPOSE, "trackers": ["wandb"]})
    assert sweeps.sweep(tmp_path, {**sweeps.PUBLIC, "trackers": ["mlflow"]})


def test_what_stands_in_must_be_public(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "datasets")
    sweeps.write_stand_in(store, public=False)
    with pytest.raises(UnsafeError, match="was not declared public"):
        prepare(tmp_path, sweeps.PUBLIC)
    assert not (tmp_path / "out").exists()
    with pytest.raises(UnsafeError, match="name another dataset"):
        prepare(tmp_path, {**sweeps.PUBLIC, "stand_in": grid.DATASET}, data__sensitive=grid.DATASET)


def test_rows_that_somebody_has_an_account_of_stand_in_for_nothing(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path)
    sweeps.write_stand_in(world.store)
    assert len(prepare(tmp_path, sweeps.PUBLIC)) == 4
    shutil.rmtree(tmp_path / "out")
    hidden = "ward/hidden-v0"
    sweeps.write_stand_in(world.store, public=False, dataset=hidden)
    world.budget(hidden)
    with pytest.raises(UnsafeError, match=f"cannot be public: .* budget as {hidden}"):
        prepare(tmp_path, sweeps.PUBLIC)
    assert not (tmp_path / "out").exists()


def test_a_public_sweep_opens_no_sensitive_dataset_and_no_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grid.Grid(tmp_path)
    sweeps.write_stand_in(world.store)
    (world.store.root / grid.DATASET / "data" / FILE_NAME).write_text("whoever reads this fails")
    asked, ledgers = list[tuple[Path, str]](), list[str]()
    folder_of, open_ledger = DatasetStore._data_folder, Ledger.__init__

    def note_dataset(store: DatasetStore, dataset: str) -> Path:
        asked.append((store.root, dataset))
        return folder_of(store, dataset)

    def note_ledger(ledger: Ledger, url: str | None = None) -> None:
        ledgers.append(str(url))
        open_ledger(ledger, url)

    monkeypatch.setattr(DatasetStore, "_data_folder", note_dataset)
    monkeypatch.setattr(Ledger, "__init__", note_ledger)
    jobs = prepare(tmp_path, sweeps.PUBLIC, search={"privacy.epsilon": {"grid": [1, 2]}})
    for job in jobs:
        run_trial(job, LocalExecutor(), ledger="sqlite:////never/opened.sqlite")

    assert {name for root, name in asked if root == world.store.root} == {sweeps.STAND_IN}
    assert {name for root, name in asked if root != world.store.root} == {grid.DATASET}
    trials = str(tmp_path / "out" / "trials")
    assert ledgers
    assert all(url.startswith(f"sqlite:///{trials}") for url in ledgers)
    assert not (tmp_path / "ledger.sqlite").exists()
    results = results_of(jobs)
    assert [one.failed for one in results] == ["", ""]
    assert all(one.score is not None for one in results)
    for job in jobs:
        certificate = read_certificate(job.run / "certificate.json")
        assert (certificate.status, certificate.epsilon) == ("non_private", None)
        assert not certificate.ledger_entries
    for job, result in zip(jobs, results, strict=True):
        assert scalars_of(job.events) == [(0, "score", pytest.approx(result.score))]
        assert searched_in(job.events) == {"epsilon": job.values["privacy.epsilon"]}
