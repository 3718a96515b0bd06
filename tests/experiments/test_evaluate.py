import json
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.agents.options import settings_named
from distributed_privrl.cli.progress import is_timed
from distributed_privrl.collection import collect
from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError, VerificationError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.environments import reference_returns
from distributed_privrl.evaluation.intervals import spread
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.evaluation.trainer import find_trainer
from distributed_privrl.experiments import evaluate as module
from distributed_privrl.experiments.agents import ratio_section, return_ratios, returns_section
from distributed_privrl.experiments.evaluate import (
    BEGUN_FILE,
    EvaluationRequest,
    Surroundings,
    evaluate_datasets,
)
from distributed_privrl.experiments.trials import AgentTrial
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS
from tests.worlds.answers import answer
from tests.worlds.certified import ENTRY, certify
from tests.worlds.devices import Recorder

RELEASED = Sourced.released(answer("gym/released-v0", ENTRY))
SMALL = {"seeds": 2, "steps": 20, "episodes": 2}
CHOSEN = {"steps": 1, "episodes": 1, "options": {}}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    """Three datasets of CartPole: a released one, a sensitive one, a public one."""
    store = DatasetStore(tmp_path_factory.mktemp("master"))
    for name, public in (("gym/released-v0", False), ("gym/own-v0", False), ("gym/open-v0", True)):
        collect("cartpole-mixed", dataset=name, store=store, steps=600, public=public)
    certify(store, "gym/released-v0")
    return store


@pytest.fixture
def store(master: DatasetStore, tmp_path: Path) -> DatasetStore:
    """A copy of them."""
    shutil.copytree(master.root, tmp_path / "datasets")
    return DatasetStore(tmp_path / "datasets")


@dataclass(frozen=True)
class Trainer:
    """Acts at random, and fails for chosen seeds; counts how often it was asked."""

    asked: list[int]
    fails: set[int] = field(default_factory=set)
    released_rows_only: bool = False
    keeps_rows: bool = True
    name: str = "fake"
    agent: str = "bc"

    def with_settings(self, settings: Any) -> "Trainer":
        settings_named(self.agent, settings)
        return self

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
    given: dict[str, Any] = {"synthetic": "gym/released-v0", **SMALL, **options}
    resume, names = given.pop("resume", False), {one.name for one in fields(Surroundings)}
    around = Surroundings(store=store, **{name: given.pop(name) for name in names & given.keys()})
    return evaluate_datasets(EvaluationRequest(**given), around, out=out, resume=resume)


def _report(folder: Path) -> Iterator[tuple[str, Any]]:
    for section in json.loads((folder / "report.json").read_text())["sections"]:
        for metric in section["metrics"]:
            yield metric["name"], metric["value"]


