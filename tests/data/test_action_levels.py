"""Levels of Box actions: the nearest one, there and back, and rows that hold them."""

import re

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import scaling_from_bounds
from distributed_privrl.data.trajectories import Transitions

LEVELS = ActionLevels(((-1.0, 0.1, 1.0), (-2.0, 2.0)))
SPACE = Box(np.array([-1, -2], np.float32), np.array([1, 2], np.float32))


def test_an_action_counts_as_the_nearest_combination() -> None:
    drawn = np.random.default_rng(0).uniform(-3, 3, size=(500, 2)).astype(np.float32)
    apart = np.abs(drawn[:, None, :] - LEVELS.table)
    assert LEVELS.cells(drawn).tolist() == apart.sum(axis=2).argmin(axis=1).tolist()
    every = np.arange(LEVELS.count)
    assert LEVELS.count == 6
    assert LEVELS.cells(LEVELS.values(every)).tolist() == every.tolist()
    assert LEVELS.values(every).dtype == np.float32
    assert all(LEVELS.box.contains(one) for one in LEVELS.table)


def test_an_action_that_is_not_finite_is_none() -> None:
    bad = np.array([[np.nan, 0.0], [0.0, np.inf], [0.0, -1.0], [-np.inf, 0.0]])
    assert LEVELS.cells(bad).tolist() == [-1, -1, 2, -1]


@pytest.mark.parametrize(
    ("levels", "space", "message"),
    [
        ([[0.0, 0.0], [-2.0, 2.0]], SPACE, "action_levels[0] must rise"),
        ([[1.0, 1.0 + 1e-12], [-2.0, 2.0]], SPACE, "must rise"),
        ([[0.0, 1.0], []], SPACE, "action_levels[1] must rise"),
        ([[0.0], [1.0]], SPACE, "2 to 1000 combinations, got 1"),
        ([np.linspace(-1, 1, 40)] * 2, SPACE, "got 1600"),
        ([[0.0, 1.0]], SPACE, "2 columns of actions, got 1"),
        ([[-1.5, 1.0], [0.0]], SPACE, "must lie inside"),
        ([[0.0, 1.0]], Discrete(2), "leave them out"),
    ],
)
def test_levels_that_do_not_fit_are_refused(levels: list, space: Box, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        ActionLevels.of(levels, space)


def encoder() -> TransitionEncoder:
    observations = Box(-1, 1, (1,), dtype=np.float32)
    bounds = Bounds(
        low=[-1, -1, -2, 0],
        high=[1, 1, 2, 10],
        columns=("observation_0", "action_0", "action_1", "reward"),
    )
    scaling = scaling_from_bounds(bounds, observations, SPACE)
    return TransitionEncoder(observations, SPACE, scaling, RowCoding()).with_levels(LEVELS)


def test_rows_hold_levels_one_hot_and_lead_back_to_them() -> None:
    one = TransitionEncoder.from_json(encoder().to_json())
    assert one.to_json() == encoder().to_json()
    assert one.width == 1 + 6 + 1 + 1 + 1
    actions = np.array([[0.2, -1.0], [9.0, 0.5], [np.nan, 0.0]], np.float32)
    zeros = np.zeros(3)
    transitions = Transitions(
        observations=zeros[:, None].astype(np.float32),
        actions=actions,
        rewards=zeros + 4,
        next_observations=zeros[:, None].astype(np.float32),
        terminated=zeros.astype(bool),
        truncated=zeros.astype(bool),
        unit_ids=np.arange(3, dtype=np.uint64),
    )
    encoded = one.encode(transitions)
    assert encoded.valid.tolist() == [True, True, False]
    hot = encoded.rows[:2, one.layout.blocks["action"]]
    assert hot.argmax(axis=1).tolist() == [2, 5]
    assert sorted(set(hot.flatten().tolist())) == [-1.0, 1.0]
    assert not encoded.rows[2].any()
    back = one.decode(encoded.rows[:2])
    assert back.actions.tolist() == LEVELS.values(np.array([2, 5])).tolist()
    np.testing.assert_allclose(back.rewards, 4, rtol=1e-6)
