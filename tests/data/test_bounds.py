import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import (
    Bounds,
    bounds_from_environment,
    bounds_from_file,
    bounds_from_public,
    check_bounds_file,
)
from tests.data.conftest import ACTION_SPACE, CATEGORIES, OBSERVATION_SPACE, walk


class Bounded(gymnasium.Env):
    observation_space = Box(np.array([-1.0, -2.0]), np.array([1.0, 2.0]), dtype=np.float64)
    action_space = Discrete(3)
    reward_range = (-5.0, 0.0)


@pytest.fixture
def environment():
    gymnasium.register("BoundsTest-v0", Bounded, disable_env_checker=True)
    yield "BoundsTest-v0"
    del gymnasium.registry["BoundsTest-v0"]


def test_bounds_of_an_environment(environment):
    bounds = bounds_from_environment(environment)
    assert bounds.columns == ("observation_0", "observation_1", "reward")
    assert bounds.low.tolist() == [-1, -2, -5]
    assert bounds.high.tolist() == [1, 2, 0]


def test_unbounded_columns_of_an_environment_are_listed_with_advice():
    with pytest.raises(ConfigError, match=r"leaves observation_1, observation_3, reward unb.*YAML"):
        bounds_from_environment("CartPole-v1")
    with pytest.raises(ConfigError, match="cannot be made"):
        bounds_from_environment("NoSuchThing-v0")


def test_public_bounds_count_final_observations():
    rows = walk((3, 1)).transitions("transition")
    bounds = bounds_from_public(
        {"p": [rows.select(slice(0, 2)), rows.select(slice(2, 4))]}, OBSERVATION_SPACE, ACTION_SPACE
    )
    assert bounds.columns == ("observation_0", "observation_1", "action_0", "reward")
    np.testing.assert_allclose(bounds.low, [0, 0, -0.2, 0])
    np.testing.assert_allclose(bounds.high, [1, 3, 0.1, 3])
    rows.rewards[0] = np.nan
    with pytest.raises(ConfigError, match=r"'p'.* reward"):
        bounds_from_public({"p": [rows]}, OBSERVATION_SPACE, ACTION_SPACE)
    with pytest.raises(ConfigError, match="no rows"):
        bounds_from_public({}, OBSERVATION_SPACE, ACTION_SPACE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reward: [0, 1]", "observation needs low and high"),
        ("observation: {low: 0, high: 1}\nreward: [0, 1]", "action needs"),
        ("observation: {low: [0], high: 1}\naction: {low: 0, high: 1}\nreward: [0, 1]", "has 1 v"),
        ("observation: {low: 0, high: .inf}\naction: {low: 0, high: 1}\nreward: [0, 1]", "_0, obs"),
        ("observation: {low: 2, high: 1}\naction: {low: 0, high: 1}\nreward: [0, 1]", "above high"),
        (
            "observation: {low: 0, high: 1, step: [1]}\naction: {low: 0, high: 1}\nreward: [0, 1]",
            "observation: step has 1 values, its space has 2 columns",
        ),
        (
            "observation: {low: 0, high: 1}\naction: {low: 0, high: 1}\nreward: {low: 0, step: 1}",
            "reward",
        ),
        ("observations: {low: 2, high: 1}\nreward: [0, 1]", "unknown key 'observations'"),
    ],
)
def test_bad_bounds_files_are_refused(tmp_path, text, message):
    path = tmp_path / "bounds.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        bounds_from_file(path, OBSERVATION_SPACE, ACTION_SPACE)


def test_bounds_file_leaves_out_discrete_parts(tmp_path):
    path = tmp_path / "bounds.yaml"
    path.write_text("action: {low: -1, high: [2]}\nreward: [0, 1]\n")
    bounds = bounds_from_file(path, CATEGORIES, ACTION_SPACE)
    assert bounds.columns == ("action_0", "reward")
    assert bounds.high.tolist() == [2, 1]
    path.write_text("observation: {low: 0, high: 1}\naction: {low: -1, high: 2}\nreward: [0, 1]\n")
    with pytest.raises(ConfigError, match="observation holds no numbers: leave it out"):
        bounds_from_file(path, CATEGORIES, ACTION_SPACE)


def test_bounds_need_a_value_for_every_column():
    with pytest.raises(ConfigError, match="low must have 2 values"):
        Bounds(low=np.zeros(1), high=np.ones(2), columns=("a", "b"))


