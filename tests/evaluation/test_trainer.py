import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.iql import IQLConfig
from distributed_privrl.agents.options import DEFAULTS
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.trainer import (
    TRAINERS,
    OnEvaluation,
    PlainTrainer,
    Spaces,
    Trainer,
    find_trainer,
    settings_of,
    train_and_evaluate,
)
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS, RLlibTrainer

PENDULUM = gymnasium.make("Pendulum-v1")
SPACES = Spaces(observation=PENDULUM.observation_space, action=PENDULUM.action_space)  # type: ignore[arg-type]


def transitions(rows: int = 200) -> Transitions:
    source = np.random.default_rng(0)
    return Transitions(
        observations=source.normal(size=(rows, 3)),
        actions=source.uniform(-2, 2, size=(rows, 1)),
        rewards=source.normal(size=rows),
        next_observations=source.normal(size=(rows, 3)),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        unit_ids=np.arange(rows),
    )


class FakeTrainer:
    """Reports on time and acts with nothing."""

    name = "fake"
    agent = "bc"
    released_rows_only = False
    keeps_rows = True

    def with_settings(self, settings: Mapping[str, Any]) -> "FakeTrainer":
        raise AssertionError("there are none to change")

    def train(
        self,
        transitions: Transitions,
        spaces: Spaces,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        on_evaluation: OnEvaluation,
    ) -> "FakeTrainer":
        for step in range(evaluate_every, steps + 1, evaluate_every):
            on_evaluation(step, self)
        return self

    def act(self, observations: NDArray[Any]) -> NDArray[Any]:
        return np.zeros((len(observations), 1), np.float32)


def test_plain_loops_are_found_by_name() -> None:
    assert find_trainer("iql") == TRAINERS["iql"]
    assert all(trainer.name == name for name, trainer in TRAINERS.items())
    fake: Trainer = FakeTrainer()
    assert find_trainer("fake", more={"fake": fake}) is fake
    names = "bc, cql, discrete_bcq, discrete_cql, edac, fake, iql, td3bc"
    with pytest.raises(ConfigError, match=f"choose from {names}"):
        find_trainer("sarsa", more={"fake": fake})


def test_curve_has_an_evaluation_at_even_steps_and_at_the_end() -> None:
    _, curve = train_and_evaluate(
        FakeTrainer(),
        transitions(),
        SPACES,
        environment_id="Pendulum-v1",
        seed=0,
        steps=12,
        evaluations=3,
        episodes=2,
    )
    assert curve.steps == (4, 8, 12)
    assert [len(returns.per_episode) for returns in curve.returns] == [2, 2, 2]
    assert len({returns.mean for returns in curve.returns}) == 3  # fresh episodes each time


def test_iql_goes_through_the_port_and_repeats() -> None:
    trainer = PlainTrainer("iql", IQLConfig(hidden=(16,), batch_size=32))
    settings: dict[str, Any] = {
        "environment_id": "Pendulum-v1",
        "seed": 1,
        "steps": 10,
        "evaluations": 2,
        "episodes": 1,
    }
    policy, curve = train_and_evaluate(trainer, transitions(), SPACES, **settings)
    again = train_and_evaluate(trainer, transitions(), SPACES, **settings)[1]
    assert isinstance(policy, Policy)
    assert curve == again
    assert curve != train_and_evaluate(trainer, transitions(), SPACES, **{**settings, "seed": 2})[1]


def test_uneven_evaluations_are_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of evaluations=5"):
        train_and_evaluate(
            FakeTrainer(),
            transitions(),
            SPACES,
            environment_id="Pendulum-v1",
            seed=0,
            steps=12,
            evaluations=5,
            episodes=1,
        )


