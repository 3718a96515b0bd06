"""The curve of a policy's training: what the models promise, beside what a simulator says."""

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import scaling_from_bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.primorl.model_environment import (
    ModelEnvironment,
    ModelFacts,
    PessimisticModel,
)
from distributed_privrl.methods.primorl.policy_training import (
    CURVE,
    PolicyTrainer,
    PolicyTrainerSpec,
    model_return,
    trained_policy,
)
from distributed_privrl.methods.primorl.report import policy_sections
from distributed_privrl.methods.primorl.start_states import PooledStarts
from distributed_privrl.models.layers import mlp
from tests.worlds.swings import Swings, config_values

PROMISE = "What the models promise, which is not what the policy earns"
UNTRIED = "The policy was not tried"


@dataclass
class Finished:
    """A run without a simulator, and what its policy was trained from."""

    world: Swings
    folder: Path
    spec: PolicyTrainerSpec


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, master: DatasetStore) -> Finished:
    specs: list[PolicyTrainerSpec] = []
    start = PolicyTrainer.__init__

    def started(self: PolicyTrainer, spec: PolicyTrainerSpec) -> None:
        specs.append(spec)
        start(self, spec)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyTrainer, "__init__", started)
        folder = tmp_path_factory.mktemp("blind")
        world = Swings(folder, master)
        asked = {"training__policy__starts": {"epsilon": 2.0}, "data__environment": None}
        result = world.run(key=None, evaluation={"every": 25}, data__max_length=30, **asked)
    return Finished(world, result.directory.path, specs[0])


