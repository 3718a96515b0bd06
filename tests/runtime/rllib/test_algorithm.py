import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.tune.registry import get_trainable_cls

from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.settings import BCConfig
from distributed_privrl.agents.training import train_agent
from distributed_privrl.collection import collect
from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.random import Streams
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.trainer import Spaces
from distributed_privrl.runtime.rllib.algorithm import (
    RLLIB_ALGORITHMS,
    OfflineAgentConfig,
    check_cpus,
)
from distributed_privrl.runtime.rllib.bridge import Bridge, export_for_rllib
from distributed_privrl.runtime.rllib.learner import AgentLearner
from distributed_privrl.runtime.rllib.module import AgentModule
from distributed_privrl.runtime.rllib.rows import RowEncoder
from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS, RLlibTrainer
from tests.runtime.rllib.rows import (
    BOX_ACTIONS,
    DISCRETE_ACTIONS,
    OBSERVATIONS,
    bridge,
    released,
    transitions,
)

TINY: dict[str, Any] = {"hidden": (8, 8), "batch_size": 16}
STEPS = 5
CASES = [
    (name, space)
    for name, agent in ALGORITHMS.items()
    for space in (BOX_ACTIONS, DISCRETE_ACTIONS)
    if isinstance(space, agent.action_spaces)
]


class EncodedRows:
    """Stands for the iterator of Ray Data: what its actor would give."""

    def __init__(self, config: OfflineAgentConfig) -> None:
        self._config = config

    def iter_torch_batches(self, **_: Any) -> Iterator[dict[str, torch.Tensor]]:
        for chunk in RowEncoder(config=self._config)({"item": self._config.input_}):
            yield {name: torch.from_numpy(rows) for name, rows in chunk.items()}


def _config(name: str, found: Bridge, **options: Any) -> OfflineAgentConfig:
    config = RLLIB_ALGORITHMS[name].get_default_config().bridge(found.folder)
    config = config.training(steps=STEPS, public_seed=1, **TINY, **options)
    config.validate()
    return config


def _learner(config: OfflineAgentConfig) -> AgentLearner:
    spec = config.get_multi_rl_module_spec(
        spaces={"default_policy": (config.observation_space, config.action_space)}
    )
    learner = AgentLearner(config=config, module_spec=spec)
    learner.build()
    return learner


def _train(learner: AgentLearner, steps: int) -> AgentModule:
    data = TrainingData(data_iterators=[EncodedRows(learner.config)])
    learner.update(training_data=data, num_iters=steps)
    module: AgentModule = learner.module["default_policy"]
    return module


def _in_order_of(found: Bridge, space: Space) -> Transitions:
    order = Streams(found.seed).numpy("rllib bridge").permutation(found.rows)
    return transitions(space).select(order)


@pytest.mark.parametrize(("name", "space"), CASES)
def test_rllib_takes_the_steps_of_the_plain_loop(name: str, space: Space, tmp_path: Path) -> None:
    found = bridge(tmp_path / "bridge", space)
    config = _config(name, found)
    module = _train(_learner(config), STEPS)
    start = _learner(config).module["default_policy"].networks
    policy = train_agent(
        configured(ALGORITHMS[name], TINY),
        _in_order_of(found, space),
        observation_space=OBSERVATIONS,
        action_space=space,
        steps=STEPS,
        streams=Streams(1),
    )
    assert int(module.step) == STEPS
    ours = module.policy()
    for mine, theirs in zip(ours.network.parameters(), policy.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)
    moved = [
        (one - other).abs().max().item()
        for (label, one), other in zip(
            module.networks.named_parameters(), start.parameters(), strict=True
        )
        if one.requires_grad or "target" in label
    ]
    assert min(moved) > 0 or name in ("discrete_bcq", "discrete_cql")
    observations = transitions(space).observations
    np.testing.assert_allclose(ours.act(observations), policy.act(observations), atol=1e-4)
    with torch.no_grad():
        acted = module.forward_inference({Columns.OBS: torch.from_numpy(observations)})
    actions = acted[Columns.ACTIONS].numpy()
    if space is BOX_ACTIONS:  # RLlib itself brings them from [-1, 1] to the bounds
        actions = [0, 5] + actions * [1, 5]
    np.testing.assert_allclose(actions, ours.act(observations), atol=1e-4)


def test_target_networks_move_at_every_minibatch(tmp_path: Path) -> None:
    learner = _learner(_config("iql", bridge(tmp_path / "bridge", BOX_ACTIONS)))
    targets = [copy.deepcopy(learner.module["default_policy"].networks.target_critic)]
    seen = learner.apply_gradients

    def apply_and_look(gradients: Any) -> None:
        seen(gradients)
        targets.append(copy.deepcopy(learner.module["default_policy"].networks.target_critic))

    learner.apply_gradients = apply_and_look
    _train(learner, 3)
    assert len(targets) == 4
    for before, after in itertools.pairwise(targets):
        old, new = next(before.parameters()), next(after.parameters())
        assert not torch.equal(old, new)
    assert learner.get_optimizer("default_policy").param_groups[1]["lr"] < 3e-4  # the cosine