def test_every_discrete_agent_has_its_cell(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    names = ("bc", "discrete_cql", "discrete_bcq")
    small = {name: find_trainer(name, {"hidden": [8], "batch_size": 16}) for name in names}
    figures = _evaluate(store, out, trainers=names, more_trainers=small)
    assert set(figures) == {"dataset", "environment", "kind", *names}
    assert all(1 <= figures[name] <= 500 for name in names)
    cells = {path.name for path in (out / "agents").iterdir()}
    assert cells == {f"{name}-{seed}.json" for name in names for seed in (0, 1)}
    shown = dict(_report(out))
    assert {f"{name}: mean return over the last evaluations" for name in names} <= set(shown)
    assert not any("normalised" in name for name in shown)
    assert not (out / "private").exists()


def test_agents_compute_on_the_device_that_is_asked_for(
    store: DatasetStore, tmp_path: Path
) -> None:
    recorder, small = Recorder(), find_trainer("bc", {"hidden": [8], "batch_size": 16})
    chosen: dict[str, Any] = {"trainers": ("bc",), "more_trainers": {"bc": small}, "seeds": 1}
    with_reference = {"reference": "gym/open-v0", "start_executor": lambda: recorder}
    _evaluate(store, tmp_path / "out", device="cuda", **chosen, **with_reference)
    assert recorder.devices == {AgentTrial: {"cuda"}}
    found = [json.loads(path.read_text()) for path in tmp_path.rglob("bc-0.json")]
    assert len(found) == 2
    assert not any("failed" in trial for trial in found)


@pytest.mark.gpu
def test_agents_learn_on_a_gpu(store: DatasetStore, tmp_path: Path) -> None:
    found = [
        _evaluate(store, tmp_path / device, trainers=("bc",), device=device, steps=20, seeds=1)
        for device in ("cpu", "cuda")
    ]
    assert found[1]["bc"] == pytest.approx(found[0]["bc"], rel=0.2)


def test_a_failed_seed_is_shown_and_the_others_go_on(store: DatasetStore, tmp_path: Path) -> None:
    out, trainer = tmp_path / "out", Trainer(asked=[], fails={0})
    options = {"trainers": ("fake",), "more_trainers": {"fake": trainer}}
    figures = _evaluate(store, out, **options)
    assert figures["failed"] == {"fake, seed 0": "RuntimeError: no luck"}
    assert isinstance(figures["fake"], float)
    assert dict(_report(out))["fake, seed 0"] == "failed: RuntimeError"
    for path in out.rglob("*.*"):  # the text of an error may quote rows and paths
        assert (b"no luck" in path.read_bytes()) == (path == out / "private" / "failures.json")
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
        if stage == "training agents" and "agents done 1/2" in note:
            assert done == SMALL["steps"]
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
    trainer = Trainer(asked=[], released_rows_only=True)
    figures = _evaluate(
        store,
        out,
        trainers=("fake",),
        more_trainers={"fake": trainer},
        reference="gym/own-v0",
        seeds=1,
    )
    assert set(figures) == {"dataset", "environment", "kind", "fake"}
    assert len(trainer.asked) == 1  # the reference is trained by the loop of the same agent
    ratios = json.loads((out / "private" / "ratios.json").read_text())
    real = json.loads((out / "private" / "agents-on-real-rows" / "bc-0.json").read_text())
    assert real["dataset"] == "gym/own-v0"
    assert ratios["fake"]["synthetic"] == pytest.approx(figures["fake"])
    assert ratios["fake"]["ratio"] == pytest.approx(figures["fake"] / ratios["fake"]["real"])
    shown = dict(_report(out / "private"))
    assert "fake: synthetic / real" in shown
    assert shown["fake, synthetic: mean return"] == pytest.approx(figures["fake"])
    assert shown["fake, real: mean return"] == pytest.approx(ratios["fake"]["real"])
    assert "fake: synthetic / real" not in dict(_report(out))
    for path in (out / "private").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
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
    with pytest.raises(UnsafeError, match="fake may not"):
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
        "bc": find_trainer("bc", {"hidden": [8], "batch_size": 16}),
        "bad": Trainer(asked=[], fails={0}),
    }
    options = {"trainers": ("bc", "bad"), "more_trainers": small, "seeds": 1}
    options["start_executor"] = partial(RayExecutor, workers=2, cpus_per_worker=0.5)
    apart = _evaluate(store, tmp_path / "ray", **options, parallel=2)
    options["start_executor"] = LocalExecutor
    assert apart["failed"] == {"bad, seed 0": "RuntimeError: no luck"}
    assert apart == _evaluate(store, tmp_path / "here", **options)


