import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.cartpole import (
    _INERTIA,
    _UPRIGHT_INVERSE_MASS,
    BALANCE,
    CARTPOLES,
    HORIZON,
    SWINGUP,
)

TASKS = {BALANCE: "balance", SWINGUP: "swingup"}


def _suite(task: str):  # type: ignore[no-untyped-def]
    pytest.importorskip("dm_control")
    from dm_control import suite

    return suite.load("cartpole", task, task_kwargs={"random": 0})


@pytest.fixture(scope="module")
def model():  # type: ignore[no-untyped-def]
    return _suite("swingup").physics.model.ptr


def test_masses_are_mujocos(model) -> None:  # type: ignore[no-untyped-def]
    assert pytest.approx(model.dof_M0[1], abs=1e-15) == _INERTIA
    assert pytest.approx(model.dof_invweight0[0], abs=1e-14) == _UPRIGHT_INVERSE_MASS


def test_any_step_is_mujocos(model) -> None:  # type: ignore[no-untyped-def]
    import mujoco

    data = mujoco.MjData(model)
    rng = np.random.default_rng(0)
    count = 3000
    states = np.stack(
        (
            rng.uniform(-1.9, 1.9, count),
            rng.uniform(-7, 7, count),
            rng.normal(0, 3, count),
            rng.normal(0, 10, count),
        ),
        axis=1,
    )
    edge = np.arange(0, count, 5)
    states[edge, 0] = np.sign(states[edge, 0]) * (1.8 + rng.uniform(-0.001, 0.003, len(edge)))
    actions = rng.uniform(-1.3, 1.3, (count, 1)).astype(np.float32)
    moved = CARTPOLES[BALANCE].step(states, actions).states
    expected = np.empty_like(states)
    for row in range(count):
        mujoco.mj_resetData(model, data)
        data.qpos[:], data.qvel[:], data.ctrl[:] = states[row, :2], states[row, 2:], actions[row]
        mujoco.mj_step(model, data)
        expected[row] = *data.qpos, *data.qvel
    assert (np.abs(states[:, 0]) > 1.8).sum() > 400
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("environment", list(TASKS))
def test_an_episode_is_the_suites(environment: str) -> None:
    suite, ours = _suite(TASKS[environment]), gymnasium.make(environment)
    suite.physics.model.opt.tolerance = 0  # else its solver stops 1e-8 short, which grows
    rng = np.random.default_rng(0)
    observed = suite.reset().observation
    data = suite.physics.data
    observation, _ = ours.reset(options={"state": (*data.qpos, *data.qvel)})
    beyond = 0
    for step in range(HORIZON):
        expected = np.concatenate((observed["position"], observed["velocity"]))
        np.testing.assert_allclose(observation, expected, rtol=1e-6, atol=1e-5)
        beyond += abs(expected[0]) > 1.8
        push = 1.0 - 2 * (step % 200 > 99) if step >= HORIZON // 2 else rng.uniform(-1, 1)
        action = np.array([push], dtype=np.float32)
        moment = suite.step(action)
        observed = moment.observation
        observation, reward, terminated, truncated, _ = ours.step(action)
        assert reward == pytest.approx(moment.reward, abs=1e-6)
        assert not terminated
        assert truncated == moment.last() == (step == HORIZON - 1)
    assert beyond > 100


@pytest.mark.parametrize("environment", list(TASKS))
def test_starts_are_distributed_as_the_suites(environment: str) -> None:
    suite = _suite(TASKS[environment])
    theirs = []
    for _ in range(400):
        suite.task.initialize_episode(suite.physics)
        theirs.append([*suite.physics.data.qpos, *suite.physics.data.qvel])
    theirs = np.array(theirs)
    ours = CARTPOLES[environment].reset(20_000, np.random.default_rng(0))
    error = theirs.std(axis=0) / np.sqrt(len(theirs))
    assert (np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 5 * error).all()
    np.testing.assert_allclose(ours.std(axis=0), theirs.std(axis=0), rtol=0.2)
    reach = np.abs(ours - ours.mean(axis=0)).max(axis=0) / ours.std(axis=0)
    uniform = [environment == BALANCE] * 2 + [False] * 2
    assert ((reach < 1.8) == uniform).all()


@pytest.mark.parametrize("environment", list(TASKS))
def test_gymnasiums_checker_accepts_it(environment: str) -> None:
    made = gymnasium.make(environment)
    assert made.spec is not None
    assert made.spec.max_episode_steps == 1000
    check_env(made.unwrapped, skip_render_check=True)


def test_the_seed_decides_the_start() -> None:
    environment = gymnasium.make(SWINGUP)
    first, again, other = (environment.reset(seed=seed)[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": 1}, r"reset options \['goal'\] are unknown \(known: state\)"),
        ({"state": (0, 0, 0)}, "must be 4 finite numbers"),
        ({"state": (0, float("nan"), 0, 0)}, "must be 4 finite numbers"),
    ],
)
def test_wrong_starts_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        gymnasium.make(BALANCE).reset(options=options)


@pytest.mark.parametrize("action", [np.array([np.nan]), np.zeros(2)])
def test_wrong_actions_are_refused(action: np.ndarray) -> None:
    environment = gymnasium.make(BALANCE).unwrapped
    environment.reset(seed=0)
    with pytest.raises(ConfigError, match="one finite number"):
        environment.step(action)


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="task must be one of privrl/CartpoleBalance-v0"):
        gymnasium.make(BALANCE, task="two_poles")
