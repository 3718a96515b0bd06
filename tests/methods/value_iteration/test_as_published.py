"""`model.as_published` against the paper's algorithm, written out line by line without noise."""

import math
from typing import Any

import numpy as np
import pytest

from distributed_privrl.environments import tabular_problem
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.methods.value_iteration.config import VapviConfig, rho_of
from distributed_privrl.methods.value_iteration.linear_presets import theory_pessimism
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    Pessimism,
    Ridge,
    Shares,
)
from distributed_privrl.methods.value_iteration.settings import linear_settings
from distributed_privrl.methods.value_iteration.statistics import variance_half
from distributed_privrl.privacy.noise import SeededNoise
from tests.methods.value_iteration.linear_data import learned, sampled

NAME, HORIZON, EPISODES = "privrl/LinearMDP-a-v0", 12, 150
FOUND = tabular_problem(NAME)
assert FOUND is not None
MDP = FOUND
assert MDP.features is not None
PHI, DIMENSION = MDP.features, MDP.features.shape[-1]
DATA = sampled(MDP, EPISODES, seed=1)


def configured(
    model: dict[str, Any] | None = None, training: dict[str, Any] | None = None, **privacy: Any
) -> VapviConfig:
    config = parse_config(
        {
            "method": "vapvi",
            "data": {
                "sensitive": "linear/a-v0",
                "unit": "trajectory",
                "units": EPISODES,
                "environment": NAME,
            },
            "privacy": {"epsilon": None, "delta": 1e-4, **privacy},
            "model": {
                "horizon": HORIZON,
                "as_published": True,
                "early_termination": False,
                "reward_range": [0, 1],
                **(model or {}),
            },
            "training": training or {},
        },
        source="test",
    )
    assert isinstance(config, VapviConfig)
    return config


def settings_of(config: VapviConfig) -> LinearSettings:
    return linear_settings(config, plan_run(config), states=MDP.states, actions=MDP.actions)


class Episodes:
    """(K, H) states, actions and rewards, and (K, H) next states."""

    def __init__(self, chosen: np.ndarray) -> None:
        states = DATA.observations.reshape(EPISODES, -1)[chosen]
        steps = states.shape[1] - 1
        self.s, self.s_next = states[:, :HORIZON], states[:, 1 : HORIZON + 1]
        self.a = DATA.actions.reshape(EPISODES, steps)[chosen, :HORIZON]
        self.r = DATA.rewards.reshape(EPISODES, steps)[chosen, :HORIZON].astype(np.float64)


def vapvi(first: Episodes, second: Episodes, *, penalty: float, c: float, d: float, k: float):
    """Algorithm 2 without noise; ``second`` is D'. The numbers are those of its lines."""
    values, policy = np.zeros((HORIZON + 1, MDP.states)), np.zeros((HORIZON, MDP.states), int)
    largest = 0.0
    for h in range(HORIZON, 0, -1):
        ahead = values[h]
        phi = PHI[second.s[:, h - 1], second.a[:, h - 1]]
        reached = ahead[second.s_next[:, h - 1]]
        sigma = phi.T @ phi + penalty * np.eye(DIMENSION)  # 4
        beta = np.linalg.solve(sigma, phi.T @ reached**2)  # 5
        theta = np.linalg.solve(sigma, phi.T @ reached)  # 6
        left = HORIZON - h + 1
        variance = np.clip(PHI @ beta, 0, left**2) - np.clip(PHI @ theta, 0, left) ** 2  # 7
        variance = np.maximum(1, variance)  # 8
        largest = max(largest, float(variance.max()))
        phi = PHI[first.s[:, h - 1], first.a[:, h - 1]]
        shrink = 1 / variance[first.s[:, h - 1], first.a[:, h - 1]]
        gram = (phi * shrink[:, None]).T @ phi + penalty * np.eye(DIMENSION)  # 9
        targets = (first.r[:, h - 1] + ahead[first.s_next[:, h - 1]]) * shrink
        w = np.linalg.solve(gram, phi.T @ targets)  # 10
        spread = np.einsum("sad,de,sae->sa", PHI, np.linalg.inv(gram), PHI)
        gamma = c * math.sqrt(DIMENSION) * np.sqrt(spread) + d / k  # 11
        q = np.clip(PHI @ w - gamma, 0, left)  # 12, 13
        policy[h - 1], values[h - 1] = q.argmax(axis=1), q.max(axis=1)  # 14
    return policy, values, largest