@pytest.mark.parametrize("name", ["bc", "iql", "td3bc", "edac", "cql"])
def test_every_box_agent_goes_through_the_port(name: str) -> None:
    trainer = find_trainer(name, {"hidden": [8], "batch_size": 16})
    policy, curve = train_and_evaluate(
        trainer,
        transitions(),
        SPACES,
        environment_id="Pendulum-v1",
        seed=0,
        steps=4,
        evaluations=2,
        episodes=1,
    )
    assert isinstance(policy, Policy)
    assert curve.steps == (2, 4)


@pytest.mark.parametrize("name", ["bc", "discrete_cql", "discrete_bcq"])
def test_every_discrete_agent_goes_through_the_port(name: str) -> None:
    cartpole = gymnasium.make("CartPole-v1")
    rows = transitions()
    source = np.random.default_rng(1)
    rows = replace(
        rows,
        observations=source.normal(size=(len(rows), 4)),
        next_observations=source.normal(size=(len(rows), 4)),
        actions=source.integers(0, 2, size=len(rows)),
    )
    _, curve = train_and_evaluate(
        find_trainer(name, {"hidden": [8], "batch_size": 16}),
        rows,
        Spaces(observation=cartpole.observation_space, action=cartpole.action_space),  # type: ignore[arg-type]
        environment_id="CartPole-v1",
        seed=0,
        steps=4,
        evaluations=1,
        episodes=2,
    )
    assert curve.figure() > 5


def test_options_change_a_plain_loop_and_unknown_ones_are_named() -> None:
    trainer = find_trainer("iql", {"beta": 10.0, "hidden": [64, 64]})
    assert isinstance(trainer, PlainTrainer)
    config = trainer.algorithm.config
    assert config == trainer.config
    assert isinstance(config, IQLConfig)
    assert (config.beta, config.hidden) == (10.0, (64, 64))
    with pytest.raises(ConfigError, match="no option temperature"):
        find_trainer("iql", {"temperature": 1})
    for options in ({"polyak": 3}, {"learning_rate": "fast"}, {"hidden": 64}):
        with pytest.raises(ConfigError):
            find_trainer("td3bc", options)


@pytest.mark.parametrize(
    ("name", "key", "value", "kind"),
    [
        ("iql", "beta", "banana", "a number"),
        ("iql", "beta", True, "a number"),
        ("iql", "hidden", 7, "a list of whole numbers"),
        ("iql", "hidden", ["wide"], "a list of whole numbers"),
        ("iql", "batch_size", 2.5, "a whole number"),
        ("iql", "actor", "x", "gaussian or deterministic"),
        ("cql", "entropy_backup", 2, "true or false"),
    ],
)
def test_an_option_of_another_type_is_named(name: str, key: str, value: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name}.{key}={value!r} must be {kind}")):
        find_trainer(name, {key: value})


def test_settings_that_plans_check_are_those_of_the_agents() -> None:
    assert {name: one.config for name, one in ALGORITHMS.items()} == DEFAULTS


def test_every_default_is_of_the_type_that_its_option_has() -> None:
    for algorithm in ALGORITHMS.values():
        assert configured(algorithm, asdict(algorithm.config)) == algorithm


def test_an_agents_settings_hold_whoever_trains_it() -> None:
    more: Mapping[str, Trainer] = dict(RLLIB_TRAINERS)
    options = {"iql": {"beta": 10.0}, "td3bc": {"alpha": 1.0}}
    assert settings_of("rllib_iql", options, more=more) is options["iql"]
    assert settings_of("cql", options, more=more) == {}
    loop, through_rllib = (
        find_trainer(name, settings_of(name, options, more=more), more=more)
        for name in ("iql", "rllib_iql")
    )
    assert isinstance(loop, PlainTrainer)
    assert isinstance(through_rllib, RLlibTrainer)
    assert (loop.agent, loop.config) == (through_rllib.agent, through_rllib.config)
    assert (loop.name, through_rllib.name) == ("iql", "rllib_iql")
    assert through_rllib.released_rows_only
    with pytest.raises(ConfigError, match="no option temperature"):
        find_trainer("rllib_iql", {"temperature": 1}, more=more)
