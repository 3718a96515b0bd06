"""HIV treatment: the equations, their equilibrium, rewards, and the Gymnasium environment."""

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from scipy.integrate import solve_ivp
from scipy.optimize import root

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.hiv import (
    EFFICACIES,
    HIV,
    UNTREATED,
    HivEnv,
    HivTreatment,
    noisy_efficacies,
    treat,
)


def slope(state: Any, first: float, second: float) -> list[float]:
    """Equation 1 of Ernst et al., as printed."""
    t1, t1s, t2, t2s, v, e = state
    return [
        1e4 - 0.01 * t1 - (1 - first) * 8e-7 * v * t1,
        (1 - first) * 8e-7 * v * t1 - 0.7 * t1s - 1e-5 * e * t1s,
        31.98 - 0.01 * t2 - (1 - 0.34 * first) * 1e-4 * v * t2,
        (1 - 0.34 * first) * 1e-4 * v * t2 - 0.7 * t2s - 1e-5 * e * t2s,
        (1 - second) * 100 * 0.7 * (t1s + t2s)
        - 13 * v
        - ((1 - first) * 8e-7 * t1 + (1 - 0.34 * first) * 1e-4 * t2) * v,
        1
        + 0.3 * (t1s + t2s) / (t1s + t2s + 100) * e
        - 0.25 * (t1s + t2s) / (t1s + t2s + 500) * e
        - 0.1 * e,
    ]


def test_episodes_start_at_the_untreated_equilibrium() -> None:
    found = root(lambda state: slope(state, 0.0, 0.0), UNTREATED, method="lm")
    assert found.success
    np.testing.assert_allclose(UNTREATED, found.x, atol=0.51, rtol=1e-5)
    later = treat(UNTREATED[None], np.zeros((1, 2)), days=2000)[0]
    np.testing.assert_allclose(later, found.x, rtol=1e-6)


@pytest.mark.parametrize("action", range(4))
def test_a_treatment_solves_the_equations(action: int) -> None:
    states = [UNTREATED, np.array([8e5, 60.0, 600.0, 14.0, 260.0, 23000.0])]
    moved = treat(np.stack(states), EFFICACIES[[action, action]])
    for state, after in zip(states, moved, strict=True):
        solved = solve_ivp(
            lambda _, place: slope(place, *EFFICACIES[action]),
            (0, 20),
            state,
            method="LSODA",
            rtol=1e-10,
            atol=1e-9,
        )
        np.testing.assert_allclose(after, solved.y[:, -1], rtol=1e-4)


def test_very_much_virus_does_not_blow_up_the_integration() -> None:
    """After long treatment without defence the virus returns at once: the stiff case."""
    states = np.tile([1e6, 1e-2, 3200.0, 1e-2, 1.0, 1.0], (4, 1))
    for _ in range(3):
        states = treat(states, EFFICACIES)
        assert np.isfinite(states).all()
        assert (states >= 0).all()
    solved = solve_ivp(
        lambda _, place: slope(place, 0.0, 0.0),
        (0, 60),
        [1e6, 1e-2, 3200.0, 1e-2, 1.0, 1.0],
        method="LSODA",
        rtol=1e-10,
        atol=1e-9,
    )
    assert solved.y[4].max() > 4e5
    np.testing.assert_allclose(states[0], solved.y[:, -1], rtol=1e-3)


def test_rows_do_not_depend_on_each_other() -> None:
    patients, rng = HivTreatment(), np.random.default_rng(0)
    states = patients.reset(5, rng)
    for _ in range(3):
        states = patients.step(states, rng.integers(4, size=5)).states
    before, actions = states.copy(), np.array([0, 1, 2, 3, 0])
    together = patients.step(states, actions)
    np.testing.assert_array_equal(states, before)
    for row in (1, 3):
        alone = patients.step(states[row : row + 1], actions[row : row + 1])
        np.testing.assert_array_equal(alone.states[0], together.states[row])