def test_returns_are_normalised_where_references_are_known() -> None:
    curve = {"curve_steps": [1], "curve_returns": [[49.98]]}
    trial = {"trainer": "iql", "agent": "iql", "seed": 0, **CHOSEN, **curve}
    real = {**trial, "curve_returns": [[228.61]]}
    maze = "privrl/Maze2D-umaze-v0"
    section = returns_section([trial], maze, certificate={}, source=RELEASED)
    assert [one.value.value for one in section.metrics] == pytest.approx([1, 49.98, 0])
    found = return_ratios([trial], [real], maze, {"iql": "iql"})
    assert found["iql"].pop("normalised") is True
    assert found["iql"] == pytest.approx({"synthetic": 0, "real": 100, "ratio": 0}, abs=1e-9)
    worse = ([real], [{**trial, "curve_returns": [[-5.0]]}], "P-v1", {"iql": "iql"})
    assert return_ratios(*worse)["iql"]["ratio"] is None
    assert return_ratios(*worse)["iql"]["normalised"] is False
    *sides, ratio = ratio_section(*worse).metrics
    assert ratio.value == "not applicable"
    assert [side.value for side in sides] == pytest.approx([228.61, -5])
    assert all(side.explanation == "1 ok, 0 failed; 1 seed, no interval" for side in sides)


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
    trial = {"trainer": "rllib_iql", "agent": "iql", "seed": 0, **CHOSEN, **curve}
    certificate = {"method": method, "epsilon": epsilon}
    environment = f"privrl/Maze2D-{maze}-v0"
    section = returns_section([trial], environment, certificate=certificate, source=RELEASED)
    *own, last = section.metrics
    if shown is None:
        assert not any("paper" in metric.name for metric in section.metrics)
        return
    assert len(own) == 3
    assert last.name == "rllib_iql: normalised return in the paper"
    assert last.value == PublicValue(shown)
    nearest = 1 if epsilon is not None and epsilon < 5 else 10
    assert f"at epsilon {nearest}: {shown / 71.0:.2f} of the same agent" in last.explanation


def test_a_report_has_the_paper_s_cell(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "datasets")
    name = "maze/released-v0"
    collect("maze2d-umaze", dataset=name, store=store, steps=700)
    certify(store, name, epsilon=9.5)
    small = find_trainer("iql", {"hidden": [8], "batch_size": 16})
    options = {"trainers": ("rllib_iql",), "more_trainers": {"rllib_iql": small}, "seeds": 1}
    figures = _evaluate(store, tmp_path / "out", synthetic=name, **{**options, "episodes": 1})
    assert figures["normalised"]["rllib_iql"] == pytest.approx(
        normalised(figures["rllib_iql"], reference_returns("privrl/Maze2D-umaze-v0"))
    )
    assert "published" not in figures
    assert dict(_report(tmp_path / "out"))["rllib_iql: normalised return in the paper"] == 70.3


class Quoting(Trainer):
    """Fails and quotes the rows."""

    def train(self, transitions: Any, spaces: Any, **options: Any) -> "Trainer":
        raise ConfigError(f"the largest observation is {transitions.observations.max()}")


def test_nothing_is_said_of_rows_that_may_not_leave(store: DatasetStore, tmp_path: Path) -> None:
    told: list[str] = []
    options: dict[str, Any] = {
        "synthetic": "gym/own-v0",
        "trainers": ("fake", "quoting"),
        "more_trainers": {"fake": Trainer(asked=[]), "quoting": Quoting(asked=[], name="quoting")},
        "progress": lambda stage, *_: told.append(stage),
    }
    figures = _evaluate(store, tmp_path / "out", **options)
    assert figures == {"dataset": "gym/own-v0", "environment": "CartPole-v1", "kind": "private"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"private", BEGUN_FILE}
    begun = json.loads((tmp_path / "out" / BEGUN_FILE).read_text())
    assert begun == {"dataset": "gym/own-v0", "kind": "private"}
    folder = tmp_path / "out" / "private"
    assert stat.S_IMODE((folder / "agents").stat().st_mode) == 0o700
    assert json.loads((folder / "failures.json").read_text())["quoting, seed 1"].startswith(
        "ConfigError: the largest observation"
    )
    assert told
    assert not any(is_timed(stage) for stage in told)


@dataclass
class Recording:
    """An executor that keeps what its workers raise, as a cluster's records do."""

    raised: list[Exception] = field(default_factory=list)

    def start(self, *given: Any, **options: Any) -> Any:
        group = LocalExecutor().start(*given, **options)
        inner = group.call

        def call(*given: Any, **options: Any) -> list[Any]:
            try:
                return inner(*given, **options)
            except Exception as error:
                self.raised.append(error)
                raise

        group.call = call  # type: ignore[method-assign]
        return group

    def close(self) -> None:
        pass


