"""Rules of termination say what the simulators do, step by step."""

import gymnasium
import numpy as np
import pytest
import torch

from distributed_privrl.environments.termination import termination_rule

MUJOCO = pytest.importorskip("mujoco")


@pytest.mark.parametrize(
    "environment", ["Walker2d-v5", "Hopper-v5", "InvertedPendulum-v5", "MountainCarContinuous-v0"]
)
def test_a_rule_ends_episodes_where_the_environment_does(environment: str) -> None:
    rule = termination_rule(environment)
    assert rule is not None
    made = gymnasium.make(environment)
    made.action_space.seed(0)
    shown, ended = [], []
    for seed in range(8):
        observation, _ = made.reset(seed=seed)
        for _ in range(300):
            action = made.action_space.sample()
            if environment.startswith("Mountain"):  # energy is pumped in, so that it arrives
                action = np.sign(observation[1:2]).astype(np.float32)
            observation, _, terminated, truncated, _ = made.step(action)
            shown.append(observation)
            ended.append(terminated)
            if terminated or truncated:
                break
    rows, expected = np.array(shown), np.array(ended)
    assert 4 <= expected.sum() < len(expected)
    np.testing.assert_array_equal(rule(rows), expected)
    np.testing.assert_array_equal(rule(torch.from_numpy(rows)).numpy(), expected)


@pytest.mark.parametrize(
    "environment", ["Pendulum-v1", "HalfCheetah-v5", "privrl/CartpoleBalance-v0", "mine/Hopper-v5"]
)
def test_nothing_ends_where_no_rule_is_known(environment: str) -> None:
    assert termination_rule(environment) is None


def test_versions_and_modules_share_a_rule() -> None:
    assert termination_rule("Hopper-v4") is termination_rule("some.module:Hopper-v5") is not None