def test_rewards_are_of_the_state_and_of_the_drugs() -> None:
    states = np.array([[1.0, 1.0, 1.0, 1.0, 2000.0, 300.0]] * 4)
    earned = HivTreatment().rewards(states, np.arange(4))
    bare = 1e3 * 300 - 0.1 * 2000
    expected = [bare, bare - 9800, bare - 180, bare - 9980]
    np.testing.assert_allclose(earned * 1e6, expected)
    other = HivTreatment().with_physics(
        {"first_penalty": np.full(4, 18750.0), "second_penalty": np.full(4, 2150.0)}
    )
    expected = [bare, bare - 18750 * 0.49, bare - 2150 * 0.09, bare - 18750 * 0.49 - 2150 * 0.09]
    np.testing.assert_allclose(other.rewards(states, np.arange(4)) * 1e6, expected)
    with pytest.raises(ConfigError, match=r"physics gravity of privrl/HIVTreatment-v0"):
        HivTreatment().with_physics({"gravity": np.zeros(4)})


def test_observations_are_logarithms_that_lead_back() -> None:
    patients = HivTreatment()
    states = np.stack([UNTREATED, [1e-9, 1.0, 10.0, 100.0, 1e9, 5.0]])
    shown = patients.observe(states)
    np.testing.assert_allclose(shown[1], [-5, 0, 1, 2, 8, np.log10(5)], rtol=1e-6)
    np.testing.assert_allclose(patients.states_of(shown)[0], UNTREATED, rtol=1e-5)


def test_noise_is_of_given_drugs_alone() -> None:
    actions, rng = np.repeat(np.arange(4), 5000), np.random.default_rng(0)
    noise = np.full(len(actions), 0.01)
    drawn = noisy_efficacies(actions, noise, rng)
    for action in range(4):
        rows = drawn[actions == action]
        for drug, exact in enumerate(EFFICACIES[action]):
            assert abs(rows[:, drug].mean() - exact) < 1e-3
            expected = 0.01 if exact else 0.0
            assert rows[:, drug].std() == pytest.approx(expected, rel=0.06)
    exact_rows = noisy_efficacies(actions, np.zeros(len(actions)), rng)
    np.testing.assert_array_equal(exact_rows, EFFICACIES[actions])


def test_the_registered_environment_does_as_the_simulator() -> None:
    environment, patients = gymnasium.make(HIV), HivTreatment()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_env(environment.unwrapped, skip_render_check=True)
    rng = np.random.default_rng(0)
    observation, _ = environment.reset(seed=0)
    states = patients.reset(1, rng)
    for step in range(50):
        np.testing.assert_array_equal(observation, patients.observe(states)[0])
        assert environment.observation_space.contains(observation)
        action = rng.integers(4)
        states, rewards, _ = patients.step(states, np.array([action]))
        observation, reward, terminated, truncated, _ = environment.step(action)
        assert reward == rewards[0]
        assert (terminated, truncated) == (False, step == 49)


def test_the_environments_noise_comes_from_its_seed() -> None:
    def episode(seed: int, **options: float) -> list[float]:
        environment = gymnasium.make(HIV, **options)
        environment.reset(seed=seed)
        return [float(environment.step(np.int64(3))[1]) for _ in range(5)]

    assert episode(0, efficacy_noise=0.01) == episode(0, efficacy_noise=0.01)
    assert episode(0, efficacy_noise=0.01) != episode(1, efficacy_noise=0.01)
    assert episode(0) == episode(1)
    assert episode(0) != episode(0, first_penalty=18750.0)


@pytest.mark.parametrize("name", ["first_penalty", "second_penalty", "efficacy_noise"])
def test_wrong_options_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be a finite number >= 0, got -1"):
        HivEnv(**{name: -1.0})


def test_wrong_starts_and_actions_are_refused() -> None:
    environment = HivEnv()
    with pytest.raises(ConfigError, match=r"reset options \['place'\] are unknown"):
        environment.reset(options={"place": 1})
    with pytest.raises(ConfigError, match="reset option state must be 6 finite numbers"):
        environment.reset(options={"state": [1.0, -1.0, 1.0, 1.0, 1.0, 1.0]})
    environment.reset(options={"state": np.ones(6)})
    with pytest.raises(ConfigError, match="action must lie in Discrete"):
        environment.step(np.int64(4))