class Drift(nn.Module):
    """One member: the observation moves by the action, the reward is the action."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean = torch.cat([inputs[:, 1:], inputs[:, 1:]], dim=1)[None]
        return mean, torch.full_like(mean, -200.0)


def drifting(**options: Any) -> ModelEnvironment:
    """Return a model whose standardised columns are raw ones, from 0."""
    spaces = Box(-100, 100, (1,), np.float32), Box(-2, 2, (1,), np.float32)
    coding = RowCoding(next_observation="difference")
    columns = ("observation_0", "action_0", "reward")
    bounds = Bounds(low=np.array([-100.0, -2, -50]), high=np.array([100.0, 2, 50]), columns=columns)
    scaling = scaling_from_bounds(bounds, *spaces, coding=coding)
    facts = ModelFacts.of(TransitionEncoder(*spaces, scaling, coding), bounds)
    plain = {name: torch.zeros(2) for name in ("input_offset", "target_offset")}
    plain |= {name: torch.ones(2) for name in ("input_scale", "target_scale")}
    facts = dataclasses.replace(facts, **plain)
    model = PessimisticModel(ensemble=Drift(), facts=facts, **options)
    return ModelEnvironment(model=model, start_states=PooledStarts(torch.zeros(1, 1)))


def constant(action: float) -> Policy:
    """Return a policy that always does the same."""
    network = mlp((1, 4, 1), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for one in network.parameters():
            one.zero_()
        list(network.parameters())[-1].fill_(float(np.arctanh(action / 2)))
    return Policy(
        network,
        normalisation=Normalisation.identity(1),
        observation_space=Box(-np.inf, np.inf, (1,)),
        action_space=Box(-2, 2, (1,), np.float32),
    )


def promised(policy: Policy, model: ModelEnvironment, seed: int = 0) -> float:
    source = torch.Generator().manual_seed(seed)
    return model_return(policy, model, horizon=12, generator=source)


def test_a_promise_is_the_sum_of_rewards_until_the_end() -> None:
    assert promised(constant(1.5), drifting()) == pytest.approx(18.0, rel=1e-5)
    assert promised(constant(-0.5), drifting()) == pytest.approx(-6.0, rel=1e-5)
    over = drifting(terminates=lambda after: after[:, 0] > 4.0)  # after the third step of 1.5
    assert promised(constant(1.5), over) == pytest.approx(4.5, rel=1e-5)


def test_a_promise_is_pessimistic() -> None:
    lowered = drifting(penalty="max_aleatoric", penalty_weight=0.5)
    deviation = torch.full((1, 1, 2), -4.0)
    ensemble: Any = lowered.model.ensemble
    ensemble.forward = lambda inputs: (inputs[None], deviation.expand(1, len(inputs), 2))
    plain = drifting()
    plain.model.ensemble.forward = ensemble.forward
    lost = 12 * 0.5 * float(deviation.exp().sum().sqrt())
    difference = promised(constant(1.0), plain) - promised(constant(1.0), lowered)
    assert difference == pytest.approx(lost, rel=1e-4)


def test_without_a_simulator_the_curve_says_what_the_models_promise(finished: Finished) -> None:
    curve = json.loads((finished.folder / "checkpoint" / CURVE).read_text())
    assert [set(point) for point in curve] == [{"step", "model_return"}] * 3
    assert [point["step"] for point in curve] == [25, 50, 60]
    assert len({point["model_return"] for point in curve}) == 3
    last = model_return(
        Policy.load(finished.folder / "policy.safetensors"),
        finished.spec.model(),
        horizon=30,  # data.max_length, where nobody names one
        generator=torch.Generator().manual_seed(
            Streams(0).child("policy").integer("evaluation in the model")
        ),
    )
    assert curve[-1]["model_return"] == last


def test_without_a_simulator_the_report_shows_the_promise_as_one(finished: Finished) -> None:
    sections = json.loads((finished.folder / "report.json").read_text())["sections"]
    assert [section["title"] for section in sections] == [UNTRIED, PROMISE]
    (metric,) = sections[1]["metrics"]
    curve = json.loads((finished.folder / "checkpoint" / CURVE).read_text())
    mean = np.mean([point["model_return"] for point in curve])
    assert metric["value"] == pytest.approx(mean)
    assert "in the models" in metric["name"]
    assert metric["explanation"] == "of 3; in 30 steps at most, rewards lowered by the penalty"
    (caption,) = sections[1]["figures"]
    assert "a promise, not what is earned" in caption


def test_looking_at_the_promise_changes_no_training(finished: Finished, tmp_path: Path) -> None:
    """However often it is asked for; and the same policy is promised the same each time."""
    learned, last = [], []
    for every in (7, 1000):
        evaluation = finished.spec.evaluation.model_copy(update={"every": every})
        folder = tmp_path / str(every)
        folder.mkdir()
        spec = dataclasses.replace(finished.spec, folder=folder, evaluation=evaluation)
        assert PolicyTrainer(spec).advance(60) == 60
        parameters = trained_policy(spec).network.parameters()
        learned.append(torch.cat([one.detach().reshape(-1) for one in parameters]))
        curve = json.loads(spec.curve.read_text())
        assert len(curve) == (9 if every == 7 else 1)
        last.append(curve[-1]["model_return"])
    assert torch.equal(*learned)
    assert last[0] == last[1]


def test_reports_cope_with_curves_of_any_version(finished: Finished) -> None:
    config, file = finished.world.config(), finished.folder / "policy.safetensors"

    def titles(*points: dict[str, Any]) -> list[str]:
        results = [{"kind": "curve", "points": list(points)}] if points else []
        sections = policy_sections(config, Sourced.private(file), Sourced.private(results))
        return [section.title for section in sections]

    assert titles() == [UNTRIED]
    assert titles({"step": 30, "returns": [1.0]}) == [UNTRIED]
    begun = ({"step": 30, "returns": [1.0]}, {"step": 60, "returns": [1.0], "model_return": 2.0})
    assert titles(*begun) == [UNTRIED, PROMISE]
    assert titles({"step": 30, "model_return": None}) == [UNTRIED, PROMISE]


@pytest.mark.parametrize(
    ("longest", "asked", "expected"),
    [(48, None, 48), (None, None, 200), (1000, None, 200), (48, 60, 60), (1000, 500, 500)],
)
def test_a_rollout_is_by_default_no_longer_than_a_unit(
    longest: int | None, asked: int | None, expected: int
) -> None:
    local = {} if longest else {"training__local": {"steps": 7}}
    values = config_values(data__max_length=longest, training__policy__horizon=asked, **local)
    config: Any = parse_config(values, source="test")
    assert config.rollout_horizon == expected
    shown = config.model_dump(mode="json")["training"]["policy"]["horizon"]
    assert shown == asked  # what is kept of a run is what was asked for


def test_actions_are_held_in_training_and_not_by_what_is_released(finished: Finished) -> None:
    """SAC acts once for three steps of the model; promises and policies are of single steps."""
    settings = dataclasses.replace(
        finished.spec, config=finished.spec.config.model_copy(update={"action_repeat": 3})
    )
    counted: dict[str, int] = {}
    for name, spec in (("single", finished.spec), ("held", settings)):
        trainer, calls = spec.trainer(), 0
        step = ModelEnvironment.step

        def counting(*arguments: Any, step: Any = step) -> Any:
            nonlocal calls
            calls += 1
            return step(*arguments)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ModelEnvironment, "step", counting)
            trainer.advance(1)
            before = calls
            trainer.advance(4)
            counted[name] = calls - before
            calls = 0
            model_return(trainer.policy(), spec.model(), horizon=6, generator=torch.Generator())
            assert calls == 6
    assert counted == {"single": 4, "held": 12}


def test_a_run_that_was_begun_with_another_horizon_keeps_it(finished: Finished) -> None:
    """Its configuration says 200, whatever the cap on a unit is."""
    directory = finished.world.folder / "earlier"
    directory.mkdir()
    before = finished.world.config(data__max_length=48)
    values = before.model_dump(mode="json")
    values["training"]["policy"]["horizon"] = 200
    (directory / "config.yaml").write_text(json.dumps(values))
    shutil.copytree(finished.world.folder / "run" / "checkpoint", directory / "checkpoint")
    resumed: Any = RunDirectory(directory).resumed(before)
    assert resumed.rollout_horizon == 200
    changed = finished.world.config(data__max_length=48, training__policy__horizon=24)
    with pytest.raises(ConfigError, match="horizon is 200 there and 24 now"):
        RunDirectory(directory).resumed(changed)
