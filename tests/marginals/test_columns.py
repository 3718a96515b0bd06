"""Columns of a step: what is counted, what a row is as cells, and drawn numbers as transitions."""

import logging
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.marginals.steps import Steps
from distributed_privrl.marginals.workload import workload
from tests.marginals.rows import ACTION, STATE, few_columns, step_bounds, steps_of

ROWS = [(0.0, 0, 0.0, 1.0, False), (3.0, 1, 1.0, 3.0, True), (2.0, 1, 0.0, 0.0, False)]


def test_names_sizes_and_what_is_counted() -> None:
    columns = few_columns()
    names = [column.name for column in columns.columns]
    assert names == ["observation_0", "action", "reward", "next_observation_0", "end"]
    assert columns.sizes == (4, 2, 2, 4, 2)
    assert columns.counted == (4, 2, 2, 0, 2, 0)  # an observation's counts stand for the next one's
    assert columns.histograms == 4
    changes = few_columns(next_observation="difference")
    assert changes.sizes == (4, 2, 2, 7, 2)
    assert changes.histograms == 5
    assert few_columns(ends=1).histograms == 3
    assert columns.of("action", "observation") == (0, 1)


def test_values_beside_cells_are_a_histogram_of_their_own() -> None:
    columns = step_columns(STATE, ACTION, step_bounds(high=999.0), next_observation="absolute")
    assert columns.valued == (0,)
    assert columns[0].counted == columns[0].size + 1000
    assert columns[3].counted == 0
    assert columns.histograms == 5  # cells and values of the observation, and three others
    coded = columns.coded(Steps(steps_of([(731.0, 0, 0.0, 2.0, False)])))
    assert coded.values.tolist() == [[731]]


def test_numbers_of_too_many_values_are_named() -> None:
    """Of prices in cents none comes back by itself, which public facts tell beforehand."""
    assert few_columns().in_ranges() == []
    few = step_columns(STATE, ACTION, step_bounds(high=8191.0), next_observation="absolute")
    assert few.in_ranges() == []
    many = step_columns(STATE, ACTION, step_bounds(high=8192.0), next_observation="absolute")
    assert many.in_ranges() == ["observation_0: 8,193 values, more than 8,192"]
    assert many.in_ranges(["cents"]) == ["cents: 8,193 values, more than 8,192"]


def test_rows_are_cells_by_hand() -> None:
    coded = few_columns().coded(Steps(steps_of(ROWS)))
    assert coded.cells.tolist() == [[0, 0, 0, 1, 0], [3, 1, 1, 3, 1], [2, 1, 0, 0, 0]]
    assert coded.valid.all()
    changes = few_columns(next_observation="difference").coded(Steps(steps_of(ROWS)))
    assert changes.cells[:, 3].tolist() == [4, 3, 1]  # +1, 0 and -2, of -3 .. 3


def test_a_change_is_what_it_is_between_the_bounds() -> None:
    """What lies beyond counts as the bound, before and after: no change leads out of them."""
    rows = steps_of(
        [
            (0.0, 0, 0.0, 9.0, False),
            (-7.0, 0, 0.0, 1.0, False),
            (9.0, 0, 0.0, 50.0, False),
            (1.0, 0, 0.0, np.inf, False),
            (np.nan, 0, 0.0, 1.0, False),
        ]
    )
    for coding, place in (("difference", 3), ("counted", 4)):
        coded = few_columns(next_observation=coding).coded(Steps(rows))
        assert (coded.cells[:3, place] - 3).tolist() == [3, 1, 0]
        assert coded.valid.tolist() == [True, True, True, False, False]


def test_what_never_falls_has_no_cells_for_it() -> None:
    columns = few_columns(next_observation="counted", rising=(0,))
    change = columns[4].cells
    assert change is not None
    assert (change.low, change.high) == (0.0, 3.0)
    fell = columns.coded(Steps(steps_of([(3.0, 0, 0.0, 1.0, False)])))
    assert fell.cells[0, 4] == 0
    assert fell.valid.all()


def test_what_nobody_saw_is_not_followed_and_repeats_its_row_when_drawn() -> None:
    """Of categories and numbers alike; without the declaration all rows are followed."""
    columns = replace(few_columns(ends=3), ends_unseen=True)
    (after,) = columns.of("next_observation")
    cells = columns.coded(Steps(steps_of(ROWS))).cells
    assert columns.followed(cells).tolist() == [True, False, True]
    assert few_columns(ends=3).followed(cells).all()
    assert columns.only_followed((0, after))
    assert not columns.only_followed((0, *columns.of("end")))
    assert not few_columns().only_followed((0, after))
    numbers = [np.array([1.0, 2.0, 3.0])] * len(columns.columns)
    numbers[after] = np.array([3.0, 0.0, 0.0])
    (end,) = columns.of("end")
    numbers[end] = np.array([0.0, 1.0, 2.0])
    for own, reached in ((columns, [3, 2, 0]), (few_columns(ends=3), [3, 0, 0])):
        assert own.transitions(numbers).next_observations[:, 0].tolist() == reached
    bounds = Bounds(low=np.zeros(1), high=np.ones(1), columns=("reward",), step=np.ones(1))
    category = step_columns(Discrete(4), ACTION, bounds, next_observation="absolute", ends=3)
    drawn = replace(category, ends_unseen=True).transitions(numbers)
    assert drawn.next_observations.tolist() == [3, 2, 0]


