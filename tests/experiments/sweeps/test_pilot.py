"""What a pilot of a sweep measures, on which rows, and what plans make of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.sweeps import pilot
from distributed_privrl.experiments.sweeps.costs import Pilot, cost_of
from distributed_privrl.experiments.sweeps.job import Job, TrialResult
from distributed_privrl.experiments.sweeps.pilot import _one_trial, _shortened, measured_pilot
from distributed_privrl.experiments.trials import TRAINING
from tests.worlds import grid, sweeps
from tests.worlds.choosing import JUDGE, Choosing
from tests.worlds.swept import public_sweep

ROW, READING, AGENTS = 0.01, 7.0, 3.0
"""CPU seconds of a clock that a trial moves."""


def trials_on_a_clock(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Let trials take what their counts say; return them as they are run."""
    now, ran = [0.0], list[Job]()

    def run_trial(job: Job, executor: Any, *, ledger: str, progress: Any) -> TrialResult:
        ran.append(job)
        size = job.config["output"]["size"]
        now[0] += READING + ROW * size + (40.0 if len(ran) == 1 else 0.0)  # imports, once
        progress(TRAINING, 0, 1)
        now[0] += AGENTS
        return TrialResult(
            name=job.name, values=job.values, score=1.0, epsilon=1.0, released="a/b-v0"
        )

    monkeypatch.setattr(pilot, "run_trial", run_trial)
    monkeypatch.setattr(pilot, "time", SimpleNamespace(process_time=lambda: now[0]))
    return ran


def test_a_pilot_tells_what_grows_from_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = trials_on_a_clock(monkeypatch)
    world = Choosing(tmp_path)
    found = measured_pilot(public_sweep(world, epsilons=[1, 4]), world.store, ledger=world.url)
    assert len(ran) == 3
    assert all(job.public for job in ran)
    assert all(job.config["privacy"]["epsilon"] == 1 for job in ran), "the first trial"
    sizes = [job.config["output"]["size"] for job in ran]
    assert sizes[0] == sizes[1] < sizes[2] < 250
    assert found.rows == JUDGE
    assert found.fixed == pytest.approx(READING, abs=0.1)
    assert found.growing == pytest.approx(250 * ROW, rel=0.02)
    assert found.judging == pytest.approx(AGENTS)
    assert found.spent > 3 * (READING + AGENTS)
    assert not [path for job in ran for path in [Path(job.folder)] if path.exists()]
    assert world.ledger.entries() == []


def test_trials_take_more_where_their_plans_count_more_work(tmp_path: Path) -> None:
    world = Choosing(tmp_path)
    asked = public_sweep(world, epsilons=[4], bins=True)
    measured = Pilot(rows=JUDGE, fixed=60.0, growing=120.0, judging=30.0, work=None, spent=9.0)
    plain = cost_of(asked, world.store)
    assert plain.pilot is None
    cost = cost_of(asked, world.store, measured)
    assert [one.minutes for one in cost.trials] == [3.5, 3.5]
    assert cost.minutes == 7.0
    assert cost.facts()["pilot"]["judging"] == 30.0
    assert replace(measured, work=2.0).minutes(3.0) == pytest.approx((60 + 180 + 30) / 60)


def test_a_pilot_of_a_sweep_that_pays_is_told_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials_on_a_clock(monkeypatch)
    world = Choosing(tmp_path)
    private = world.sweep(data__units=60)
    with pytest.raises(ConfigError, match="public rows alone: name some with --rows ID"):
        measured_pilot(private, world.store, ledger=world.url)
    (world.store.root / world.dataset / "data" / "metadata.json").rename(tmp_path / "gone")
    found = measured_pilot(private, world.store, rows=JUDGE, ledger=world.url)
    assert found.rows == JUDGE
    assert world.ledger.entries() == []


def test_a_pilot_looks_at_no_rows_of_anybody(tmp_path: Path) -> None:
    world = grid.Grid(tmp_path)
    sweeps.write_stand_in(world.store)
    hidden = "ward/hidden-v0"
    sweeps.write_stand_in(world.store, public=False, dataset=hidden)
    asked = sweeps.sweep(tmp_path, sweeps.COMPOSE)
    with pytest.raises(UnsafeError, match="was not declared public"):
        measured_pilot(asked, world.store, rows=hidden, ledger=world.url)
    world.budget(hidden)
    with pytest.raises(UnsafeError, match="cannot be public"):
        measured_pilot(asked, world.store, rows=sweeps.STAND_IN, ledger=world.url)


def test_agents_of_a_pilot_are_plain_loops_tried_as_often(tmp_path: Path) -> None:
    world = Choosing(tmp_path)
    asked = public_sweep(
        world,
        epsilons=[4],
        evaluation={"trainers": ["rllib_iql", "iql"], "steps": 1000},
        data__environment="CartPole-v1",
    )
    short = _shortened(_one_trial(asked, None), 0.033).base
    assert short.evaluation.trainers == ("iql",)
    assert short.evaluation.steps == 30
    assert short.output.size == round(0.033 * 250)
    assert (short.runtime.executor, short.runtime.workers) == ("local", 1)


def test_nothing_is_left_out_of_a_trial_that_has_nothing_to_leave_out(tmp_path: Path) -> None:
    """DP-APVI: a trial takes a second, and is run twice as it is."""
    store = DatasetStore(tmp_path / "datasets")
    sweeps.write_stand_in(store)
    asked = sweeps.sweep(tmp_path, sweeps.PUBLIC)
    found = measured_pilot(asked, store, ledger=f"sqlite:///{tmp_path / 'none.sqlite'}")
    assert 0 < found.growing < 60
    assert (found.fixed, found.judging) == (0, 0)
    assert not (tmp_path / "none.sqlite").exists()
