"""The agents of a run's own evaluation: checked first, kept as they end, tried again."""

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.options import settings_named
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.agents import failures, reasons
from distributed_privrl.experiments.release_evaluation import stored_trials
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.trials import AgentTrial
from tests.worlds.devices import Recorder
from tests.worlds.mazes import Mazes, config, maze_store


@dataclass(frozen=True)
class Idle:
    """Stands still, and fails when it is asked for the chosen times."""

    asked: list[int] = field(default_factory=list)
    fails: tuple[int, ...] = ()
    released_rows_only: bool = False
    keeps_rows: bool = True
    name: str = "idle"
    agent: str = "iql"

    def with_settings(self, settings: Any) -> "Idle":
        settings_named(self.agent, settings)
        return self

    def train(self, transitions: Any, spaces: Any, **options: Any) -> "Idle":
        self.asked.append(len(self.asked))
        if self.asked[-1] in self.fails:
            raise RuntimeError("no luck")
        options["on_evaluation"](options["steps"], self)
        return self

    def act(self, observations: Any) -> Any:
        return np.zeros((len(observations), 2), np.float32)


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return maze_store(tmp_path_factory.mktemp("datasets"))


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch) -> Mazes:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    return Mazes(tmp_path, master)


def evaluated(world: Mazes, trainer: Idle, *, resume: bool = False, **changes: Any) -> RunResult:
    evaluation: Mapping[str, Any] = {"trainers": ["idle"], "seeds": 2, "steps": 1, "episodes": 1}
    changes = {"runtime": {"workers": 1, "executor": "local"}, **changes}  # seeds in order
    given = {"evaluation": {**evaluation, **changes.pop("evaluation", {})}, **changes}
    where = {"executor": given.pop("executor", None), "resume": resume}
    return world.start(config(**given), more_trainers={"idle": trainer}, **where)


def test_a_resume_trains_what_failed_and_nothing_else(world: Mazes) -> None:
    world.budget()
    trainer = Idle(fails=(1,))
    first = evaluated(world, trainer)
    assert failures(first.trials) == {"idle, seed 1": "RuntimeError"}
    assert reasons(first.trials) == {"idle, seed 1": "RuntimeError: no luck"}
    for path in first.directory.path.rglob("*.json"):  # an error's text may quote rows and paths
        assert ("no luck" in path.read_text()) == (path.parent == first.directory.private)
    assert first.certificate.status == "valid"
    spent = world.ledger.accounts()[0].spent_epsilon
    second = evaluated(world, trainer, resume=True)
    assert failures(second.trials) == {}
    assert len(trainer.asked) == 3
    third = evaluated(world, trainer, resume=True, evaluation={"seeds": 3})
    assert len(trainer.asked) == 4
    assert [trial["seed"] for trial in third.trials] == [0, 1, 2]
    assert third.trials[:2] == second.trials
    assert third.certificate == first.certificate
    assert world.ledger.accounts()[0].spent_epsilon == spent
    assert stored_trials(third.directory, third.certificate) == third.trials
    path = third.directory.path / "evaluation.json"
    kept = path.read_text()
    path.write_text(kept.replace(third.certificate.digest, "0" * 64, 1))
    with pytest.raises(ConfigError, match="not trained on what this run released: delete"):
        stored_trials(third.directory, third.certificate)
    path.write_text(kept)
    with pytest.raises(ConfigError, match=r"another evaluation \(episodes differ\).*delete"):
        evaluated(world, trainer, resume=True, evaluation={"episodes": 2})


def test_agents_of_a_run_on_gpus_learn_there(world: Mazes, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    runtime = {"workers": 1, "executor": "local", "gpus_per_worker": 1.0}
    evaluated(world.budget(), Idle(), executor=recorder, runtime=runtime)
    assert recorder.devices[AgentTrial] == {"cuda"}


@pytest.mark.parametrize(
    ("trainer", "changes", "named"),
    [
        (Idle(), {"evaluation": {"trainers": ["none"]}}, "unknown trainer 'none'"),
        (Idle(), {"evaluation": {"options": {"idle": {"beta": 1}}}}, "write iql.key=value"),
        (Idle(), {"data__environment": None}, "needs data.environment"),
        (Idle(agent="discrete_cql"), {}, "must be a Discrete"),
    ],
)
def test_agents_that_cannot_be_trained_are_refused_before_anything_is_drawn(
    world: Mazes, trainer: Idle, changes: dict[str, Any], named: str
) -> None:
    world.budget()
    with pytest.raises(ConfigError, match=named):
        evaluated(world, trainer, **changes)
    assert world.ledger.entries() == []
    assert not (world.folder / "run").exists()


def test_rows_that_may_not_leave_are_not_shared(world: Mazes) -> None:
    sharing = Idle(released_rows_only=True)
    with pytest.raises(UnsafeError, match=r"idle may not read.*name iql"):
        evaluated(world, sharing, privacy__epsilon=None)
    assert not (world.folder / "run").exists()
    world.budget()
    assert not failures(evaluated(world, sharing).trials)  # a valid release may leave


def test_returns_of_an_unprotected_run_are_private(world: Mazes) -> None:
    result = evaluated(world, Idle(), privacy__epsilon=None)
    folder = result.directory.path
    assert {path.name for path in folder.iterdir()}.isdisjoint({"agents", "evaluation.json"})
    stored = result.directory.private / "evaluation.json"
    assert json.loads(stored.read_text()) == result.trials
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE((result.directory.private / "agents").stat().st_mode) == 0o700
    assert stored_trials(result.directory, result.certificate) == result.trials
