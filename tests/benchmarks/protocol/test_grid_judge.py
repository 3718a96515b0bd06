from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from benchmarks.protocol import starts
from benchmarks.protocol.grid_judge import GridSettings, judge, solve
from benchmarks.protocol.rows import Rows
from benchmarks.protocol.starts import references, rewards_from, stratified_starts
from distributed_privrl.collection.runs import planner_runs
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import MAZES

OPEN = MAZES["open"]
ONE = GridSettings(shifts=(0.0,))


@pytest.fixture(scope="module")
def recorded() -> Rows:
    runs = next(
        planner_runs(
            OPEN, dense=False, steps=40_000, steps_per_run=150, noise=0.5, streams=Streams(3)
        )
    )
    starts = np.arange(len(runs.rewards)) + np.arange(len(runs.offsets) - 1).repeat(
        np.diff(runs.offsets)
    )
    return Rows(
        observations=runs.observations[starts],
        actions=runs.actions,
        rewards=runs.rewards,
        next_observations=runs.observations[starts + 1],
    )


def _corridor(rewarded: float) -> Rows:
    """Cells 0, 1, 2 along x: right moves on and left moves back; 2 and 0 reward arrival."""
    here = np.array([0.5, 0.5, 1.5, 1.5, 2.5, 2.5])
    force = np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    there = np.array([0.5, 1.5, 0.5, 2.5, 1.5, 2.5])
    wide = np.zeros((6, 4), np.float32)
    there_rows = wide.copy()
    wide[:, 0], there_rows[:, 0] = here, there
    return Rows(
        observations=wide,
        actions=np.stack([force, np.zeros(6)], axis=1).astype(np.float32),
        rewards=np.where(there == 2.5, 1.0, np.where(there == 0.5, rewarded, 0.0)).astype("f4"),
        next_observations=there_rows,
    )


@pytest.mark.parametrize(("rewarded", "middle"), [(0.0, 1.0), (0.99, 1.0), (1.5, -1.0)])
def test_values_and_forces_are_those_of_the_rows_model(rewarded: float, middle: float) -> None:
    settings = replace(ONE, position=1.0, discount=0.5, tolerance=1e-9)
    found = solve(_corridor(rewarded), settings)
    assert found.states[:, 0].tolist() == [0, 1, 2]
    right = 1 / (1 - 0.5)
    left = rewarded / (1 - 0.5)
    value = max(right, left)
    np.testing.assert_allclose(found.values[1], value, atol=1e-6)
    assert found.forces[1].tolist() == [middle, 0.0]


def test_a_state_that_no_row_has_acts_like_the_nearest() -> None:
    policy = solve(_corridor(0.0), replace(ONE, position=1.0)).policy()
    assert policy((1.5, 0.0, 0.0, 0.0)) == policy((1.5, 3.0, 0.0, 0.0)) == [1.0, 0.0]


def test_pairs_with_too_few_rows_do_not_count() -> None:
    with pytest.raises(ConfigError, match="has 2 rows: widen the grid"):
        solve(_corridor(0.0), replace(ONE, position=1.0, fewest=2))


def test_the_judge_is_the_same_twice_and_tells_real_rows_from_shuffled_ones(
    recorded: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "stratified_starts", partial(stratified_starts, count=60))
    monkeypatch.setattr(starts, "references", cache(references.__wrapped__))
    mean, shifts = judge(recorded, OPEN, ONE)
    assert (mean, shifts) == judge(recorded, OPEN, ONE)
    order = np.random.default_rng(0).permutation(len(recorded))
    mixed, _ = judge(replace(recorded, actions=recorded.actions[order]), OPEN, ONE)
    assert mean.normalised > mixed.normalised + 20
    assert mean.reach > 0.9


def test_starts_are_the_same_and_take_turns_among_free_cells() -> None:
    found = stratified_starts(OPEN, 45)
    np.testing.assert_array_equal(found, stratified_starts(OPEN, 45))
    cells = [OPEN.cell(x, y) for x, y in found[:, :2].tolist()]
    assert [cells.count(cell) for cell in OPEN.free_cells] == [3] * 15


def test_references_are_in_order_and_returns_are_exact() -> None:
    low, high = references(OPEN)
    assert 0 <= low < high < OPEN.time_limit
    two = stratified_starts(OPEN, 2)
    twice = [rewards_from(lambda state: [1.0, 0.0], OPEN, two) for _ in range(2)]
    np.testing.assert_array_equal(twice[0], twice[1])
    assert twice[0].shape == (2, OPEN.time_limit)
