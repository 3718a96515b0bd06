import copy
import pickle
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments import register
from distributed_privrl.environments.mazes import ENVIRONMENTS, find_maze


@pytest.mark.parametrize("environment", list(ENVIRONMENTS))
@pytest.mark.filterwarnings("error:.*:UserWarning")
def test_gymnasiums_checker_accepts_it(environment: str) -> None:
    check_env(gymnasium.make(environment).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("environment", list(ENVIRONMENTS))
def test_one_episode_is_truncated_at_the_time_limit(environment: str) -> None:
    maze, dense = find_maze(environment)
    env = gymnasium.make(environment)
    env.action_space.seed(0)
    observation, info = env.reset(seed=0)
    steps, truncated, rewards = 0, False, []
    while not truncated:
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        steps += 1
        rewards.append(reward)
        assert not terminated
        assert env.observation_space.contains(observation)
        assert reward == maze.rewards(observation, dense=dense)
        assert info["success"] == (np.hypot(*(observation[:2] - maze.goal)) <= 0.5)
    assert steps == maze.time_limit
    assert (0 < min(rewards) < 1) if dense else set(rewards) <= {0.0, 1.0}


def test_spaces_have_the_widths_of_eleven_number_transitions() -> None:
    env = gymnasium.make("privrl/Maze2D-medium-v0")
    assert env.observation_space == gymnasium.spaces.Box(
        -np.array([3, 3, 5, 5], np.float32), np.array([3, 3, 5, 5], np.float32), dtype=np.float32
    )
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)


def test_the_seed_decides_the_start() -> None:
    env = gymnasium.make("privrl/Maze2D-large-v0")
    first, again, other = (env.reset(seed=seed)[0] for seed in (3, 3, 4))
    following = env.reset()[0]
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (other != following).any()


def test_a_start_can_be_given() -> None:
    env = gymnasium.make("privrl/Maze2D-umaze-v0")
    observation, info = env.reset(seed=0, options={"state": (-1.0, 1.0, 0.25, 0.0)})
    assert observation.tolist() == [-1.0, 1.0, 0.25, 0.0]
    assert info == {"success": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": 1}, r"reset options \['goal'\] are unknown \(known: state\)"),
        ({"state": (0, 0, 0)}, "must be 4 finite numbers"),
        ({"state": (0, float("nan"), 0, 0)}, "must be 4 finite numbers"),
        ({"state": (0, 0, 0, 0)}, "lies inside a wall"),
    ],
)
def test_wrong_starts_are_refused(options: dict[str, object], message: str) -> None:
    env = gymnasium.make("privrl/Maze2D-umaze-v0")
    with pytest.raises(ConfigError, match=message):
        env.reset(options=options)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_goes_its_own_way(clone) -> None:
    env = gymnasium.make("privrl/Maze2D-open-v0").unwrapped
    env.reset(seed=0)
    twin = clone(env)
    forward = np.array([1.0, -1.0], dtype=np.float32)
    np.testing.assert_array_equal(env.step(forward)[0], twin.step(forward)[0])
    env.step(forward)
    assert (env.step(forward)[0] != twin.step(forward)[0]).any()


def test_registering_twice_changes_nothing() -> None:
    before = dict(gymnasium.registry)
    register()
    assert gymnasium.registry == before


def test_importing_the_folder_leaves_mujoco_alone() -> None:
    code = (
        "import sys, distributed_privrl.environments\n"
        "assert not {'mujoco', 'gymnasium_robotics', 'torch', 'ray'} & set(sys.modules)\n"
        "import gymnasium\n"
        "sys.modules['mujoco'] = None\n"
        "try:\n    gymnasium.make('privrl/Maze2D-open-v0')\n"
        "except Exception as error:\n    assert error.exit_code == 5, error\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_gymnasium_robotics_make_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from distributed_privrl.environments import point_mass

    point_mass._model_xml.cache_clear()
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(MissingExtraError, match="gymnasium-robotics"):
        gymnasium.make("privrl/Maze2D-open-v0")
