"""How a number after a step is told: as it is, or as a change, as released counts say."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.column import STAYS
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.steps import Steps
from distributed_privrl.marginals.workload import workload
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

ROWS, NOISE = 2000, 0.5 * UNIT_WEIGHT


def columns() -> TableColumns:
    low, high = np.array([18.0, 0.0, 0.0]), np.array([90.0, 100.0, 1.0])
    names = ("observation_0", "observation_1", "reward")
    step = np.array([1.0, 0.0, 0.0])
    bounds = Bounds(low=low, high=high, columns=names, step=step)
    return step_columns(Box(0, 100, (2,)), Discrete(2), bounds, next_observation="counted")


def rows() -> Transitions:
    """Return people who grow older by a year, and whose mood forgets itself."""
    source = np.random.default_rng(0)
    age, mood = source.integers(20, 85, ROWS), source.uniform(10, 90, ROWS)
    after = np.stack([age + 1.0, source.uniform(10, 90, ROWS)], axis=1)
    return Transitions(
        observations=np.stack([age, mood], axis=1),
        actions=source.integers(0, 2, ROWS),
        rewards=source.uniform(0, 1, ROWS),
        next_observations=after,
        terminated=np.zeros(ROWS, bool),
        truncated=np.zeros(ROWS, bool),
        unit_ids=np.arange(ROWS),
    )


def noisy_counts(
    table: TableColumns, seed: int, noise: float, counted: Transitions | None = None
) -> np.ndarray:
    coded = table.coded(Steps(rows() if counted is None else counted))
    source = np.random.default_rng(seed)
    parts = []
    for place, column in enumerate(table.columns):
        if not column.counted:
            continue
        counts = [np.bincount(coded.cells[:, place], minlength=column.size)]
        if place in table.valued:
            values = coded.values[:, table.valued.index(place)]
            counts.append(np.bincount(values, minlength=column.counted - column.size))
        parts += counts
    exact = UNIT_WEIGHT * np.concatenate(parts)
    return np.rint(exact + noise * source.standard_normal(len(exact))).astype(np.int64)


def believed(seed: int, noise: float = NOISE) -> TableColumns:
    table = columns()
    belief = Belief(TableFacts(columns=table, seed=seed), joint_deviation=noise, planned=1)
    belief.shape(noisy_counts(table, seed, noise), noise)
    return belief.bins.columns


@pytest.mark.parametrize("noise", [0.5, 80.0])
@pytest.mark.parametrize("seed", range(5))
def test_what_stays_is_told_as_a_change_and_what_forgets_is_not(seed: int, noise: float) -> None:
    """Changes that stand out one by one say so, where the sum of all that are small drowns."""
    found = believed(seed, noise * UNIT_WEIGHT)
    told = [found[place].name for place in found.of("next_observation")]
    assert told == ["next_observation_1", "change_observation_0"]
    assert found.drawn == len(found) - 2
    used = {place for clique in workload(found) for place in clique}
    assert not used & found.unused


def test_noise_alone_is_no_change() -> None:
    found = believed(3, noise=3000.0 * UNIT_WEIGHT)
    told = [found[place].name for place in found.of("next_observation")]
    assert told == ["next_observation_0", "next_observation_1"]


def test_what_is_drawn_is_one_of_both() -> None:
    table = columns()
    numbers = [np.full(3, 30.0), np.full(3, 50.0), np.zeros(3), np.full(3, 0.5)]
    numbers += [np.full(3, 77.0), np.full(3, 20.0), np.full(3, 1.0), np.full(3, -9.0), np.zeros(3)]
    names = [column.name for column in table.columns]
    assert names[4:8] == [
        "next_observation_0",
        "next_observation_1",
        "change_observation_0",
        "change_observation_1",
    ]
    drawn = replace(table, unused=frozenset({4, 7})).transitions(numbers)
    assert drawn.next_observations[0].tolist() == [31.0, 20.0]
    other = replace(table, unused=frozenset({5, 6})).transitions(numbers)
    assert other.next_observations[0].tolist() == [77.0, 41.0]
    numbers[6] = np.full(3, 80.0)
    assert (
        replace(table, unused=frozenset({4, 7})).transitions(numbers).next_observations[0, 0] == 90
    )


def test_a_cut_tail_does_not_make_a_change_small() -> None:
    """Cleaning leaves out what noise hides far out; what is small is told by counts as they are."""
    told = []
    for seed in range(5):
        found = believed(seed, noise=60.0 * UNIT_WEIGHT)
        told += [found[place].name for place in found.of("next_observation")]
    assert "change_observation_1" not in told


DAYS = 400


def gaps_told(median: float, noise: float, *, rising: bool) -> str:
    """Return how a day is told of people who come back after some days, as released counts say."""
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([DAYS, 1.0]),
        step=np.ones(2),
        columns=("observation_0", "reward"),
    )
    table = step_columns(
        Box(0, DAYS, (1,)),
        Discrete(2),
        bounds,
        next_observation="counted",
        rising=(0,) if rising else (),
    )
    source = np.random.default_rng(2)
    day = source.integers(0, DAYS, ROWS).astype(float)
    after = np.minimum(day + np.rint(source.exponential(median / np.log(2), ROWS)), DAYS)
    visits = Transitions(
        observations=day[:, None],
        actions=np.zeros(ROWS, np.int64),
        rewards=np.zeros(ROWS),
        next_observations=after[:, None],
        terminated=np.zeros(ROWS, bool),
        truncated=np.zeros(ROWS, bool),
        unit_ids=np.arange(ROWS),
    )
    belief = Belief(TableFacts(columns=table, seed=0), joint_deviation=noise, planned=1)
    belief.shape(noisy_counts(table, 0, noise, visits), noise)
    found = belief.bins.columns
    (place,) = found.of("next_observation")
    return found[place].name


def test_gaps_are_told_of_what_never_falls_though_they_are_long() -> None:
    """A gap of two months depends on who it is, more than the next visit does on the day."""
    assert gaps_told(60, NOISE, rising=True) == "change_observation_0"
    assert gaps_told(60, NOISE, rising=False) == "next_observation_0"
    hidden = 3000.0 * UNIT_WEIGHT
    assert gaps_told(60, hidden, rising=True) == "next_observation_0"


WARDS = 10


def categories() -> TableColumns:
    """Return columns of two categories of ten values, and one of three, beside each other."""
    ends = (0, WARDS, 2 * WARDS, 2 * WARDS + 3)
    space = TableBox(
        np.zeros(ends[-1], np.float32), np.ones(ends[-1], np.float32), tuple(pairwise(ends))
    )
    bounds = Bounds(low=np.zeros(1), high=np.ones(1), columns=("reward",), step=np.ones(1))
    return step_columns(space, Discrete(2), bounds, next_observation="counted")


def moves(rows: int = ROWS) -> Transitions:
    """Return people who mostly stay in their ward, have a new nurse, and stay in their class."""
    source = np.random.default_rng(1)
    ward, nurse, new = (source.integers(0, WARDS, rows) for _ in range(3))
    moved = np.where(source.random(rows) < 0.05, source.integers(0, WARDS, rows), ward)
    kind = source.integers(0, 3, rows)

    def held(ward: np.ndarray, nurse: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [np.eye(WARDS)[ward], np.eye(WARDS)[nurse], np.eye(3)[kind]], axis=1
        ).astype(np.float32)

    return Transitions(
        observations=held(ward, nurse),
        actions=source.integers(0, 2, rows),
        rewards=source.integers(0, 2, rows).astype(np.float32),
        next_observations=held(moved, new),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        unit_ids=np.arange(rows),
    )


def test_a_category_of_many_values_that_stays_is_told_to_stay() -> None:
    """No pair of a hundred cells has to be counted for it; one that forgets is as it is."""
    table, real = categories(), moves()
    names = [column.name for column in table.columns]
    assert [one for one in names if one.startswith("change")] == [
        "change_observation_0",
        f"change_observation_{WARDS}",
    ]
    coded = table.coded(Steps(real))
    assert coded.valid.all()
    change = table[names.index("change_observation_0")]
    assert change.counted == change.size == WARDS + 1
    told = coded.cells[:, names.index("change_observation_0")]
    before, after = (
        one[:, :WARDS].argmax(axis=1) for one in (real.observations, real.next_observations)
    )
    np.testing.assert_array_equal(told == STAYS, before == after)
    np.testing.assert_array_equal(told[told != STAYS] - 1, after[told != STAYS])
    counts = [
        np.bincount(coded.cells[:, place], minlength=column.size)
        for place, column in enumerate(table.columns)
        if column.counted
    ]
    noise = 5 * UNIT_WEIGHT * np.random.default_rng(0).standard_normal(sum(map(len, counts)))
    noisy = np.rint(UNIT_WEIGHT * np.concatenate(counts) + noise).astype(np.int64)
    belief = Belief(TableFacts(columns=table, seed=0), joint_deviation=5 * UNIT_WEIGHT, planned=1)
    belief.shape(noisy, 5 * UNIT_WEIGHT)
    found = belief.bins.columns
    assert [found[place].name for place in found.of("next_observation")] == [
        f"next_observation_{WARDS}",
        f"next_observation_{2 * WARDS}",
        "change_observation_0",
    ]
    drawn = belief.model().transitions(4000, np.random.default_rng(2))
    here, there = (one[:, :WARDS] for one in (drawn.observations, drawn.next_observations))
    assert (here.sum(axis=1) == 1).all()
    assert (there.sum(axis=1) == 1).all()
    assert (here == there).all(axis=1).mean() == pytest.approx(0.955, abs=0.04)
    moved = there[(here != there).any(axis=1)].mean(axis=0)
    assert moved.max() < 0.35
