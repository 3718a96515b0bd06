import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
from gymnasium.spaces import Box, Discrete

from distributed_privrl.agents.deployment import export_torchscript
from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.spaces import Space
from distributed_privrl.models.layers import mlp
from tests.worlds.bounded import bounded

ACTIONS = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
OBSERVATIONS = Box(-np.inf, np.inf, (3,))


def policy(space: Space = OBSERVATIONS, columns: int = 3) -> Policy:
    network = mlp((columns, 8, 2), torch.Generator().manual_seed(0))
    normalisation = Normalisation.identity(columns)
    return Policy(
        network, normalisation=normalisation, observation_space=space, action_space=ACTIONS
    )


def test_action_scale_maps_bounds_to_one() -> None:
    scale = ActionScale.of(ACTIONS)
    raw = np.array([[-2.0, 10.0], [0.0, 2.5]])
    unit = np.array([[-1.0, 1.0], [0.0, -0.5]])
    np.testing.assert_allclose(scale.to_unit(raw), unit)
    np.testing.assert_allclose(scale.from_unit(unit), raw)


@pytest.mark.parametrize("space", [Discrete(3), Box(-np.inf, np.inf, (2,))])
def test_unusable_action_spaces_are_refused(space: Space) -> None:
    with pytest.raises(ConfigError, match="action space"):
        ActionScale.of(space)


def test_actions_are_the_network_s_and_stay_inside_bounds() -> None:
    agent = policy()
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    expected = agent.network(torch.from_numpy(rows)).tanh().detach().numpy()
    expected = expected * [2, 5] + [0, 5]
    np.testing.assert_allclose(agent.act(rows), expected, rtol=1e-5, atol=1e-6)
    extreme = agent.act(1e9 * rows)
    assert all(ACTIONS.contains(action) for action in extreme)
    assert extreme.dtype == np.float32


def test_discrete_observations_are_one_hot() -> None:
    agent = policy(Discrete(3, start=2))
    expected = agent.network(torch.eye(3)).tanh().detach().numpy() * [2, 5] + [0, 5]
    np.testing.assert_allclose(agent.act(np.array([4, 2])), expected[[2, 0]], rtol=1e-5)


@pytest.mark.parametrize("shape", [(3,), (2,), (), (2, 4), (3, 1)])
def test_observations_that_are_not_a_row_each_are_refused(shape: tuple[int, ...]) -> None:
    message = re.escape(f"observations must be (N, 3), got {shape}")
    with pytest.raises(ConfigError, match=message):
        policy().act(np.zeros(shape))


def test_observations_of_any_shape_are_rows() -> None:
    agent = policy(Box(-np.inf, np.inf, (3, 1)))
    rows = np.random.default_rng(0).normal(size=(5, 3, 1))
    np.testing.assert_array_equal(agent.act(rows), agent.act(rows[..., 0]))
    assert agent.act(rows[:0]).shape == (0, 2)


@pytest.mark.parametrize("space", [OBSERVATIONS, Discrete(3)])
def test_a_saved_policy_acts_the_same(tmp_path: Path, space: Space) -> None:
    agent = policy(space)
    agent.save(tmp_path / "policy.safetensors")
    loaded = Policy.load(str(tmp_path / "policy.safetensors"))
    rows = np.array([0, 2]) if isinstance(space, Discrete) else np.ones((2, 3))
    np.testing.assert_array_equal(loaded.act(rows), agent.act(rows))
    assert loaded.observation_space == space
    assert loaded.action_space == ACTIONS


def discrete_policy(behaviour: bool) -> Policy:
    source = torch.Generator().manual_seed(0)
    return Policy(
        mlp((3, 8, 4), source),
        mlp((3, 5, 4), source) if behaviour else None,
        0.9 if behaviour else 0.0,
        normalisation=Normalisation(mean=np.ones(3, np.float32), spread=np.ones(3, np.float32)),
        observation_space=OBSERVATIONS,
        action_space=Discrete(4, start=10),
    )


def test_discrete_actions_are_the_best_among_likely_ones() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32)
    inputs = torch.from_numpy(rows - 1)
    free, bound = discrete_policy(False), discrete_policy(True)
    scores = free.network(inputs).detach()
    np.testing.assert_array_equal(free.act(rows), scores.argmax(dim=1) + 10)
    assert bound.behaviour is not None
    likelihood = bound.behaviour(inputs).detach().softmax(dim=1)
    allowed = likelihood > 0.9 * likelihood.amax(dim=1, keepdim=True)
    expected = np.where(allowed, scores, -np.inf).argmax(axis=1) + 10
    np.testing.assert_array_equal(bound.act(rows), expected)
    assert not np.array_equal(bound.act(rows), free.act(rows))