@pytest.mark.parametrize("reference", [False, True])
def test_no_worker_raises_on_rows_that_may_not_leave(
    reference: bool, store: DatasetStore, tmp_path: Path
) -> None:
    executor, out = Recording(), tmp_path / "out"
    fine, quoting = Trainer(asked=[]), Quoting(asked=[])
    options: dict[str, Any] = {"synthetic": "gym/own-v0", "more_trainers": {"fake": quoting}}
    if reference:
        options = {"reference": "gym/own-v0", "more_trainers": {"fake": fine, "bc": quoting}}
    _evaluate(store, out, **options, trainers=("fake",), start_executor=lambda: executor)
    assert executor.raised == []
    assert "failed: ConfigError" in str(list(_report(out / "private")))  # its owner is told


@pytest.mark.parametrize("dataset", ["gym/released-v0", "gym/own-v0"])
def test_progress_within_an_agent_where_rows_may_leave_alone(
    dataset: str, store: DatasetStore, tmp_path: Path
) -> None:
    told: list[int] = []
    _evaluate(
        store,
        tmp_path / "out",
        synthetic=dataset,
        trainers=("fake",),
        more_trainers={"fake": Trainer(asked=[])},
        progress=lambda _, done, *__: told.append(done),
    )
    may_leave = dataset == "gym/released-v0"
    assert sorted(set(told)) == list(range(0, 41, 2 if may_leave else 20))
    assert told == sorted(told)


@pytest.mark.parametrize("dataset", ["gym/released-v0", "gym/own-v0"])
def test_a_report_says_what_was_trained(dataset: str, store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _evaluate(
        store,
        out,
        synthetic=dataset,
        reference="gym/open-v0",
        trainers=("bc",),
        options={"bc": {"hidden": [8], "batch_size": 16}},
        seeds=1,
        steps=4,
    )
    folders = [out / "private", *([out] if dataset == "gym/released-v0" else [])]
    caption = "Gradient steps an agent: 4. Episodes of each evaluation: 2, in CartPole-v1."
    for folder in folders:
        for name in ("report.html", "report.json"):
            assert caption in (folder / name).read_text()
    report = json.loads((folders[-1] / "report.json").read_text())
    shown = {one["name"]: one for part in report["sections"] for one in part["metrics"]}
    steps = shown["bc: gradient steps"]
    assert (steps["value"], steps["kind"]) == (4, "public")
    note = "options: batch_size=16, hidden=[8]; episodes of each evaluation: 2"
    assert steps["explanation"] == note


def test_report_and_results_agree_when_other_agents_are_asked_for(
    store: DatasetStore, tmp_path: Path
) -> None:
    out, trainers = tmp_path / "out", {name: Trainer(asked=[], name=name) for name in ("a", "b")}
    trainers["b"].fails.update({0})

    def evaluate(*names: str, resume: bool = True) -> None:
        _evaluate(store, out, trainers=names, more_trainers=trainers, resume=resume, seeds=1)

    def shown() -> tuple[set[str], set[str]]:
        kept = out / "evaluation.json"
        trials = json.loads(kept.read_text()) if kept.exists() else []
        names = {name[0] for name, _ in _report(out) if name.startswith(("a", "b"))}
        return names, {trial["trainer"] for trial in trials}

    evaluate("a", "b", resume=False)
    assert shown() == ({"a", "b"}, {"a", "b"})
    assert (out / "private" / "failures.json").exists()
    evaluate("b")
    assert shown() == ({"b"}, {"b"})
    assert not (out / "private" / "failures.json").exists()  # it was put right
    evaluate()
    assert shown() == (set(), set())
    evaluate("a", "b")
    assert shown() == ({"a", "b"}, {"a", "b"})
    assert (len(trainers["a"].asked), len(trainers["b"].asked)) == (1, 2)


def test_ratios_go_with_the_agents(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"reference": "gym/open-v0", "more_trainers": {"bc": Trainer(asked=[])}, "seeds": 1}
    _evaluate(store, out, **options, trainers=("bc",))
    assert (out / "private" / "ratios.json").exists()
    _evaluate(store, out, **options, trainers=(), resume=True)
    assert not (out / "private" / "ratios.json").exists()
    assert not any(name.startswith("bc") for name, _ in _report(out / "private"))


@pytest.mark.parametrize("dataset", ["gym/released-v0", "gym/own-v0", "gym/open-v0"])
def test_the_ledger_is_opened_for_public_datasets_alone(
    dataset: str, store: DatasetStore, tmp_path: Path
) -> None:
    path = tmp_path / "ledger" / "ledger.sqlite"
    url = f"sqlite:///{path}"
    _evaluate(store, tmp_path / "out", synthetic=dataset, trainers=(), ledger_url=url)
    assert path.exists() == (dataset == "gym/open-v0")


def test_times_are_shown_where_rows_may_leave(store: DatasetStore, tmp_path: Path) -> None:
    told: list[str] = []
    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}}
    _evaluate(store, tmp_path / "out", **options, progress=lambda stage, *_: told.append(stage))
    assert {is_timed(stage) for stage in told} == {True}