FILE = """
observation: {low: [0, -2.5], high: [1, 7.25], step: [1, 0]}
action: {low: -1, high: 1, step: 0.1}
reward: {low: -1440, high: 120, step: 1}
"""


def test_steps_are_declared_beside_the_bounds(tmp_path):
    path = tmp_path / "bounds.yaml"
    path.write_text(FILE)
    bounds = bounds_from_file(path, OBSERVATION_SPACE, ACTION_SPACE)
    assert bounds.step.tolist() == [1, 0, 0.1, 1]
    assert (bounds.low[-1], bounds.high[-1]) == (-1440, 120)
    path.write_text(FILE.replace("step: [1, 0]", "step: 0.2").replace(", step: 0.1", ""))
    with pytest.raises(ConfigError, match=r"bounds.yaml: from low to high of observation_1"):
        bounds_from_file(path, OBSERVATION_SPACE, ACTION_SPACE)


def test_columns_have_no_step_unless_one_is_declared(tmp_path, environment):
    path = tmp_path / "bounds.yaml"
    path.write_text("observation: {low: 0, high: 1}\naction: {low: 0, high: 1}\nreward: [0, 1]\n")
    rows = walk((3, 1)).transitions("transition")
    for bounds in (
        bounds_from_file(path, OBSERVATION_SPACE, ACTION_SPACE),
        bounds_from_public({"p": [rows]}, OBSERVATION_SPACE, ACTION_SPACE),
        bounds_from_environment(environment),
        Bounds(low=np.zeros(2), high=np.ones(2), columns=("a", "b")),
    ):
        assert bounds.step.tolist() == [0] * len(bounds.columns)
        assert bounds.step.dtype == np.float64


@pytest.mark.parametrize(
    ("low", "high", "step"),
    [(0, 1, 0.1), (-1440, 120, 1), (0.1, 0.7, 0.2), (3, 3, 1), (0, 100_000, 0.01), (0, 0.5, 0)],
)
def test_a_range_may_be_any_whole_number_of_steps(low, high, step):
    bounds = Bounds(low=[low], high=[high], columns=("a",), step=[step])
    assert bounds.step.tolist() == [step]


@pytest.mark.parametrize(
    ("high", "step", "message"),
    [
        (
            10,
            3,
            r"high of b must be a whole number of steps, \(10 - 0\) / 3 is 3\.33.* move low or",
        ),
        (10, 20, "high of b must be"),
        (1, 1 / (1e6 + 1e-6), "high of b must be"),
        (1e300, 1e-300, "high of b must be"),
        (1, -1, r"step of b must be a finite number >= 0, got -1"),
        (1, np.nan, "step of b must be"),
        (1, np.inf, "step of b must be"),
    ],
)
def test_steps_that_lead_nowhere_are_refused(high, step, message):
    with pytest.raises(ConfigError, match=message):
        Bounds(low=[0, 0], high=[1, high], columns=("a", "b"), step=[1, step])
    with pytest.raises(ConfigError, match="step must have 2 values"):
        Bounds(low=[0, 0], high=[1, 1], columns=("a", "b"), step=[1, 1, 1])


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        (FILE, (2, None)),
        ("reward: [0, 1]\n", (0, 0)),
        ("observation: {low: 0, high: [1, 2, 3]}\nreward: [0, 1]\n", (3, 0)),
    ],
)
def test_a_bounds_file_tells_how_many_columns_it_lists(tmp_path, text, widths):
    path = tmp_path / "bounds.yaml"
    path.write_text(text)
    assert check_bounds_file(path) == widths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("observation: {low: [0, 0], high: [1, 2, 3]}\nreward: [0, 1]\n", "list 2 and 3 values"),
        ("observation: {low: [0, 5], high: 4}\nreward: [0, 1]\n", "low is above high for obs"),
        ("observation: {low: 0, high: .inf}\nreward: [0, 1]\n", "leaves observation_0 unbounded"),
        ("reward: {low: 0, high: 1, step: 0.3}\n", "a whole number of steps"),
    ],
)
def test_a_wrong_bounds_file_is_refused_without_the_columns(tmp_path, text, message):
    path = tmp_path / "bounds.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        check_bounds_file(path)
    with pytest.raises(ConfigError, match="there is no such file"):
        check_bounds_file(tmp_path / "other.yaml")