def pevi(data: Episodes, *, c: float, failure: float):
    """Jin et al. 2021, algorithm 2, with beta of theorem 4.4."""
    values, policy = np.zeros((HORIZON + 1, MDP.states)), np.zeros((HORIZON, MDP.states), int)
    zeta = math.log(2 * DIMENSION * HORIZON * EPISODES / failure)
    for h in range(HORIZON, 0, -1):
        phi = PHI[data.s[:, h - 1], data.a[:, h - 1]]
        gram = phi.T @ phi + np.eye(DIMENSION)
        targets = data.r[:, h - 1] + values[h][data.s_next[:, h - 1]]
        w = np.linalg.solve(gram, phi.T @ targets)
        spread = np.einsum("sad,de,sae->sa", PHI, np.linalg.inv(gram), PHI)
        gamma = c * DIMENSION * HORIZON * math.sqrt(zeta) * np.sqrt(spread)
        q = np.clip(PHI @ w - gamma, 0, HORIZON - h + 1)
        policy[h - 1], values[h - 1] = q.argmax(axis=1), q.max(axis=1)
    return policy, values


@pytest.mark.parametrize("split", [True, False])
@pytest.mark.parametrize(("c", "d", "penalty"), [(0.02, 0.0, 1.0), (0.05, 3.0, 0.1)])
def test_without_noise_it_is_the_papers_vapvi(
    split: bool, c: float, d: float, penalty: float
) -> None:
    training = {"ridge": {"penalty": penalty}, "pessimism": {"constant": c, "offset": d}}
    settings = settings_of(configured({"split": split}, training))
    half = variance_half(DATA.unit_ids)
    everybody = np.ones(EPISODES, bool)
    first, second = (~half, half) if split else (everybody, everybody)
    policy, values, largest = vapvi(
        Episodes(first),
        Episodes(second),
        penalty=penalty,
        c=c,
        d=d,
        k=EPISODES / 2 if split else EPISODES,
    )
    assert largest > 1.1, "no variance ever weighs"
    found = learned(settings, DATA).policy()
    np.testing.assert_allclose(found.values, values, atol=1e-7)
    np.testing.assert_array_equal(found.actions, policy)
    assert len(np.unique(values[:-1].round(6))) > HORIZON


@pytest.mark.parametrize("c", [0.0005, 0.002])
def test_without_noise_and_variances_it_is_pevi(c: float) -> None:
    settings = settings_of(
        configured({"regression": "pevi"}, {"pessimism": {"constant": c}, "ridge": {"penalty": 1}})
    )
    policy, values = pevi(Episodes(np.ones(EPISODES, bool)), c=c, failure=settings.failure)
    found = learned(settings, DATA).policy()
    np.testing.assert_allclose(found.values, values, atol=1e-7)
    np.testing.assert_array_equal(found.actions, policy)


def test_its_constants_are_the_theorems_and_nothing_is_ours() -> None:
    config = configured(epsilon=4.0)
    plan, settings = plan_run(config), settings_of(config)
    assert plan.step_noise is not None
    z = plan.step_noise.noise_multiplier
    assert settings.noise_multiplier == z
    assert settings.pessimism == theory_pessimism(
        "vapvi",
        dimension=DIMENSION,
        horizon=HORIZON,
        rho=rho_of(z, HORIZON),
        coverage=1 / DIMENSION,
    )
    assert settings.pessimism.constant == 1
    assert settings.ridge == Ridge(projection=False, shift=True, noise_factor=0.0, penalty=1.0)
    assert settings.shares == Shares()
    assert settings.uniform_bounds
    assert not any((settings.centre_values, settings.reuse_gram, settings.pool_grams))
    known = settings_of(configured(None, {"pessimism": {"coverage": 0.02}}, epsilon=4.0))
    assert known.pessimism.offset > settings.pessimism.offset
    # The theorem's D says nothing at this size: every value is 0, and every action as good.
    assert not learned(settings, DATA, SeededNoise(0)).policy().values.any()


def test_little_noise_changes_little() -> None:
    training = {"pessimism": {"constant": 0.02, "offset": 0.0}}
    exact = learned(settings_of(configured(None, training)), DATA).policy()
    config = configured(None, training, epsilon=1e6)
    noisy = learned(settings_of(config), DATA, SeededNoise(0)).policy()
    np.testing.assert_allclose(noisy.values, exact.values, atol=0.2)
    assert np.abs(noisy.values - exact.values).max() > 1e-9


def test_plans_say_which_algorithm_runs() -> None:
    assert "as published" in plan_run(configured(epsilon=4.0)).facts()["algorithm"]
    ours = plan_run(configured({"as_published": False}, epsilon=4.0)).facts()["algorithm"]
    assert ours.startswith("a redesign of DP-VAPVI: centred targets")


def test_a_configuration_that_was_written_out_is_read_again() -> None:
    config = configured(epsilon=4.0)
    again = parse_config(config.model_dump(mode="json"), source="test")
    assert again == config
    ours = configured({"as_published": False}).pessimism(DIMENSION, None)
    assert ours == Pessimism(constant=0.3)
