"""What is refused before a sweep's first trial starts, and what a public one never looks at."""

import shutil
import stat
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    RowsError,
    RowsWarning,
    UnsafeError,
)
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.metadata import FILE_NAME, PUBLIC_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments import run as run_module
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.sweeps import preparing, trial
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, claim, jobs_of, results_of
from distributed_privrl.experiments.sweeps.preparing import (
    _check_nobodys,
    check_budget,
    prepared_jobs,
)
from distributed_privrl.experiments.sweeps.trial import run_trial
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import read_certificate
from tests.worlds import grid, sweeps
from tests.worlds.events import scalars_of, searched_in


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
    jobs = prepare(tmp_path, sweeps.COMPOSE)
    assert held_by(world) == {RunDirectory(job.run).run_id for job in jobs}
    assert not world.ledger.entries()


def held_by(world: grid.Grid) -> set[str]:
    return {held.run_id for held in world.ledger.holds()}


def test_what_all_trials_may_cost_is_held_before_the_first_one_starts(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6.5)
    jobs = prepare(tmp_path, sweeps.COMPOSE)
    held = held_by(world)
    with pytest.raises(BudgetError, match=r"epsilon 0\.5 .* left, this needs 1 "):
        world.run(grid.values(privacy={"epsilon": 1.0, "delta": 1e-4}))
    again = prepare(tmp_path, sweeps.COMPOSE, resume=True)
    assert (held_by(world), again) == (held, jobs)

    first = jobs[0]
    done = run_trial(first, LocalExecutor(), ledger=world.url)
    assert {entry.id for entry in world.ledger.entries()} == {RunDirectory(first.run).run_id}
    assert RunDirectory(first.run).run_id in held, "the run found its hold"
    assert held_by(world) == held - {RunDirectory(first.run).run_id}
    assert done.epsilon is not None
    spent = world.ledger.accounts()[0].spent_epsilon
    assert spent == pytest.approx(done.epsilon + 5), "the rest of its own is free"
    prepare(tmp_path, sweeps.COMPOSE, resume=True)
    assert world.ledger.accounts()[0].spent_epsilon == spent


def test_a_trial_that_is_refused_holds_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    job, *others = prepare(tmp_path, sweeps.COMPOSE)

    def refused(*_: object, **__: object) -> None:
        warnings.warn("3 % of the rows", RowsWarning, stacklevel=1)
        raise RowsError("before its run held anything")

    monkeypatch.setattr(trial, "run", refused)
    with pytest.warns(UserWarning, match="a warning that tells of rows lies in") as said:
        assert run_trial(job, LocalExecutor(), ledger=world.url).failed == "refused"
    assert held_by(world) == {RunDirectory(one.run).run_id for one in others}
    assert not [one for one in said if "%" in str(one.message)], "a worker's log has it"
    kept = RunDirectory(job.run).refusal_path.read_text()
    assert kept == "3 % of the rows\nbefore its run held anything\n"


def test_a_trial_without_budget_leaves_no_hold_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run removes its folder, and the resumed sweep gives it another name."""
    world = grid.Grid(tmp_path).budget(epsilon=6)
    job, *_ = prepare(tmp_path, sweeps.COMPOSE)

    def refused(*_: object) -> None:
        raise BudgetError("before its run asked for its hold")

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "check_inputs", refused)
        with pytest.raises(BudgetError):
            run_trial(job, LocalExecutor(), ledger=world.url)
    assert not RunDirectory(job.run).facts_path.exists()
    again = prepare(tmp_path, sweeps.COMPOSE, resume=True)
    assert held_by(world) == {RunDirectory(one.run).run_id for one in again}


def test_all_trials_hold_their_budget_or_none_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody spends between the check and the holds."""
    world = grid.Grid(tmp_path).budget(epsilon=5)
    monkeypatch.setattr(preparing, "check_budget", lambda *_: None)
    with pytest.raises(BudgetError, match="epsilon 1 "):
        prepare(tmp_path, sweeps.COMPOSE)
    assert not world.ledger.holds()
    assert not (tmp_path / "out").exists()


def test_deltas_of_all_trials_stay_below_one_unit(tmp_path: Path) -> None:
    grid.Grid(tmp_path).budget(epsilon=50, delta=0.1)
    with pytest.raises(BudgetError, match="not below 1/units"):
        prepare(tmp_path, sweeps.COMPOSE, privacy__delta=1 / (4 * grid.UNITS))


