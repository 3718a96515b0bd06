"""Levels: what a step knows of a number's past, counted, and kept while trajectories are drawn."""

import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import Gaps
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.levels import (
    WEIGHT,
    changes_so_far,
    levels_so_far,
    updated,
    usual_so_far,
)
from distributed_privrl.marginals.memory import Memory
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import steps_in_time, time_groups
from distributed_privrl.marginals.workload import pair_weight
from distributed_privrl.privacy.units import TRAJECTORY
from tests.marginals.beliefs import believed, steps, transitions, visits

PEOPLE, VISITS = 3000, 8
HIGH = 100.0


def table(
    *, memory: bool = True, gaps: bool = False, rising: bool = False, trades: int = 0
) -> TableColumns:
    """Return columns of a score that may be missing, or rises, with or without its level.

    With ``trades`` they are of one of so many trades instead.
    """
    high = np.ones(trades, np.float32) if trades else np.array([HIGH, 1][: 1 + gaps], np.float32)
    groups = [(0, trades)] if trades else [(1, 2)] if gaps else []
    space = TableBox(np.zeros_like(high), high, groups)
    numbers = 0 if trades else 1
    bounds = Bounds(
        low=np.zeros(numbers),
        high=np.full(numbers, HIGH),
        columns=("observation_0",)[:numbers],
    )
    columns = step_columns(
        space,
        Discrete(1),
        bounds,
        next_observation="counted" if rising else "absolute",
        ends=3,
        rising=[0] if rising else [],
        has_reward=False,
        gaps=Gaps(observation=(0,)) if gaps else Gaps(),
    )
    found = trajectory_columns(
        columns,
        groups=time_groups(VISITS),
        previous=False,
        longest=VISITS,
        memory=[0] if memory else [],
    )
    return replace(found, ends_unseen=True)


def scores(seed: int = 0, *, gaps: bool = False) -> NDArray[np.float64]:
    """Return visits of people with a score of their own, and as much that comes and goes."""
    source = np.random.default_rng(seed)
    own = np.repeat(source.normal(50, 10, PEOPLE), VISITS)
    score = np.clip(own + source.normal(0, 10, len(own)), 0, HIGH)
    if not gaps:
        return score[:, None]
    missing = source.random(len(score)) < 0.5
    return np.stack([np.where(missing, 0, score), missing], axis=1)


def days(seed: int = 0) -> NDArray[np.float64]:
    """Return visits of people who come every other day, or every second week."""
    source = np.random.default_rng(seed)
    often = np.repeat(source.random(PEOPLE) < 0.5, VISITS).reshape(-1, VISITS)
    gaps = np.where(often, source.uniform(1, 3, often.shape), source.uniform(7, 9, often.shape))
    gaps[:, 0] = source.uniform(0, 5, PEOPLE)
    return np.cumsum(gaps, axis=1).reshape(-1, 1)


def trades(seed: int = 0, count: int = 3) -> NDArray[np.float64]:
    """Return visits of people who are of their own trade in seven of ten, else of any."""
    source = np.random.default_rng(seed)
    own = np.repeat(source.integers(0, count, PEOPLE), VISITS)
    found = np.where(source.random(len(own)) < 0.55, own, source.integers(0, count, len(own)))
    return np.eye(count)[found]


def kept(observations: NDArray[Any], lag: int) -> float:
    """Return how scores go together with those so many visits later, where both are there."""
    each = np.asarray(observations, np.float64).reshape(-1, VISITS, observations.shape[-1])
    one, other = each[:, :-lag], each[:, lag:]
    there = np.ones(one.shape[:2], bool)
    if each.shape[2] > 1:
        there = (one[..., 1] == 0) & (other[..., 1] == 0)
    return float(np.corrcoef(one[..., 0][there], other[..., 0][there])[0, 1])


def drawn(columns: TableColumns, rows: NDArray[np.float64], *, count: int = 700) -> Trajectories:
    after = columns[columns.of("next_observation")[-1]].name
    cliques = [("observation_0", after)]
    if columns.of("memory"):
        cliques += [("memory_observation_0", after), ("memory_observation_0", "observation_0")]
    found = believed(columns, steps(visits(rows, VISITS), VISITS), cliques, each=VISITS)
    return Rollout(found.model(), VISITS).draw(count, np.random.default_rng(0))


