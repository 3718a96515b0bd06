import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.agents.algorithm import Algorithm
from distributed_privrl.agents.bc import BC
from distributed_privrl.collection import collect
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import reference_returns
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.evaluation.trainer import PlainTrainer, configured
from distributed_privrl.experiments.agents import ratio_section, return_ratios, returns_section
from distributed_privrl.experiments.evaluate import evaluate_datasets
from distributed_privrl.privacy.metrics import PublicValue

CERTIFICATE = {"status": "valid", "stages": [], "ledger_entries": ["entry-1"], "digest": "d"}
SMALL = {"seeds": 2, "steps": 20, "episodes": 2}


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    """Three datasets of CartPole: a released one, a sensitive one, a public one."""
    store = DatasetStore(tmp_path / "datasets")
    for name, public in (("gym/released-v0", False), ("gym/own-v0", False), ("gym/open-v0", True)):
        collect("cartpole-mixed", dataset=name, store=store, steps=600, public=public)
    store.update_metadata("gym/released-v0", {"privacy_certificate": CERTIFICATE})
    return store


@dataclass(frozen=True)
class Trainer:
    """Acts at random, and fails for chosen seeds; counts how often it was asked."""

    asked: list[int]
    fails: set[int] = field(default_factory=set)
    released_rows_only: bool = False
    name: str = "fake"
    algorithm: Algorithm[Any, Any] = BC()  # noqa: RUF009

    def train(self, transitions: Any, spaces: Any, **options: Any) -> "Trainer":
        self.asked.append(len(self.asked))
        if self.asked[-1] in self.fails:
            raise RuntimeError("no\nluck")
        steps, every = options["steps"], options["evaluate_every"]
        for step in range(every, steps + 1, every):
            options["on_evaluation"](step, self)
        return self

    def act(self, observations: Any) -> Any:
        return np.zeros(len(observations), np.int64)


def _evaluate(store: DatasetStore, out: Path, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"synthetic": "gym/released-v0", "executor": LocalExecutor(), **SMALL}
    return evaluate_datasets(store=store, out=out, **{**given, **options})


def _report(folder: Path) -> Iterator[tuple[str, Any]]:
    for section in json.loads((folder / "report.json").read_text())["sections"]:
        for metric in section["metrics"]:
            yield metric["name"], metric["value"]