def test_rows_that_nothing_follows_have_no_next_observations_to_leave_out() -> None:
    columns = replace(few_columns(), ends_unseen=True).without_successors()
    assert not columns.ends_unseen


def test_a_cut_step_is_told_apart_only_where_three_ends_are() -> None:
    rows = replace(steps_of(ROWS), truncated=np.array([True, True, False]))
    assert few_columns().coded(Steps(rows)).cells[:, 4].tolist() == [0, 1, 0]
    assert few_columns(ends=3).coded(Steps(rows)).cells[:, 4].tolist() == [2, 1, 0]


SPACES: dict[str, tuple[Any, Any]] = {
    "boxes": (Box(-5, 5, (2,)), Box(-1, 1, (2,))),
    "categories": (Discrete(6, start=2), Discrete(3, start=1)),
    "several categories": (MultiDiscrete([3, 4], start=[0, 1]), MultiDiscrete([2, 5])),
}


def bounds_of(observation: Any, action: Any) -> Bounds:
    names, low, high, step = [], [], [], []
    for part, space, width in (("observation", observation, 0.5), ("action", action, 0.0)):
        if isinstance(space, Box):
            for place in range(space.shape[0]):
                names.append(f"{part}_{place}")
                low.append(float(space.low[place]))
                high.append(float(space.high[place]))
                step.append(width)
    sides = (np.array([*side, end]) for side, end in ((low, -2.0), (high, 2.0), (step, 0.25)))
    lowest, highest, steps = sides
    return Bounds(low=lowest, high=highest, step=steps, columns=(*names, "reward"))


def rows_within(observation: Any, action: Any, count: int) -> Transitions:
    """Return rows in the spaces, whose numbers with a step are of its grid."""
    source = np.random.default_rng(3)

    def drawn(space: Any) -> Any:
        if isinstance(space, Box):
            return (source.integers(-12, 13, (count, 2)) / 2).clip(space.low, space.high)
        if space.shape:
            return source.integers(space.start, space.start + space.nvec, (count, 2))
        return source.integers(space.start, space.start + space.n, count)

    return Transitions(
        observations=drawn(observation),
        actions=drawn(action),
        rewards=source.integers(-8, 9, count) / 4,
        next_observations=drawn(observation),
        terminated=source.random(count) < 0.3,
        truncated=np.zeros(count, bool),
        unit_ids=np.arange(count),
    )


def atoms_of(columns: TableColumns, rows: Transitions) -> list[Any]:
    """Return the number of each row's cell, where that is one value, or its category."""
    cells = columns.coded(Steps(rows)).cells
    numbers = []
    for place, column in enumerate(columns.columns):
        if column.cells is None:
            numbers.append(cells[:, place].astype(np.float64))
            continue
        low = column.cells.edges[0]
        numbers.append(low[cells[:, place]])
    return numbers


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_rows_come_back_from_their_cells(name: str, coding: Any) -> None:
    """Values of a grid, categories, clipped actions and ends are what they were."""
    observation, action = SPACES[name]
    rows = rows_within(observation, action, 200)
    columns = step_columns(
        observation, action, bounds_of(observation, action), next_observation=coding
    )
    back = columns.transitions(atoms_of(columns, rows))
    np.testing.assert_array_equal(back.observations, rows.observations)
    np.testing.assert_array_equal(back.next_observations, rows.next_observations)
    np.testing.assert_array_equal(back.rewards, rows.rewards)
    np.testing.assert_array_equal(back.terminated, rows.terminated)
    if isinstance(action, Box):
        ends = np.abs(rows.actions) == 1
        assert ends.any()
        np.testing.assert_array_equal(back.actions[ends], rows.actions[ends])
    else:
        np.testing.assert_array_equal(back.actions, rows.actions)
    assert len(np.unique(back.unit_ids)) == 200


def test_what_is_drawn_beyond_the_space_is_clipped_to_it() -> None:
    columns = few_columns(next_observation="difference")
    numbers = [np.array([3.0]), np.array([1.0]), np.array([1.0]), np.array([3.0]), np.array([0.0])]
    back = columns.transitions(numbers)
    assert back.next_observations.tolist() == [[3.0]]  # 3 + 3