@pytest.mark.parametrize("behaviour", [False, True])
def test_a_saved_discrete_policy_acts_the_same(tmp_path: Path, behaviour: bool) -> None:
    agent = discrete_policy(behaviour)
    agent.save(tmp_path / "policy.safetensors")
    loaded = Policy.load(tmp_path / "policy.safetensors")
    rows = np.random.default_rng(0).normal(size=(200, 3))
    np.testing.assert_array_equal(loaded.act(rows), agent.act(rows))
    assert (loaded.threshold, loaded.behaviour is not None) == (agent.threshold, behaviour)
    assert loaded.action_space == agent.action_space


def test_further_columns_of_an_actor_are_ignored() -> None:
    network = mlp((3, 8, 4), torch.Generator().manual_seed(0))
    agent = Policy(
        network,
        normalisation=Normalisation.identity(3),
        observation_space=OBSERVATIONS,
        action_space=ACTIONS,
    )
    rows = np.ones((1, 3), np.float32)
    mean = network(torch.from_numpy(rows))[:, :2].tanh().detach().numpy()
    np.testing.assert_allclose(agent.act(rows), mean * [2, 5] + [0, 5], rtol=1e-5)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x02\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "policy.safetensors"
    path.write_bytes(content)
    with pytest.raises(StorageError, match="holds no policy"):
        Policy.load(path)
    with pytest.raises(StorageError, match="cannot read"):
        Policy.load(tmp_path / "missing")


@pytest.mark.parametrize("actions", [ACTIONS, Discrete(2, start=3)])
@pytest.mark.parametrize("space", [OBSERVATIONS, Discrete(3, start=2)])
def test_an_exported_policy_acts_the_same(tmp_path: Path, space: Space, actions: Space) -> None:
    discrete = isinstance(space, Discrete)
    normalisation = Normalisation(
        mean=np.array([0.0, 0.5, -1.0], np.float32), spread=np.array([1.0, 2.0, 0.5], np.float32)
    )
    agent = Policy(
        mlp((3, 8, 4 if actions is ACTIONS else 2), torch.Generator().manual_seed(0)),
        None if actions is ACTIONS else mlp((3, 8, 2), torch.Generator().manual_seed(1)),
        0.0 if actions is ACTIONS else 0.6,
        normalisation=Normalisation.identity(3) if discrete else normalisation,
        observation_space=space,
        action_space=actions,
    )
    export_torchscript(agent, tmp_path / "policy.pt")
    with zipfile.ZipFile(tmp_path / "policy.pt") as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    for part in (__file__, torch.__file__):
        assert str(Path(part).parents[2]).encode() not in content
    module = torch.jit.load(tmp_path / "policy.pt")
    rows = np.random.default_rng(0).normal(scale=3, size=(50, 3)).astype(np.float32)
    observations = np.array([2, 4, 3, 3, 2]) if discrete else rows
    expected, found = agent.act(observations), module(torch.from_numpy(observations)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[:1], module(torch.from_numpy(observations[:1])), rtol=1e-6)


def test_an_exported_policy_needs_torch_alone(tmp_path: Path) -> None:
    export_torchscript(policy(), tmp_path / "policy.pt")
    command = (
        "import sys, torch; torch.jit.load(sys.argv[1])(torch.zeros(1, 3));"
        "assert not any(name.startswith('distributed_privrl') for name in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", command, str(tmp_path / "policy.pt")], check=True, cwd=tmp_path
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_policy_of_weights_that_are_no_numbers_is_refused(tmp_path: Path, value: float) -> None:
    broken = policy()
    with torch.no_grad():
        next(broken.network.parameters())[0, 0] = value
    broken.save(tmp_path / "policy.safetensors")
    with pytest.raises(StorageError, match="its weights are not all finite numbers"):
        Policy.load(tmp_path / "policy.safetensors")


def test_a_policy_that_claims_larger_networks_than_it_holds_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    policy().save(path)
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["policy"])
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about["widths"][""] = [3, 10**6, 10**6, 2]
    safetensors.torch.save_file(weights, path, {"policy": json.dumps(about)})
    with bounded(), pytest.raises(StorageError, match="describes networks of 1000007000002"):
        Policy.load(path)
