"""One clipped vector a unit, and what noisy sums of them say."""

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st

from distributed_privrl.core.random import Streams
from distributed_privrl.environments.tabular import policy_value
from distributed_privrl.evaluation.off_policy.released import ReleasedModels, UnitFigures
from distributed_privrl.methods.policy_value.sums import (
    NUMBERS,
    STEPS,
    UNIT_L1,
    release_of_sums,
    unit_integers,
    value_of,
)
from distributed_privrl.privacy.units import Relation
from tests.worlds.grid import problem
from tests.worlds.judged import HORIZON, RETURNS, stays

ANY = st.floats(allow_nan=True, allow_infinity=True)


@given(value=ANY, earned=ANY)
def test_no_figures_move_the_sums_by_more_than_is_charged(value: float, earned: float) -> None:
    found = unit_integers(UnitFigures(value, earned), RETURNS)
    assert found.shape == (NUMBERS,)
    assert np.abs(found).sum() <= UNIT_L1


def test_the_sensitivity_is_reached() -> None:
    worst = unit_integers(UnitFigures(1e300, -1e300), RETURNS)
    assert np.abs(worst).sum() == UNIT_L1
    other = unit_integers(UnitFigures(-1e300, 1e300), RETURNS)
    apart = np.abs(worst - other).sum()
    assert apart <= release_of_sums(1.0, Relation.REPLACE_ONE).sensitivity == 2 * UNIT_L1


def test_exact_sums_say_what_went_in() -> None:
    source = np.random.default_rng(0)
    values, earned = source.uniform(0, 1, (2, 500))
    sums = sum(
        unit_integers(UnitFigures(*pair), RETURNS).astype(float)
        for pair in zip(values, earned, strict=True)
    )
    found = value_of(sums, units=500, returns=RETURNS, deviation=0.0)
    assert found.policy == pytest.approx(values.mean(), abs=1e-5)
    assert found.acted == pytest.approx(earned.mean(), abs=1e-5)
    assert found.policy_error == pytest.approx(values.std() / np.sqrt(500), rel=1e-3)
    assert found.gain_error == pytest.approx((values - earned).std() / np.sqrt(500), rel=1e-3)


def test_errors_hold_the_noise() -> None:
    release = release_of_sums(0.5, Relation.ADD_OR_REMOVE)
    source = np.random.default_rng(1)
    units, truth = 400, np.array([0.2, -0.1, -0.2, -0.4]) * 400 * STEPS
    drawn = [
        value_of(
            truth + source.laplace(scale=release.scale, size=NUMBERS),
            units=units,
            returns=RETURNS,
            deviation=np.sqrt(2) * release.scale,
        )
        for _ in range(2000)
    ]
    spread = np.std([one.policy for one in drawn])
    assert drawn[0].noise_error == pytest.approx(spread, rel=0.1)
    assert all(one.policy_error >= one.noise_error for one in drawn)


def test_estimates_are_near_the_exact_value() -> None:
    mdp = problem()
    policy = np.eye(mdp.actions)[np.arange(mdp.states) % mdp.actions]
    policy = 0.7 * mdp.behaviour[0] + 0.3 * policy
    rows = stays(5, patients=2000)
    models = ReleasedModels.fit(
        stays(6, patients=2000).transitions("trajectory"),
        lambda states: policy[states],
        observation_space=Discrete(mdp.states),
        action_space=Discrete(mdp.actions),
        horizon=HORIZON,
        streams=Streams(0),
    )
    found = [models.figures(one, lambda states: policy[states]) for one in rows.by_unit()]
    truth = policy_value(mdp, policy[None], horizon=HORIZON)
    values = np.array([one.value for one in found])
    assert values.mean() == pytest.approx(truth, abs=4 * values.std() / np.sqrt(len(values)))
    acted = policy_value(mdp, mdp.behaviour, horizon=HORIZON)
    earned = np.array([one.earned for one in found])
    assert earned.mean() == pytest.approx(acted, abs=4 * earned.std() / np.sqrt(len(earned)))


def test_units_come_one_by_one_with_their_trajectories() -> None:
    rows = stays(7, patients=5)
    found = list(rows.by_unit())
    assert [int(one.unit_ids[0]) for one in found] == [0, 1, 2, 3, 4]
    for place, one in enumerate(found):
        same = rows.select(np.flatnonzero(rows.unit_ids == place))
        for name in ("observations", "actions", "rewards", "offsets", "unit_ids"):
            np.testing.assert_array_equal(getattr(one, name), getattr(same, name))
    assert not list(rows.select([]).by_unit())