def test_a_level_is_the_mean_of_the_first_values_and_then_follows_late_ones() -> None:
    numbers = np.array([4.0, 8.0, np.nan, 6.0, 9.0, np.inf, np.nan, 1.0])
    times = np.array([0, 1, 2, 3, 0, 0, 1, 2])
    found = levels_so_far(numbers, times, 0.0, 10.0)
    assert found[:5].tolist() == [4.0, 6.0, 6.0, 6.0, 9.0]
    assert np.isnan(found[5:7]).all()
    assert found[7] == 1.0
    long = levels_so_far(np.arange(20.0), np.arange(20), 0.0, 100.0)
    assert np.allclose(long[:7], np.arange(7) / 2)
    assert long[7] == pytest.approx(3 + (7 - 3) * WEIGHT)
    assert levels_so_far(np.array([-5.0, 99.0]), np.array([0, 1]), 0.0, 10.0).tolist() == [0, 5]
    far = np.arange(1200.0) % 7
    far[600] = np.nan
    found, level = levels_so_far(far, np.arange(1200), 0.0, 9.0), far[0]
    for seen, number in enumerate(far[1:], start=2):
        after = seen - (seen > 601)
        level += 0 if np.isnan(number) else max(1 / after, WEIGHT) * (number - level)
    assert found[-1] == pytest.approx(level), "long trajectories are told in turn"
    assert len(levels_so_far(np.empty(0), np.empty(0, np.int64), 0.0, 1.0)) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updated(np.array([np.nan]), np.zeros(1, np.int64), np.array([np.inf]))


def test_a_level_depends_on_earlier_rows_of_its_own_trajectory_alone() -> None:
    """So neighbouring tables have the same levels everywhere else, whatever somebody's rows are."""
    columns, rows = table(), scores()[: 4 * VISITS]
    (place,) = columns.of("memory")
    before = columns.coded(steps(visits(rows, VISITS), VISITS)).cells[:, place]
    for worst in (np.inf, np.nan, 1e30, -1e30, HIGH):
        other = rows.copy()
        other[VISITS + 3] = worst
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after = columns.coded(steps(visits(other, VISITS), VISITS)).cells[:, place]
        changed = np.flatnonzero(before != after)
        assert set(changed) <= set(range(VISITS + 3, 2 * VISITS))


def test_a_level_is_one_column_more_that_is_known_before_a_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    columns, plain = table(), table(memory=False)
    (place,) = columns.of("memory")
    assert columns[place].name == "memory_observation_0"
    assert columns.histograms == plain.histograms + 1
    assert "1 for levels so far" in columns.in_words
    (after,) = columns.of("next_observation")
    assert pair_weight(columns[after], columns[place]) == 4
    with caplog.at_level(logging.DEBUG):
        bad = transitions([[np.nan], [5.0]], [[5.0], [5.0]], [False, True])
        coded = columns.coded(steps_in_time(bad, np.array([0, 1])))
    assert coded.valid.tolist() == [False, True]
    assert not caplog.records


def test_what_people_keep_a_level_of_their_own_in_is_kept_for_good() -> None:
    """A step that knows the one before alone forgets it."""
    rows = scores()
    found = [_each(drawn(table(memory=one), rows)) for one in (True, False)]
    for lag in (1, 3, 6):
        assert kept(rows, lag) == pytest.approx(0.5, abs=0.03)
        assert kept(found[0], lag) == pytest.approx(0.5, abs=0.1)
    assert kept(found[1], 6) < 0.15


def test_levels_are_kept_through_gaps() -> None:
    rows = scores(gaps=True)
    found = _each(drawn(table(gaps=True), rows))
    forgot = _each(drawn(table(memory=False, gaps=True), rows))
    assert kept(found, 2) == pytest.approx(kept(rows, 2), abs=0.12)
    assert kept(forgot, 2) < 0.3
    assert (found[found[:, 1] == 1][:, 0] == 0).all()


def _each(made: Trajectories) -> NDArray[Any]:
    """Return the states of the steps of trajectories that have as many as all should."""
    whole = made.offsets[:-1][made.lengths == VISITS] + np.flatnonzero(made.lengths == VISITS)
    return made.observations[whole[:, None] + np.arange(VISITS)].reshape(
        -1, made.observations.shape[1]
    )


