"""A number that never falls and is told as a change stops before its bound, and not at it."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.headroom import Headroom, headrooms
from distributed_privrl.marginals.outcomes import Outcomes
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import length_starts, time_groups
from tests.marginals.fields import model_of

DAYS, LONGEST = 30, 12


def columns(*, rising: bool, unit: float = 1.0) -> TableColumns:
    """Return columns of visits: a time of up to 30 days, told as a change, and a decision."""
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([DAYS * unit, 1.0]),
        step=np.array([unit, 1.0]),
        columns=("observation_0", "reward"),
    )
    steps = step_columns(
        Box(0, DAYS * unit, (1,)),
        Discrete(2),
        bounds,
        next_observation="difference",
        ends=3,
        rising=(0,) if rising else (),
    )
    return trajectory_columns(steps, groups=time_groups(LONGEST), previous=True, longest=LONGEST)


def model(*, rising: bool = True, unit: float = 1.0) -> TableModel:
    """Return a model in which every gap, and every length, is as likely, whatever the day."""
    return model_of(columns(rising=rising, unit=unit), [100.0] * len(length_starts(LONGEST)))


def room() -> Headroom:
    (found,) = headrooms(model())
    return found


def test_what_would_pass_the_bound_is_not_left() -> None:
    left = room().left(np.array([0.0, 25.0, 30.0]))
    changes = np.arange(DAYS + 1)
    for share, day in zip(left, (0, 25, 30), strict=True):
        np.testing.assert_array_equal(share, (changes <= DAYS - day).astype(float))


def test_sums_of_steps_may_reach_the_bound() -> None:
    """In tenths 2.7 and .3 are a little more than 3."""
    (found,) = headrooms(model(unit=0.1))
    assert 2.7 + 0.1 + 0.1 + 0.1 > 3.0
    assert found.left(np.array([2.7 + 0.1 + 0.1]))[0].tolist() == [1.0, 1.0] + [0.0] * 29
    changes = np.array([0.1])
    assert found.kept(np.array([2.7 + 0.1 + 0.1]), changes, lambda _: np.zeros(1)) == changes


def test_a_number_says_more_than_its_bin() -> None:
    """Of a bin of five days, half of the gaps of three days lead too far; from its end all do."""
    wide = np.zeros((1, 2))
    wide[0] = 1.0, 0.5
    own = room()
    found = Headroom(own.before, own.after, 30.0, np.array([[0.0], [3.0]]), np.ones(2), wide)
    likelier = found.likelihoods(np.zeros(2, np.int64), np.array([26.0, 29.0]))
    np.testing.assert_allclose(likelier, [[1.0, 2.0], [1.0, 0.0]])


def test_whoever_is_at_the_bound_has_nowhere_to_go() -> None:
    """A thirtieth of all gaps is left on the last day; from the middle half of them is."""
    assert room().stuck(np.array([15.0, 29.0, 30.0])).tolist() == [False, True, True]


def test_changes_that_are_too_far_are_drawn_anew_and_others_are_not() -> None:
    asked: list[NDArray[np.int64]] = []

    def again(rows: NDArray[np.int64]) -> NDArray[np.float64]:
        asked.append(rows)
        return np.full(len(rows), 2.0)

    found = room().kept(np.array([10.0, 28.0, 29.5]), np.array([20.0, 5.0, 4.0]), again)
    assert found[:2].tolist() == [20.0, 2.0]
    assert asked[0].tolist() == [1, 2]
    assert all(rows.tolist() == [2] for rows in asked[1:])
    assert 1 < len(asked) < 20, "what has no room at all is cut in the end"


def test_numbers_that_may_fall_are_cut_at_a_bound() -> None:
    assert headrooms(model(rising=False)) == []


def test_trajectories_do_not_pile_up_on_the_last_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaps of up to 30 days in a study of 30: whoever stays long comes often, and soon."""

    def days() -> NDArray[np.float64]:
        drawn = Rollout(model(), LONGEST).draw(2000, np.random.default_rng(1))
        steps = drawn.transitions("trajectory")
        assert (steps.next_observations >= steps.observations).all()
        return np.asarray(steps.observations[:, 0], np.float64)

    found = days()
    assert found.max() <= DAYS
    monkeypatch.setattr(Outcomes, "headrooms", [])
    piled = days()
    assert (found == DAYS).mean() < 0.6 * (piled == DAYS).mean()


def test_nobody_falls_though_no_count_says_so() -> None:
    """Days as they are, of which nothing was counted together: any day may be the next one."""
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([DAYS, 1.0]),
        step=np.ones(2),
        columns=("observation_0", "reward"),
    )
    steps = step_columns(
        Box(0, DAYS, (1,)),
        Discrete(2),
        bounds,
        next_observation="absolute",
        ends=3,
        rising=(0,),
    )
    table = trajectory_columns(steps, groups=time_groups(LONGEST), previous=True, longest=LONGEST)
    drawn = Rollout(model_of(table), LONGEST).draw(2000, np.random.default_rng(1))
    moved = drawn.transitions("trajectory")
    assert (moved.next_observations >= moved.observations).all()
