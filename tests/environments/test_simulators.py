import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments.cartpole import BALANCE, SWINGUP
from distributed_privrl.environments.pendulum import Pendulum
from distributed_privrl.environments.registered_simulators import simulator_of
from distributed_privrl.environments.simulators import Simulator

LOCOMOTION = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")
ALL = ("Pendulum-v1", BALANCE, SWINGUP, *LOCOMOTION)


def random_actions(simulator: Simulator, count: int, rng: np.random.Generator) -> np.ndarray:
    space = gymnasium.make(simulator.environment).action_space
    assert isinstance(space, gymnasium.spaces.Box)
    return rng.uniform(space.low, space.high, size=(count, *space.shape)).astype(np.float32)


def test_pendulum_is_gymnasiums_to_the_last_bit() -> None:
    environment, simulator = gymnasium.make("Pendulum-v1"), Pendulum()
    rng = np.random.default_rng(0)
    observation, _ = environment.reset(seed=0)
    states = environment.unwrapped.state[None]  # type: ignore[attr-defined]
    for _ in range(200):
        np.testing.assert_array_equal(simulator.observe(states)[0], observation)
        action = rng.uniform(-3, 3, size=(1, 1)).astype(np.float32)
        states, rewards, terminated = simulator.step(states, action)
        observation, reward, ended, _, _ = environment.step(action[0])
        assert rewards[0] == reward
        assert terminated[0] == ended
        np.testing.assert_array_equal(states[0], environment.unwrapped.state)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LOCOMOTION)
def test_locomotion_is_gymnasiums_to_the_last_bit(name: str) -> None:
    environment, simulator = gymnasium.make(name), simulator_of(name)
    rng = np.random.default_rng(3)
    seed = int(np.random.default_rng(5).integers(2**31, size=2)[1])
    states = simulator.reset(2, np.random.default_rng(5))
    observation, _ = environment.reset(seed=seed)
    lived = 0
    for _ in range(60):
        np.testing.assert_array_equal(simulator.observe(states)[1], np.float32(observation))
        actions = random_actions(simulator, 2, rng)
        states, rewards, terminated = simulator.step(states, actions)
        observation, reward, ended, _, _ = environment.step(actions[1])
        assert rewards[1] == reward
        assert terminated[1] == ended
        lived += 1
        if ended:
            break
    assert lived == 60 if name == "HalfCheetah-v5" else 5 < lived < 60


@pytest.mark.parametrize("name", ALL)
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    simulator = simulator_of(name)
    rng = np.random.default_rng(0)
    states, actions = simulator.reset(5, rng), random_actions(simulator, 5, rng)
    before = states.copy()
    together = simulator.step(states, actions)
    np.testing.assert_array_equal(states, before)
    alone = [simulator.step(states[i : i + 1], actions[i : i + 1]) for i in (3, 1)]
    for part in range(3):
        for row, single in zip((3, 1), alone, strict=True):
            np.testing.assert_array_equal(together[part][row], single[part][0])


@pytest.mark.parametrize("name", ALL)
def test_a_state_read_from_an_observation_moves_as_the_true_one(name: str) -> None:
    simulator = simulator_of(name)
    rng = np.random.default_rng(1)
    states = simulator.reset(60, rng)
    for _ in range(5):
        states = simulator.step(states, random_actions(simulator, 60, rng)).states
    shown = simulator.observe(states)
    if name in ("Hopper-v5", "Walker2d-v5"):  # they show no speed beyond 10
        speeds = shown.shape[1] // 2
        states, shown = (
            part[(np.abs(shown[:, speeds:]) < 10).all(axis=1)] for part in (states, shown)
        )
        assert len(states) > 5
    read = simulator.states_of(shown)
    np.testing.assert_allclose(simulator.observe(read), shown, atol=1e-6)
    actions = random_actions(simulator, len(states), rng)
    true, seen = simulator.step(states, actions), simulator.step(read, actions)
    np.testing.assert_allclose(seen.rewards, true.rewards, atol=2e-3)
    np.testing.assert_allclose(
        simulator.observe(seen.states), simulator.observe(true.states), atol=2e-3
    )


@pytest.mark.parametrize("name", ALL)
def test_the_generator_decides_the_starts(name: str) -> None:
    simulator = simulator_of(name)
    first, again, other = (simulator.reset(3, np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first[0] != first[1]).any()
    assert (first != other).any()


def test_pendulum_starts_anywhere() -> None:
    angle, speed = Pendulum().reset(20_000, np.random.default_rng(0)).T
    for values, most in ((angle, np.pi), (speed, 1.0)):
        assert 0.999 * most < values.max() <= most
        assert -most <= values.min() < -0.999 * most
        assert abs(values.mean()) < 0.03 * most
        assert values.std() == pytest.approx(most / np.sqrt(3), rel=0.02)


def test_an_environment_without_a_simulator_is_refused() -> None:
    with pytest.raises(ConfigError, match="'CartPole-v1' has no simulator"):
        simulator_of("CartPole-v1")


def test_without_mujoco_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="mujoco"):
        simulator_of("Walker2d-v5")


def test_pendulum_and_cartpole_need_no_mujoco() -> None:
    code = (
        "import sys, gymnasium\n"
        "sys.modules['mujoco'] = sys.modules['dm_control'] = None\n"
        "from distributed_privrl.environments.registered_simulators import simulator_of\n"
        f"for name in ('Pendulum-v1', {BALANCE!r}, {SWINGUP!r}):\n"
        "    simulator_of(name), gymnasium.make(name).reset(seed=0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