def test_rows_that_cannot_be_shown_are_a_private_line(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def content_section(rows: Any, *_: Any, **__: Any) -> Section:
        raise ValueError(f"the range [0, {rows.content.max()}] is too wide")

    monkeypatch.setattr(module, "content_section", content_section)
    figures = _evaluate(store, tmp_path / "out", synthetic="gym/own-v0", trainers=())
    assert figures["kind"] == "private"
    ((name, value),) = _report(tmp_path / "out" / "private")
    assert name == "What is in the dataset"
    assert value.startswith("failed: ValueError: the range [0, ")
    with pytest.raises(ValueError, match="too wide"):
        _evaluate(store, tmp_path / "shown", trainers=())


@dataclass(frozen=True)
class Replacing(Trainer):
    """Puts other rows under the dataset's id once it has been trained."""

    store: DatasetStore | None = None

    def train(self, transitions: Any, spaces: Any, **options: Any) -> "Trainer":
        assert self.store is not None
        for path in self.store.files("gym/own-v0"):
            shutil.copy(path, self.store.root / "gym/released-v0" / "data" / path.name)
        return super().train(transitions, spaces, **options)


def test_rows_replaced_between_two_agents_are_not_taken_for_released(
    store: DatasetStore, tmp_path: Path
) -> None:
    shutil.rmtree(store.root / "gym/own-v0")
    collect("cartpole-mixed", dataset="gym/own-v0", store=store, steps=600, seed=9)
    trainer = Replacing(asked=[], store=store)
    with pytest.raises(VerificationError, match="is not what the certificate names"):
        _evaluate(store, tmp_path / "out", trainers=("fake",), more_trainers={"fake": trainer})
    assert len(trainer.asked) == 1
    assert not (tmp_path / "out" / "report.html").exists()
    assert not (tmp_path / "out" / "evaluation.json").exists()


def _with_bad_row(store: DatasetStore, name: str, column: str, value: Any) -> None:
    info = store.info("gym/own-v0")
    (rows,) = store.iter_transitions("gym/own-v0", unit="transition")
    values = {item.name: np.array(getattr(rows, item.name)) for item in fields(rows)}
    values[column][5] = value
    store.write_transitions(
        name,
        [Transitions(**values)],
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
        environment=info.environment,
    )


def test_a_reference_changes_nothing_but_private(store: DatasetStore, tmp_path: Path) -> None:
    _with_bad_row(store, "gym/nan-v0", "observations", np.nan)
    _with_bad_row(store, "gym/category-v0", "actions", 17)
    small = find_trainer("bc", {"hidden": [8], "batch_size": 16})
    seen = []
    for reference in ("gym/own-v0", "gym/nan-v0", "gym/category-v0"):
        out, told = tmp_path / reference, []
        figures = _evaluate(
            store,
            out,
            trainers=("small",),
            more_trainers={"small": small, "bc": small},
            reference=reference,
            seeds=1,
            progress=lambda *said, told=told: told.append(said),
        )
        private = dict(_report(out / "private"))
        assert isinstance(private["small, real: mean return"], float)  # the bad row is left out
        files = {
            path.relative_to(out): path.read_bytes()
            for path in out.rglob("*")
            if path.is_file() and path.relative_to(out).parts[0] != "private"
        }
        assert files
        seen.append((figures, told, files))
    assert seen[0] == seen[1] == seen[2]


def test_errors_of_a_reference_are_private(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fine = find_trainer("bc", {"hidden": [8], "batch_size": 16})
    figures = _evaluate(
        store,
        out,
        trainers=("small",),
        more_trainers={"small": fine, "bc": Quoting(asked=[])},
        reference="gym/own-v0",
        seeds=1,
    )
    assert "failed" not in figures
    shown = dict(_report(out / "private"))
    assert shown["small, real: mean return"] == "all failed"
    assert shown["bc, seed 0, on the real dataset"].startswith("failed: ConfigError: the largest")


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sections are left out: plots cost more than all else together."""
    for name in ("content_section", "returns_section"):
        monkeypatch.setattr(module, name, lambda *_, **__: Section(title="left out"))


@pytest.mark.usefixtures("bare")
def test_a_new_release_is_trained_anew(store: DatasetStore, tmp_path: Path) -> None:
    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}}
    for dataset in ("gym/released-v0", "gym/open-v0", "gym/own-v0"):
        out = tmp_path / dataset
        _evaluate(store, out, **options, synthetic=dataset)
        _evaluate(store, out, **options, synthetic=dataset, resume=True)
        public = dataset == "gym/open-v0"
        shutil.rmtree(store.root / dataset)
        collect("cartpole-mixed", dataset=dataset, store=store, steps=600, seed=9, public=public)
        if dataset == "gym/released-v0":
            certify(store, dataset)
        with pytest.raises(ConfigError, match=r"another evaluation \(content differ\)"):
            _evaluate(store, out, **options, synthetic=dataset, resume=True)


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("bare")
def test_a_folder_of_something_else_is_not_gone_on_with(
    store: DatasetStore, tmp_path: Path
) -> None:
    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}, "seeds": 1}
    run, begun = tmp_path / "run", tmp_path / "begun"
    run.mkdir()
    (run / "report.html").write_text("of a run")  # also one that has no evaluation of ours
    _evaluate(store, begun, **options, synthetic="gym/own-v0")
    for out, named in ((run, "no evaluation to go on with"), (begun, "of gym/own-v0, not of")):
        before = _contents(out)
        with pytest.raises(ConfigError, match=f"{named}.*choose"):
            _evaluate(store, out, **options, resume=True)
        assert _contents(out) == before
    (begun / BEGUN_FILE).write_text("{")
    with pytest.raises(StorageError, match="is damaged: choose another --out"):
        _evaluate(store, begun, **options, resume=True)


@pytest.mark.usefixtures("bare")
def test_what_was_shown_of_rows_that_may_not_leave_any_more_is_named(
    store: DatasetStore, tmp_path: Path
) -> None:
    """A declaration that was withdrawn: the public report is not left beside a private one."""
    out = tmp_path / "out"
    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}, "seeds": 1}
    _evaluate(store, out, **options, synthetic="gym/open-v0")
    shutil.rmtree(store.root / "gym/open-v0")
    shutil.copytree(store.root / "gym/own-v0", store.root / "gym/open-v0")
    before = _contents(out)
    with pytest.raises(ConfigError, match=r"was public .* is private now: delete") as refused:
        _evaluate(store, out, **options, synthetic="gym/open-v0", resume=True)
    for name in ("report.html", "report.json", "evaluation.json", "agents"):
        assert str(out / name) in str(refused.value)
    assert _contents(out) == before


def test_a_public_dataset_needs_no_certificate(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}}
    figures = _evaluate(store, out, **options, synthetic="gym/open-v0")
    assert figures["kind"] == "public"
    assert isinstance(figures["fake"], float)
    assert not (out / "private").exists()
    report = json.loads((out / "report.json").read_text())
    assert report["certificate"]["status"] == "declared public"
    kinds = {metric["kind"] for part in report["sections"] for metric in part["metrics"]}
    assert kinds == {"public"}
    page = (out / "report.html").read_text()
    assert "declared its rows public" in page
    for wrong in ("sensitive", "not valid", "must not be released", "private model", "public ones"):
        assert wrong not in page


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"reference": "gym/none-v0"}, "no dataset"),
        ({"reference": "gym/own-v0", "public": "gym/none-v0"}, "no dataset"),
        ({"reference": "gym/released-v0"}, "--reference gym/released-v0 is the dataset itself"),
        ({"reference": "maze/other-v0"}, "--reference maze/other-v0 cannot be compared"),
        ({"environment": "Pendulum-v1"}, "'Pendulum-v1' does not fit the dataset: its observation"),
        ({"environment": "Nowhere-v1"}, "leave --env out to take the dataset's own, CartPole-v1"),
        ({"environment": "maze2d-umaze"}, "did you mean privrl/Maze2D-umaze-v0, "),
        ({"trainers": ("iqll",)}, "unknown trainer 'iqll': did you mean iql"),
        ({"options": {"iql": {"beta": 3}}}, "iql, which is not trained"),
        ({"options": {"iqll": {"beta": 3}}}, "which is no agent: did you mean iql"),
        ({"options": {"training": {"rounds": 3}}}, "training, which is no agent: choose from bc, "),
        (
            {
                **{"trainers": ("bc",), "more_trainers": RLLIB_TRAINERS},
                "options": {"rllib_iql": {"beta": 3}},
            },
            r"agent iql, whose options it shares; write iql\.key=value",
        ),
        ({"trainers": ("bc",), "options": {"bc": {"gamma": 3}}}, "'bc' has no option gamma"),
        ({"trainers": ("bc",), "options": {"bc": 3}}, "bc=3 must look like AGENT.KEY=VALUE"),
        ({"trainers": ("bc",), "options": {"hidden": [8]}}, "must look like AGENT.KEY=VALUE"),
        ({"resume": True}, "out holds no evaluation to go on with"),
        ({"out": Path(__file__)}, "test_evaluate.py is a file: name a folder"),
    ],
)
def test_what_is_wrong_is_found_before_anything_starts(
    wrong: dict[str, Any], message: str, store: DatasetStore, tmp_path: Path
) -> None:
    collect("maze2d-umaze", dataset="maze/other-v0", store=store, steps=300)
    started: list[int] = []

    def start() -> Executor:
        started.append(1)
        return LocalExecutor()

    options = {"trainers": ("fake",), "more_trainers": {"fake": Trainer(asked=[])}, **wrong}
    options = {"out": tmp_path / "out", **options}
    with pytest.raises(ConfigError, match=message):
        _evaluate(store, **options, start_executor=start)
    assert not started
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a folder that nobody can write to")
def test_a_folder_that_cannot_be_written_is_found_before_anything_starts(
    store: DatasetStore,
) -> None:
    def start() -> Executor:
        raise AssertionError("started")

    with pytest.raises(StorageError, match="cannot write to /proc/out"):
        _evaluate(store, Path("/proc/out"), trainers=("bc",), start_executor=start)


def test_options_reach_the_agents(store: DatasetStore, tmp_path: Path) -> None:
    wide, narrow = (
        _evaluate(
            store,
            tmp_path / str(rate),
            trainers=("bc",),
            options={"bc": {"hidden": [8], "batch_size": 16, "learning_rate": rate}},
        )
        for rate in (1e-3, 1.0)
    )
    assert wide["bc"] != narrow["bc"]
    kept = json.loads((tmp_path / "1.0" / "agents" / "bc-0.json").read_text())
    assert kept["options"]["learning_rate"] == 1.0


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([3.0], "1 seed, no interval"),
        ([1.0, 2.0, 3.0], "3 seeds: 1.0, 2.0, 3.0; 95 %: -0.5 .. 4.5 (t, n=3)"),
        ([1.0, 2.0] * 4, "8 seeds: " + "1.0, 2.0, " * 3 + "1.0, 2.0; 95 %: 1.1 .. 1.9 (t, n=8)"),
        ([1.0, 2.0] * 5, "10 seeds; 95 %: 1.2 .. 1.8 (percentile bootstrap, n=10)"),
    ],
)
def test_few_seeds_get_no_interval_that_they_cannot_bear(figures: list[float], said: str) -> None:
    assert spread(figures) == said
