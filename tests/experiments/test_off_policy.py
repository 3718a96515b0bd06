"""``evaluate --offline``: agents valued on real episodes, all of it in ``private/``."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.collection import collect
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.splitting import held_out
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.trainer import find_trainer
from distributed_privrl.experiments import evaluate as module
from distributed_privrl.experiments import halves
from distributed_privrl.experiments import reference as reference_module
from distributed_privrl.experiments.evaluate import (
    EvaluationRequest,
    Surroundings,
    evaluate_datasets,
)
from distributed_privrl.experiments.halves import judge_of, training_half
from distributed_privrl.experiments.off_policy import OFF_POLICY_FILE, TITLE
from tests.worlds.certified import certify

SMALL = find_trainer("bc", {"hidden": [8], "batch_size": 16})
AGENTS = {"small": SMALL, "bc": SMALL}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    """A released and a sensitive dataset of a finite MDP."""
    store = DatasetStore(tmp_path_factory.mktemp("master"))
    for seed, name in enumerate(("mdp/released-v0", "mdp/own-v0")):
        collect("random-mdp", dataset=name, store=store, seed=seed, options={"trajectories": 60})
    certify(store, "mdp/released-v0")
    return store


@pytest.fixture
def store(master: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatasetStore:
    """A copy of them; sections with plots are left out."""
    monkeypatch.setattr(module, "content_section", lambda *_, **__: Section(title="left out"))
    monkeypatch.setattr(
        reference_module, "fidelity_section", lambda *_, **__: Section(title="left out")
    )
    shutil.copytree(master.root, tmp_path / "datasets")
    return DatasetStore(tmp_path / "datasets")


def _evaluate(store: DatasetStore, out: Path, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {
        **{"synthetic": "mdp/released-v0", "reference": "mdp/own-v0", "offline": True},
        **{"trainers": ("small",), "more_trainers": AGENTS, "steps": 20, **options},
    }
    resume, names = given.pop("resume", False), {one.name for one in fields(Surroundings)}
    around = Surroundings(store=store, **{name: given.pop(name) for name in names & given.keys()})
    return evaluate_datasets(EvaluationRequest(**given), around, out=out, resume=resume)


def _shown(folder: Path) -> Iterator[tuple[str, Any]]:
    for section in json.loads((folder / "report.json").read_text())["sections"]:
        if section["title"] == TITLE:
            yield from ((metric["name"], metric["value"]) for metric in section["metrics"])


def _outside_private(out: Path) -> dict[Path, bytes]:
    return {
        path.relative_to(out): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file() and path.relative_to(out).parts[0] != "private"
    }


def _changed(store: DatasetStore, name: str, **columns: Any) -> None:
    """Write the sensitive episodes with other columns."""
    info, rows = store.info("mdp/own-v0"), store.read_trajectories("mdp/own-v0")
    store.write_trajectories(
        name,
        Trajectories(**{**vars(rows), **{key: f(rows) for key, f in columns.items()}}),
        observation_space=info.observation_space,
        action_space=info.action_space,
        environment=info.environment,
    )


def _with_a_bad_number(rows: Trajectories) -> NDArray[np.float32]:
    found = rows.rewards.copy()
    found[7] = np.nan
    return found


def test_estimates_lie_in_private_alone(store: DatasetStore, tmp_path: Path) -> None:
    """Whatever the real rows are, what may leave and what is said are the same."""
    _changed(store, "gym/rich-v0", rewards=lambda rows: 1000 + rows.rewards)
    _changed(store, "gym/nan-v0", rewards=_with_a_bad_number)
    _changed(store, "gym/bad-v0", rewards=lambda rows: rows.rewards + np.nan)
    seen = []
    for reference in ("mdp/own-v0", "gym/rich-v0", "gym/nan-v0", "gym/bad-v0"):
        out, told = tmp_path / reference, []
        figures = _evaluate(
            store,
            out,
            reference=reference,
            progress=lambda *said, told=told: told.append(said),
        )
        files = _outside_private(out)
        assert Path("report.html") in files
        assert (out / "private").stat().st_mode & 0o077 == 0
        stages = {said[0] for said in told}
        assert "training agents" not in stages  # a timed stage would tell of rows
        seen.append((figures, [said for said in told if said[0] != "off-policy estimates"], files))
    assert seen[0] == seen[1] == seen[2]
    assert (seen[3][0], seen[3][2]) == (seen[0][0], seen[0][2])
    assert set(seen[0][0]) == {"dataset", "environment", "kind"}
    own, rich = (
        dict(_shown(tmp_path / name / "private")) for name in ("mdp/own-v0", "gym/rich-v0")
    )
    name = "small, synthetic: fitted Q"
    assert rich[name] > 100 * own[name] > 0
    assert isinstance(dict(_shown(tmp_path / "gym/nan-v0" / "private"))[name], float)
    assert "no proper episode" in dict(_shown(tmp_path / "gym/bad-v0" / "private"))[TITLE]


def test_both_agents_stand_beside_who_acted(store: DatasetStore, tmp_path: Path) -> None:
    out = tmp_path / "out"
    _evaluate(store, out, seeds=2)
    shown = dict(_shown(out / "private"))
    earned = np.add.reduceat(
        (half := store.read_trajectories("mdp/own-v0")).rewards, half.offsets[:-1]
    )
    assert earned.min() < shown["who acted: mean return"] < earned.max()
    for side in ("synthetic", "real"):
        for estimator in ("fitted Q", "weighted importance sampling", "doubly robust"):
            assert f"small, {side}: {estimator}" in shown
    found = json.loads((out / "private" / OFF_POLICY_FILE).read_text())
    assert found["small, real"]["seeds"] == 2
    cell = found["small, synthetic"]["fitted Q"]
    assert cell["interval"][0] <= cell["value"] <= cell["interval"][1]
    done = found["mean return of who acted"]["value"]
    assert cell["above"]["value"] == pytest.approx(cell["value"] - done)


def test_who_judges_does_not_train(store: DatasetStore) -> None:
    whole = store.read_trajectories("mdp/own-v0")
    judge, training = judge_of(store, "mdp/own-v0"), training_half(store, "mdp/own-v0")
    assert 0 < judge.units < len(whole)
    assert len(judge.rows.pairs) + len(training) == len(whole.rewards)
    judges = held_out(whole.unit_ids, share=0.5, seed=halves._SEED)
    others = whole.select(np.flatnonzero(~judges))
    assert judge.units == judges.sum()
    np.testing.assert_array_equal(training.rewards, others.rewards)


def test_resuming_trains_what_is_missing(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, started = tmp_path / "out", []

    class Counting(LocalExecutor):
        def start(self, *arguments: Any, **options: Any) -> Any:
            started.append(arguments)
            return super().start(*arguments, **options)

    _evaluate(store, out, start_executor=Counting)
    assert len(started) == 2  # one on each dataset
    before = dict(_shown(out / "private"))
    _evaluate(store, out, start_executor=Counting, resume=True)
    assert len(started) == 2
    assert dict(_shown(out / "private")) == before
    next((out / "private" / "agents-judged-real").iterdir()).unlink()
    _evaluate(store, out, start_executor=Counting, resume=True)
    assert len(started) == 3
    assert dict(_shown(out / "private")) == before


def test_without_agents_who_acted_is_shown(store: DatasetStore, tmp_path: Path) -> None:
    _evaluate(store, tmp_path / "out", trainers=())
    assert set(dict(_shown(tmp_path / "out" / "private"))) == {
        "who acted: mean return",
        "who acted: fitted Q",
    }


def test_an_agent_that_fails_is_a_private_line(store: DatasetStore, tmp_path: Path) -> None:
    class Failing:
        name, released_rows_only, agent = "small", False, "bc"
        keeps_rows = True

        def with_settings(self, settings: Any) -> "Failing":
            return self

        def train(self, *_: Any, **__: Any) -> Any:
            raise ConfigError("the largest row is 7")

    figures = _evaluate(store, tmp_path / "out", more_trainers={"small": Failing(), "bc": SMALL})
    assert "failed" not in figures
    shown = dict(_shown(tmp_path / "out" / "private"))
    assert shown["small, synthetic"] == "all failed"
    assert "the largest row" in shown["small, seed 0, on the synthetic dataset"]
    assert isinstance(shown["small, real: fitted Q"], float)
    assert not any(b"largest row" in text for text in _outside_private(tmp_path / "out").values())


def test_agents_whose_actions_are_numbers_are_judged_by_cells_of_them(
    store: DatasetStore, tmp_path: Path
) -> None:
    for name in ("gym/swing-v0", "gym/swing-real-v0"):
        collect("pendulum-mixed", dataset=name, store=store, steps=4000)
    names = {"synthetic": "gym/swing-v0", "reference": "gym/swing-real-v0"}
    _evaluate(store, tmp_path / "out", trainers=("bc",), **names)
    shown = dict(_shown(tmp_path / "out" / "private"))
    earned, fitted = (shown[f"who acted: {name}"] for name in ("mean return", "fitted Q"))
    assert abs(fitted / earned - 1) < 0.5
    assert isinstance(shown["bc, real: fitted Q"], float)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reference": None}, "add --reference"),
        ({"environment": "CartPole-v1"}, "needs no environment"),
        ({"reference": "gym/rows-v0"}, "independent transitions"),
        ({"trainers": ("iql",)}, "for this agent"),
    ],
)
def test_what_cannot_be_judged_is_refused_before_anything_starts(
    store: DatasetStore, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    info = store.info("mdp/own-v0")
    store.write_transitions(
        "gym/rows-v0",
        store.iter_transitions("mdp/own-v0", unit="transition"),
        layout="transitions",
        observation_space=info.observation_space,
        action_space=info.action_space,
    )
    out = tmp_path / "out"
    with pytest.raises(ConfigError, match=message):
        _evaluate(store, out, **options)
    assert not out.exists()