def test_what_a_trial_has_charged_is_not_asked_for_again(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    jobs = prepare(tmp_path, sweeps.COMPOSE)
    check_budget(jobs, world.url)
    with pytest.raises(BudgetError, match="this needs 2"):
        check_budget([*jobs[:-1], _elsewhere(jobs[-1], tmp_path)], world.url)


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

    def note_dataset(store: DatasetStore, dataset: str, *, only: Sequence[str] = ()) -> Path:
        asked.append((store.root, dataset))
        return folder_of(store, dataset, only=only)

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
        told = [path for path in Path(job.run).rglob("*") if path.suffix in (".json", ".html")]
        assert not [path for path in told if '"valid"' in path.read_text()], "a report says so"
        assert not [path for path in told if "valid certificate" in path.read_text()]
    for job, result in zip(jobs, results, strict=True):
        assert scalars_of(job.events) == [(0, "score", pytest.approx(result.score))]
        assert searched_in(job.events) == {"epsilon": job.values["privacy.epsilon"]}


@pytest.mark.parametrize(
    "search",
    [
        {"privacy.epsilon": {"grid": [None, 2]}},
        {"privacy": {"grid": [{"epsilon": None, "delta": 1e-4}]}},
    ],
)
def test_no_trial_that_sensitive_rows_pay_for_is_without_privacy(
    tmp_path: Path, search: dict
) -> None:
    grid.Grid(tmp_path).budget(epsilon=50)
    with pytest.raises(UnsafeError, match="composed trial without privacy"):
        prepare(tmp_path, sweeps.COMPOSE, search=search)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["data", "output", "data.sensitive", "runtime.pretrained"])
def test_no_axis_changes_what_is_the_same_in_all_trials(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key} is not searched"):
        sweeps.sweep(tmp_path, sweeps.COMPOSE, search={key: {"grid": [1]}})


@pytest.mark.parametrize("selection", [sweeps.COMPOSE, sweeps.PUBLIC])
def test_rows_of_an_account_are_public_in_no_trial_and_judge_none(
    tmp_path: Path, selection: dict
) -> None:
    """Of any trial, and not of the first alone."""
    world, copied = grid.Grid(tmp_path).budget(epsilon=50), "ward/copied-v0"
    sweeps.write_stand_in(world.store)
    elsewhere = f"sqlite:///{tmp_path / 'elsewhere.sqlite'}"
    asked, out = sweeps.sweep(tmp_path, selection), SweepDirectory(tmp_path / "out")
    jobs = jobs_of(asked, out, store=world.store)
    shutil.copytree(world.store.root / grid.DATASET, world.store.root / copied)
    world.store.update_metadata(copied, {PUBLIC_KEY: True})
    judged = replace(jobs[-1], score=jobs[-1].score.model_copy(update={"to": copied}))
    config = {**jobs[-1].config, "data": {**jobs[-1].config["data"], "public": [copied]}}
    for job in (judged, replace(jobs[-1], config=config)):
        _check_nobodys(asked, [*jobs[:-1], job], world.store, elsewhere)  # nobody's, as it says
        with pytest.raises(UnsafeError, match="cannot be public"):
            _check_nobodys(asked, [*jobs[:-1], job], world.store, world.url)


def test_a_folder_is_of_one_sweep(tmp_path: Path) -> None:
    claim(tmp_path / "out" / "sweep.yaml", "one")
    with pytest.raises(ConfigError, match="holds a sweep: choose another --out"):
        claim(tmp_path / "out" / "sweep.yaml", "other")
    assert (tmp_path / "out" / "sweep.yaml").read_text() == "one"


def test_why_a_trial_on_sensitive_rows_was_refused_is_in_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=50)
    job = prepare(tmp_path, sweeps.COMPOSE)[0]

    def refused(*_: object, **__: object) -> None:
        raise UnsafeError("guess-b holds a patient")

    monkeypatch.setattr(trial, "run", refused)
    assert run_trial(job, LocalExecutor(), ledger=world.url).failed == "refused"
    told = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert not [path for path in told if b"guess-b" in path.read_bytes()]
    assert b"Unsafe" not in job.result_path.read_bytes()
