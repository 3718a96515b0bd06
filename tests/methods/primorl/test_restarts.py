"""Several trainings of the policy: the one that the models promise the most is released."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.agents.policy import Policy
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.primorl.policy_training import (
    CURVE,
    POLICIES,
    PolicyTrainer,
    PolicyTrainerSpec,
    keep_most_promising,
    trained_policy,
)
from tests.worlds.swings import Swings

RESTARTS = 3
SHORT = {"training__policy__horizon": 30}
"""Rollouts of 30 steps instead of 200: which training promises the most asks for no longer ones."""
TRIED = {"episodes": 1, "horizon": 20}
"""How the simulator tries a policy: it has no say."""
OBSERVATIONS = np.random.default_rng(0).uniform(-1, 1, (8, 3)).astype(np.float32)


@dataclasses.dataclass
class Finished:
    """A run, and what its trainings were built from."""

    folder: Path
    spec: PolicyTrainerSpec
    started: list[PolicyTrainerSpec]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, master: DatasetStore) -> Finished:
    started: list[PolicyTrainerSpec] = []
    start = PolicyTrainer.__init__

    def watched(self: PolicyTrainer, spec: PolicyTrainerSpec) -> None:
        started.append(spec)
        start(self, spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyTrainer, "__init__", watched)
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        world = Swings(tmp_path_factory.mktemp("run"), master)
        result = world.run(
            evaluation={"every": 25, **TRIED}, training__policy__restarts=RESTARTS, **SHORT
        )
    folder = result.directory.path
    spec = dataclasses.replace(started[0], folder=folder / "checkpoint", restart=0)
    return Finished(folder, spec, started)


def promises(finished: Finished) -> list[float]:
    folders = [finished.folder / "checkpoint" / POLICIES / str(i) for i in range(RESTARTS)]
    curves = [json.loads((folder / CURVE).read_text()) for folder in folders]
    return [float(curve[-1]["model_return"]) for curve in curves]


def test_the_most_promising_policy_is_released(finished: Finished) -> None:
    best = int(np.argmax(promises(finished)))
    released = Policy.load(finished.folder / "policy.safetensors")
    actions = [trained_policy(spec).act(OBSERVATIONS) for spec in finished.spec.restarts()]
    np.testing.assert_array_equal(released.act(OBSERVATIONS), actions[best])
    others = [index for index in range(RESTARTS) if index != best]
    assert all(not np.array_equal(actions[best], actions[other]) for other in others)
    curve = json.loads((finished.folder / "checkpoint" / CURVE).read_text())
    chosen = finished.spec.restarts()[best].curve
    assert curve == json.loads(chosen.read_text())


def test_trainings_differ_in_their_draws_and_are_judged_by_the_same(finished: Finished) -> None:
    assert len(set(promises(finished))) == RESTARTS
    assert [spec.restart for spec in finished.started] == list(range(RESTARTS))
    trainers = [PolicyTrainer(spec) for spec in finished.spec.restarts()]
    policy = trained_policy(finished.spec)
    assert len({_promise(trainer, policy) for trainer in trainers}) == 1


def _promise(trainer: PolicyTrainer, policy: Policy) -> float:
    """Return what ``trainer`` would note of another's policy."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer._trainer, "policy", lambda: policy)
        trainer._evaluate(1000)
    return float(trainer._curve[-1]["model_return"])


def test_a_single_training_is_the_first_of_several(finished: Finished, world: Swings) -> None:
    result = world.run(evaluation={"every": 25, **TRIED}, **SHORT)
    assert not (result.directory.path / "checkpoint" / POLICIES).exists()
    alone = Policy.load(result.directory.path / "policy.safetensors").act(OBSERVATIONS)
    first = trained_policy(finished.spec.restarts()[0]).act(OBSERVATIONS)
    np.testing.assert_array_equal(alone, first)


@pytest.mark.parametrize(
    ("returns", "best"),
    [
        ([[0.0, 1.0], [9.0, 0.0, 0.5], [3.0, -3.0]], 0),
        ([[None], [1.0, None], [-9.0]], 2),
        ([[9.0, 0.0], [1.0, 1.0], [None]], 1),
        ([[None], [None], [None]], 0),
    ],
)
def test_the_last_promise_decides_and_what_is_not_finite_is_last(
    finished: Finished, tmp_path: Path, returns: list[list[float | None]], best: int
) -> None:
    spec = dataclasses.replace(finished.spec, folder=tmp_path)
    for training, values in zip(spec.restarts(), returns, strict=True):
        training.folder.mkdir(parents=True)
        points = [{"step": step, "model_return": value} for step, value in enumerate(values)]
        training.curve.write_text(json.dumps(points))
        training.checkpoint.write_bytes(str(training.restart).encode())
    for _ in range(2):  # a resume repeats it
        keep_most_promising(spec)
        assert spec.checkpoint.read_bytes() == str(best).encode()
        assert json.loads(spec.curve.read_text())[0]["model_return"] == returns[best][0]


def test_how_often_a_policy_is_tried_changes_no_choice(finished: Finished, world: Swings) -> None:
    result = world.run(
        evaluation={"every": 1000, **TRIED}, training__policy__restarts=RESTARTS, **SHORT
    )
    seldom = Policy.load(result.directory.path / "policy.safetensors").act(OBSERVATIONS)
    often = Policy.load(finished.folder / "policy.safetensors").act(OBSERVATIONS)
    np.testing.assert_array_equal(seldom, often)


def test_the_simulator_has_no_say(finished: Finished, tmp_path: Path) -> None:
    spec = dataclasses.replace(finished.spec, folder=tmp_path)
    for training in spec.restarts():
        training.folder.mkdir(parents=True)
        earned = [100.0 - training.restart]
        point = {"step": 1, "model_return": float(training.restart), "returns": earned}
        training.curve.write_text(json.dumps([point]))
        training.checkpoint.write_bytes(b"")
    keep_most_promising(spec)
    assert json.loads(spec.curve.read_text())[0]["returns"] == [98.0]