BAD: dict[str, tuple[float, int, float, float, bool]] = {
    "no number": (np.nan, 0, 0.0, 1.0, False),
    "endless": (1.0, 0, np.inf, 1.0, False),
    "endless after": (1.0, 0, 0.0, -np.inf, True),
    "both endless": (np.inf, 0, 0.0, np.inf, True),
    "no such action": (1.0, 2, 0.0, 1.0, False),
    "far outside": (1.0, -(2**62), 0.0, 1.0, False),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_malformed_rows_do_not_count_and_leave_no_trace(
    name: str, coding: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    columns = few_columns(next_observation=coding)
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        coded = columns.coded(Steps(steps_of([*ROWS, BAD[name]])))
    assert coded.valid.tolist() == [True, True, True, False]
    alone = columns.coded(Steps(steps_of(ROWS)))
    np.testing.assert_array_equal(coded.cells[:3], alone.cells)
    assert (coded.cells >= 0).all()
    assert (coded.cells < np.array(columns.sizes)).all()
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


def test_a_column_of_one_value_is_refused() -> None:
    with pytest.raises(ConfigError, match="observation_0 has the one value 2"):
        step_columns(STATE, ACTION, step_bounds(low=2.0, high=2.0), next_observation="absolute")


WARDS = TableBox(
    np.array([0, 0, 0, 0, 0], np.float32), np.array([3, 1, 1, 1, 1], np.float32), [(1, 4), (4, 5)]
)
"""A number, a ward of three, and a flag."""


def ward_rows(states: list[list[float]], after: list[list[float]]) -> Transitions:
    return Transitions(
        observations=np.array(states, np.float32),
        actions=np.zeros(len(states), np.int64),
        rewards=np.zeros(len(states), np.float32),
        next_observations=np.array(after, np.float32),
        terminated=np.zeros(len(states), bool),
        truncated=np.zeros(len(states), bool),
        unit_ids=np.arange(len(states)),
    )


@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_a_category_beside_numbers_is_one_column(coding: str) -> None:
    columns = step_columns(WARDS, ACTION, step_bounds(), next_observation=coding)  # type: ignore[arg-type]
    names = ["observation_0", "observation_1", "observation_4"]
    assert [columns[i].name for i in columns.of("observation")] == names
    assert [columns[i].size for i in columns.of("observation")] == [4, 3, 2]
    assert [columns[i].counted for i in columns.of("next_observation")][1:] == [0, 0]
    rows = ward_rows([[2, 0, 0, 1, 1], [0, 1, 0, 0, 0]], [[3, 0, 1, 0, 0], [1, 0, 0, 1, 1]])
    coded = columns.coded(Steps(rows))
    assert coded.valid.all()
    assert coded.cells[:, :3].tolist() == [[2, 2, 1], [0, 0, 0]]
    assert coded.cells[:, list(columns.of("next_observation"))[1:]].tolist() == [[1, 0], [2, 1]]
    numbers = [column.values(rows.observations) * 1.0 for column in columns.columns[:3]]
    numbers += [np.zeros(2), np.zeros(2)]
    change = [1.0, 1.0] if coding == "difference" else [3.0, 1.0]
    numbers += [np.array(change), np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.zeros(2)]
    back = columns.transitions(numbers)
    assert back.observations.tolist() == rows.observations.tolist()
    assert back.next_observations.tolist() == rows.next_observations.tolist()


def test_rows_that_nothing_follows_have_neither_successors_nor_ends() -> None:
    steps = step_columns(WARDS, ACTION, step_bounds(), next_observation="absolute")
    columns = steps.without_successors()
    assert [one.part for one in columns.columns] == [*["observation"] * 3, "action", "reward"]
    numbers = [np.array([2.0]), np.array([2.0]), np.array([1.0]), np.array([1.0]), np.array([0.0])]
    drawn = columns.transitions(numbers)
    assert drawn.observations.tolist() == [[2, 0, 0, 1, 1]]
    assert drawn.next_observations.tolist() == drawn.observations.tolist()
    assert drawn.terminated.all()
    assert not drawn.truncated.any()
    assert all(max(clique) < len(columns) for clique in workload(columns))


@pytest.mark.parametrize("bad", [[0, 0, 0, 0], [1, 0, 1, 0], [np.nan, 0, 0, 1], [0, 1, 0, np.nan]])
def test_a_row_without_its_category_does_not_count(bad: list[float]) -> None:
    columns = step_columns(WARDS, ACTION, step_bounds(), next_observation="absolute")
    rows = ward_rows([[1, 0, 1, 0, 1], [1, *bad]], [[1, 0, 1, 0, 1]] * 2)
    assert columns.coded(Steps(rows)).valid.tolist() == [True, False]