def test_a_learner_goes_on_where_its_state_was(tmp_path: Path) -> None:
    config = _config("td3bc", bridge(tmp_path / "bridge", BOX_ACTIONS))
    first = _learner(config)
    _train(first, 3)
    second = _learner(config)
    second.set_state(first.get_state())
    module = second.module["default_policy"]
    assert int(module.step) == 3
    for mine, theirs in zip(
        module.state_dict().values(),
        first.module["default_policy"].state_dict().values(),
        strict=True,
    ):
        assert torch.equal(mine, theirs)
    _train(second, 1)
    assert int(module.step) == 4


def test_options_are_the_fields_of_the_agents(tmp_path: Path) -> None:
    found = bridge(tmp_path / "bridge", BOX_ACTIONS)
    plain = AlgorithmConfig()
    for name, algorithm in RLLIB_ALGORITHMS.items():
        config = algorithm.get_default_config()
        assert config.agent_options == asdict(ALGORITHMS[name].config)
        assert not [option for option in config.agent_options if hasattr(plain, option)]
        assert get_trainable_cls(f"privrl_{name}") is algorithm
    config = _config("iql", found, beta=10.0, expectile=0.9)
    assert config.agent_options["beta"] == 10.0
    assert config.train_batch_size_per_learner == 16
    with pytest.raises(ConfigError, match="expectile"):
        _config("iql", found, expectile=2.0)
    with pytest.raises(ConfigError, match=r"discrete_cql.*train .*td3bc"):
        _config("discrete_cql", found)
    with pytest.raises(ConfigError, match="privrl export --format rllib"):
        RLLIB_ALGORITHMS["bc"].get_default_config().validate()
    with pytest.raises(StorageError, match=r"bridge\.json"):
        RLLIB_ALGORITHMS["bc"].get_default_config().bridge(tmp_path).validate()


def test_learners_that_would_wait_for_ever_are_refused(
    ray_executor: Executor, tmp_path: Path
) -> None:
    config = _config("bc", bridge(tmp_path / "bridge", BOX_ACTIONS))
    check_cpus(config.copy(copy_frozen=False).learners(num_learners=1))
    with pytest.raises(ConfigError, match=r"num_learners=99 needs 99 CPUs but Ray has"):
        config.learners(num_learners=99).build_algo()


def test_bare_rows_are_refused_before_rllib_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(trainer: RLlibTrainer) -> None:
        raise AssertionError("a training began")

    monkeypatch.setattr(RLlibTrainer, "prepare", prepare)
    everything = released(DISCRETE_ACTIONS)
    for rows in (transitions(DISCRETE_ACTIONS), everything.select(slice(10))):
        with pytest.raises(UnsafeError, match="rllib_bc takes rows of a released or public"):
            RLLIB_TRAINERS["rllib_bc"].train(
                rows,
                Spaces(observation=OBSERVATIONS, action=DISCRETE_ACTIONS),
                seed=0,
                steps=1,
                evaluate_every=1,
                on_evaluation=lambda step, policy: None,
            )


def test_rows_that_changed_on_the_way_are_not_trained_on(tmp_path: Path) -> None:
    found = bridge(tmp_path / "bridge", BOX_ACTIONS)
    config = _config("bc", found)
    (path,) = found.files()
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(StorageError, match="was changed"):
        next(RowEncoder(config=config)({"item": config.input_}))
    with pytest.raises(StorageError, match=r"transitions-00000.parquet is not what bridge.json"):
        _config("bc", found)


def test_training_through_ray_data(
    ray_executor: Executor, capfd: pytest.CaptureFixture[str]
) -> None:
    rows, seen = released(DISCRETE_ACTIONS), []
    agent = configured(ALGORITHMS["bc"], TINY)
    assert RLLIB_TRAINERS["rllib_bc"] == RLlibTrainer("bc", BCConfig())
    policy = RLlibTrainer("bc", agent.config, learners=1).train(
        rows,
        Spaces(observation=OBSERVATIONS, action=DISCRETE_ACTIONS),
        seed=2**62,
        steps=4,
        evaluate_every=2,
        on_evaluation=lambda step, policy: seen.append(step),
    )
    assert seen == [2, 4]
    said = capfd.readouterr().err
    assert not any(word in said for word in ("Dataset", "MapWorker", "Progress bars"))
    order = Streams(2**62).numpy("rllib bridge").permutation(len(rows))
    plain = train_agent(
        agent,
        transitions(DISCRETE_ACTIONS).select(order),
        observation_space=OBSERVATIONS,
        action_space=DISCRETE_ACTIONS,
        steps=4,
        streams=Streams(2**62),
    )
    for mine, theirs in zip(policy.network.parameters(), plain.network.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_rllib_evaluates_the_agent_itself(ray_executor: Executor, tmp_path: Path) -> None:
    store = DatasetStore(tmp_path / "datasets")
    collect("pendulum-mixed", dataset="p-v0", store=store, steps=200, public=True)
    export_for_rllib(store, "p-v0", tmp_path / "bridge")
    config = RLLIB_ALGORITHMS["td3bc"].get_default_config().bridge(tmp_path / "bridge")
    config.training(**TINY).environment("Pendulum-v1").evaluation(
        evaluation_interval=1, evaluation_num_env_runners=0, evaluation_duration=1
    )
    agent = config.build_algo()
    returned = agent.evaluate()["env_runners"]["episode_return_mean"]
    agent.stop()
    assert -2000 < returned < 0
    assert math.isfinite(returned)