def test_changes_have_a_level_where_numbers_rise() -> None:
    numbers, times = np.array([4.0, 9.0, 9.0, np.nan, 5.0, 6.0]), np.array([0, 1, 2, 3, 0, 1])
    found = changes_so_far(numbers, times)
    assert found[1:3].tolist() == [5.0, 0.0]
    assert found[5] == 1.0
    assert np.isnan(found[[0, 3, 4]]).all()
    columns = table(rising=True)
    (place,) = columns.of("memory")
    rows = np.array([[10.0], [14.0], [20.0], [400.0]])
    coded = columns.coded(steps(visits(rows, 4), 4))
    cells = columns[place].cells
    assert cells is not None
    assert coded.cells[0, place] == cells.size - 1, "a first row has none"
    wanted = cells.cells_of(np.array([4.0, 5.0, (4 + 6 + 80) / 3]))  # up to the bound, and no more
    assert coded.cells[1:, place].tolist() == wanted.tolist()


def test_who_comes_often_goes_on_to() -> None:
    rows, short = days(), list[float]()
    for memory in (True, False):
        each = np.diff(_each(drawn(table(rising=True, memory=memory), rows)).reshape(-1, VISITS))
        assert (each >= 0).all()
        often = each[:, 0] < 5
        short.append(float((each[often][:, 1:] < 5).mean()))
    assert short[0] > 0.9
    assert short[1] < 0.75


def test_the_usual_category_is_the_one_of_most_rows_and_late_ones_weigh_more() -> None:
    codes = np.array([2, 1, 1, 2, 0, 5, 0, -1, 1, 1])
    times = np.array([0, 1, 2, 3, 0, 1, 2, 0, 1, 2])
    found = usual_so_far(codes, times, 3)
    assert (found // 2).tolist() == [2, 1, 1, 2, 0, -1, 0, -1, 1, 1]
    assert (found[found >= 0] % 2).tolist() == [0, 0, 0, 0, 0, 1, 0, 1], "two alike are sure"
    assert usual_so_far(np.empty(0, np.int64), np.empty(0, np.int64), 3).tolist() == []
    many = np.random.default_rng(0).integers(0, 4, (40_000, 3))
    whole = usual_so_far(many.ravel(), np.tile(np.arange(3), len(many)), 4).reshape(-1, 3)
    for part in (slice(0, 3), slice(16_382, 16_386), slice(39_997, None)):
        rows = usual_so_far(many[part].ravel(), np.tile(np.arange(3), len(many[part])), 4)
        assert (whole[part].ravel() == rows).all(), "trajectories are told apart"
    assert (whole[:, 0] == 2 * many[:, 0]).all()
    twice = many[:, 0] == many[:, 2]
    assert (whole[twice, 2] // 2 == many[twice, 0]).all()


def test_the_trade_that_somebody_has_is_kept() -> None:
    rows, same = trades(), list[float]()
    for found in (
        rows,
        *(_each(drawn(table(trades=3, memory=memory), rows)) for memory in (True, False)),
    ):
        codes = found.argmax(axis=1).reshape(-1, VISITS)
        same.append(float((codes[:, 0] == codes[:, 6]).mean()))
    assert same[1] == pytest.approx(same[0], abs=0.08)
    assert same[2] < same[0] - 0.12


@pytest.mark.parametrize("kind", ["steady", "gaps", "rising", "trades"])
def test_levels_of_drawn_trajectories_are_those_of_their_rows(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a walk looks up is what a count of the released rows would have."""
    gaps, rising = kind == "gaps", kind == "rising"
    columns = table(gaps=gaps, rising=rising, trades=3 * (kind == "trades"))
    seen = list[NDArray[np.int32]]()
    (place,) = columns.of("memory")
    right = Memory.see

    def noted(memory: Memory, numbers: Any, bins: NDArray[np.int32]) -> None:
        right(memory, numbers, bins)
        seen.append(bins[:, place].copy())

    rows = {"rising": days, "trades": trades}.get(kind, lambda: scores(gaps=gaps))()
    found = believed(columns, steps(visits(rows, VISITS), VISITS), [], each=VISITS)
    rollout = Rollout(found.model(), VISITS)
    rollout.draw(10, np.random.default_rng(1))
    monkeypatch.setattr(Memory, "see", noted)
    made = rollout.draw(200, np.random.default_rng(0))
    whole = made.transitions(TRAJECTORY)
    times = np.concatenate([np.arange(length) for length in made.lengths])
    cells = columns.coded(steps_in_time(whole, times)).cells[:, place]
    bins = rollout.model.shapes[place].bins[cells]
    wrong = [float((one != bins[times == time]).mean()) for time, one in enumerate(seen)]
    assert len(wrong) == VISITS
    assert max(wrong) < 0.02  # states are float32