def test_every_discrete_agent_has_its_cell(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = ("bc", "discrete_cql", "discrete_bcq")
    small = {
        name: PlainTrainer(configured(_plain(name), {"hidden": [8], "batch_size": 16}))
        for name in names
    }
    figures = _evaluate(store, out, trainers=names, more_trainers=small)
    assert set(figures) == {"dataset", "environment", *names}
    assert all(1 <= figures[name] <= 500 for name in names)
    cells = {path.name for path in (out / "agents").iterdir()}
    assert cells == {f"{name}-{seed}.json" for name in names for seed in (0, 1)}
    shown = dict(_report(out))
    assert {f"{name}: mean return over the last evaluations" for name in names} <= set(shown)
    assert not any("normalised" in name for name in shown)
    assert not (out / "private").exists()


def _plain(name: str) -> Algorithm[Any, Any]:
    from distributed_privrl.evaluation.trainer import ALGORITHMS

    return ALGORITHMS[name]


def test_a_failed_seed_is_shown_and_the_others_go_on(store: DatasetStore, tmp_path: Path) -> None:
    out, trainer = tmp_path / "out", Trainer(asked=[], fails={0})
    options = {"trainers": ("fake",), "more_trainers": {"fake": trainer}}
    figures = _evaluate(store, out, **options)
    assert figures["failed"] == {"fake, seed 0": "RuntimeError: no luck"}
    assert isinstance(figures["fake"], float)
    assert dict(_report(out))["fake, seed 0"] == "failed: RuntimeError: no luck"
    with pytest.raises(ConfigError, match="--resume"):
        _evaluate(store, out, **options)
    again = _evaluate(store, out, **options, resume=True)
    assert "failed" not in again
    assert len(trainer.asked) == 3  # the failed one alone is trained again
    with pytest.raises(ConfigError, match=r"another evaluation \(steps differ\)"):
        _evaluate(store, out, **{**options, "steps": 40}, resume=True)


def test_results_are_kept_as_they_end(store: DatasetStore, tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        if stage == "training agents" and done == 1:
            raise Stop

    out, trainer = tmp_path / "out", Trainer(asked=[])
    options = {"trainers": ("fake",), "more_trainers": {"fake": trainer}}
    with pytest.raises(Stop):
        _evaluate(store, out, **options, progress=progress)
    assert [path.name for path in (out / "agents").iterdir()] == ["fake-0.json"]
    _evaluate(store, out, **options, resume=True)
    assert len(trainer.asked) == 2


def test_all_seeds_may_fail(store: DatasetStore, tmp_path: Path) -> None:
    trainer = Trainer(asked=[], fails={0, 1})
    options = {"trainers": ("fake",), "more_trainers": {"fake": trainer}}
    figures = _evaluate(store, tmp_path / "out", **options)
    assert figures["fake"] == "failed"
    assert len(figures["failed"]) == 2


def test_real_rows_train_plain_loops_in_private(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainer = Trainer(asked=[], released_rows_only=True, algorithm=BC())
    figures = _evaluate(
        store,
        out,
        trainers=("fake",),
        more_trainers={"fake": trainer},
        reference="gym/own-v0",
        seeds=1,
    )
    assert set(figures) == {"dataset", "environment", "fake"}
    assert len(trainer.asked) == 1  # the reference is trained by the loop of the same agent
    ratios = json.loads((out / "private" / "ratios.json").read_text())
    real = json.loads((out / "private" / "agents-on-real-rows" / "bc-0.json").read_text())
    assert real["dataset"] == "gym/own-v0"
    assert ratios["fake"]["synthetic"] == pytest.approx(figures["fake"])
    assert ratios["fake"]["ratio"] == pytest.approx(figures["fake"] / ratios["fake"]["real"])
    assert "fake: synthetic / real" in dict(_report(out / "private"))
    assert "fake: synthetic / real" not in dict(_report(out))
    for path in (out / "private").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0 or path.is_dir()
    assert (out / "private").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("dataset", "allowed"),
    [("gym/released-v0", True), ("gym/open-v0", True), ("gym/own-v0", False)],
)
def test_who_shares_rows_gets_no_sensitive_ones(
    dataset: str, allowed: bool, store: DatasetStore, tmp_path: Path
) -> None:
    trainer = Trainer(asked=[], released_rows_only=True)
    options = {"trainers": ("fake",), "more_trainers": {"fake": trainer}, "synthetic": dataset}
    if allowed:
        _evaluate(store, tmp_path / "out", **options)
        assert trainer.asked
        return
    with pytest.raises(UnsafeError, match="fake may not read it"):
        _evaluate(store, tmp_path / "out", **options)
    assert not trainer.asked
    assert not (tmp_path / "out").exists()


def test_agents_for_other_actions_are_refused_before_any_is_trained(
    store: DatasetStore, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"td3bc.*train bc, discrete_bcq, discrete_cql instead"):
        _evaluate(store, tmp_path / "out", trainers=("bc", "td3bc"))
    assert not (tmp_path / "out").exists()


def test_agents_run_beside_each_other(
    store: DatasetStore, tmp_path: Path, ray_executor: Executor
) -> None:
    small = {
        "bc": PlainTrainer(configured(BC(), {"hidden": [8], "batch_size": 16})),
        "bad": Trainer(asked=[], fails={0}),
    }
    options = {"trainers": ("bc", "bad"), "more_trainers": small, "seeds": 1}
    apart = _evaluate(store, tmp_path / "ray", **options, executor=ray_executor, parallel=2)
    assert apart["failed"] == {"bad, seed 0": "RuntimeError: no luck"}
    assert apart == _evaluate(store, tmp_path / "here", **options)


def test_returns_are_normalised_where_references_are_known() -> None:
    curve = {"curve_steps": [1], "curve_returns": [[49.98]]}
    trial = {"trainer": "iql", "agent": "iql", "seed": 0, **curve}
    real = {**trial, "curve_returns": [[228.61]]}
    maze = "privrl/Maze2D-umaze-v0"
    section = returns_section([trial], maze, certificate={}, source="e")
    assert [one.value.value for one in section.metrics] == pytest.approx([49.98, 0])
    found = return_ratios([trial], [real], maze, {"iql": "iql"})
    assert found["iql"] == pytest.approx({"synthetic": 0, "real": 100, "ratio": 0}, abs=1e-9)
    worse = return_ratios([real], [{**trial, "curve_returns": [[-5.0]]}], "P-v1", {"iql": "iql"})
    assert ratio_section(worse, []).metrics[0].value == "not applicable"


@pytest.mark.parametrize(
    ("method", "epsilon", "maze", "shown"),
    [
        ("privorl_n", 8.2, "umaze", 70.3),
        ("privorl_n", 0.9, "umaze", 60.1),
        ("privorl_j", 10.0, "umaze", 49.8),
        ("privorl_n", 10.0, "umaze-dense", None),
        ("apvi", 10.0, "umaze", None),
        ("privorl_n", None, "umaze", None),
    ],
)
def test_the_paper_s_cell_stands_beside_the_same_cell(
    method: str, epsilon: float | None, maze: str, shown: float | None
) -> None:
    curve = {"curve_steps": [1], "curve_returns": [[100.0]]}
    trial = {"trainer": "rllib_iql", "agent": "iql", "seed": 0, **curve}
    certificate = {"method": method, "epsilon": epsilon}
    environment = f"privrl/Maze2D-{maze}-v0"
    section = returns_section([trial], environment, certificate=certificate, source="entry-1")
    *own, last = section.metrics
    if shown is None:
        assert not any("paper" in metric.name for metric in section.metrics)
        return
    assert len(own) == 2
    assert last.name == "rllib_iql: normalised return in the paper"
    assert last.value == PublicValue(shown)
    nearest = 1 if epsilon is not None and epsilon < 5 else 10
    assert f"at epsilon {nearest}: {shown / 71.0:.2f} of the same agent" in last.explanation


def test_evaluate_says_the_paper_s_cell(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "datasets")
    name, certified = "maze/released-v0", {**CERTIFICATE, "method": "privorl_n", "epsilon": 9.5}
    collect("maze2d-umaze", dataset=name, store=store, steps=700)
    store.update_metadata(name, {"privacy_certificate": certified})
    small = PlainTrainer(configured(_plain("iql"), {"hidden": [8], "batch_size": 16}))
    options = {"trainers": ("rllib_iql",), "more_trainers": {"rllib_iql": small}, "seeds": 1}
    figures = _evaluate(store, tmp_path / "out", synthetic=name, **{**options, "episodes": 1})
    (said,) = figures["published"].values()
    assert said.startswith("70.3, PrivORL-n on D4RL's maze2d-umaze at epsilon 10: 0.99 of")
    mean = figures["rllib_iql"]
    assert figures["normalised"]["rllib_iql"] == pytest.approx(
        normalised(mean, reference_returns("privrl/Maze2D-umaze-v0"))
    )
    assert dict(_report(tmp_path / "out"))["rllib_iql: normalised return in the paper"] == 70.3
