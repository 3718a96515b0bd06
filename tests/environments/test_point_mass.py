import math
from importlib.machinery import ModuleSpec

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.environments import point_mass as module
from distributed_privrl.environments.mazes import MAZES
from distributed_privrl.environments.point_mass import PointMass


@pytest.mark.parametrize(
    ("name", "map_name"),
    [("open", "OPEN"), ("umaze", "U_MAZE"), ("medium", "MEDIUM_MAZE"), ("large", "LARGE_MAZE")],
)
def test_walls_and_motion_are_those_of_gymnasium_robotics(name: str, map_name: str) -> None:
    maps = pytest.importorskip("gymnasium_robotics.envs.maze.maps")
    from gymnasium_robotics.envs.maze.point_maze import PointMazeEnv

    maze, rng = MAZES[name], np.random.default_rng(1)
    np.testing.assert_array_equal(maze.cells, getattr(maps, map_name))
    theirs, ours = PointMazeEnv(maze_map=getattr(maps, map_name)), PointMass(name)
    theirs.reset(seed=0)
    fastest = 0.0
    for _ in range(3):
        start = maze.draw_start(rng)
        ours.reset(start.tolist())
        theirs.point_env.set_state(start[:2], start[2:])
        for step in range(200):
            if step % 20 == 0:
                action = rng.choice([-1.0, 1.0], size=2)
            expected = theirs.step(action)[0]["observation"]
            ours.step(action.tolist())
            fastest = max(fastest, np.abs(expected[2:]).max())
            expected[2:] = expected[2:].clip(-5.0, 5.0)
            np.testing.assert_allclose(ours.state, expected, atol=1e-6)
    assert fastest > 5.0


@pytest.mark.parametrize("name", list(MAZES))
def test_states_stay_within_the_bounds_whatever_the_actions(name: str) -> None:
    maze, rng, ball = MAZES[name], np.random.default_rng(2), PointMass(name)
    largest = np.zeros(4)
    for _ in range(20):
        ball.reset(maze.draw_start(rng).tolist())
        for step in range(300):
            if step % 40 == 0:
                action = rng.choice([-1.0, 0.0, 1.0], size=2, p=[0.45, 0.1, 0.45]).tolist()
            ball.step(action)
            state = ball.state
            largest = np.maximum(largest, np.abs(state))
            assert maze.cell(state[0], state[1]) in maze.free_cells
    assert (largest <= maze.bounds).all()
    assert (largest[2:] == 5.0).all()
    assert (largest[:2] > maze.bounds[:2] - 0.1).all()


def test_a_fast_start_is_slowed_to_the_limit() -> None:
    ball = PointMass("open")
    ball.reset((0.0, 0.0, 9.0, -9.0))
    assert ball.state == (0.0, 0.0, 5.0, -5.0)


def test_reset_forgets_the_past() -> None:
    ball, states = PointMass("umaze"), []
    for _ in range(2):
        ball.reset((-1.0, 1.0, 0.5, 0.0))
        assert not ball._data.qacc_warmstart.any()
        for _ in range(50):
            ball.step((-1.0, 0.3))
        states.append(ball.state)
    assert states[0] == states[1]


def test_two_balls_in_one_maze_do_not_touch() -> None:
    first, second = PointMass("open"), PointMass("open")
    first.reset((0.0, 0.0, 0.0, 0.0))
    second.reset((1.0, 1.0, 0.0, 0.0))
    first.step((1.0, 1.0))
    assert second.state == (1.0, 1.0, 0.0, 0.0)


@pytest.mark.parametrize("force", [math.nan, math.inf])
def test_forces_must_be_finite(force: float) -> None:
    ball = PointMass("open")
    with pytest.raises(ConfigError, match="action must be finite"):
        ball.step((0.0, force))


def test_unknown_maze_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="maze must be one of open, umaze, medium, large"):
        PointMass("ultra")


@pytest.mark.parametrize("package", ["mujoco", "gymnasium-robotics"])
def test_missing_packages_name_the_extra(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    module._model_xml.cache_clear()
    find = module.importlib.util.find_spec

    def without(name: str) -> ModuleSpec | None:
        return None if name == package.replace("-", "_") else find(name)

    monkeypatch.setattr(module.importlib.util, "find_spec", without)
    with pytest.raises(MissingExtraError, match=rf"{package} .*\[envs\]"):
        PointMass("open")
