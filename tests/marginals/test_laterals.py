"""Next observations that go together where a model has no room: drawn by all that is in a row."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.laterals import Laterals, laterals_of, reached_by
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.tables import counts_of
from tests.marginals.fields import SIZES, joint, model_of, some_field
from tests.marginals.rows import ACTION, columns_of

ROWS = 40_000


@pytest.mark.parametrize("hidden", [0, 1])
def test_columns_are_drawn_as_the_field_has_them_given_the_others(hidden: int) -> None:
    """By brute force: (1, 2, 3) given 0, where the last one may be hidden."""
    field = some_field(hidden)
    exact = joint(field)
    exact = exact / exact.sum(axis=(1, 2, 3), keepdims=True)
    rows = np.zeros((ROWS, len(SIZES) - hidden), np.int32)
    rows[:, 0] = np.arange(ROWS) % 2
    sampler = Laterals(field, (3, 1, 2))
    random = np.random.default_rng(0)
    for _ in range(8):
        sampler.sweep(rows, random)
    assert (rows[:, 0] == np.arange(ROWS) % 2).all()
    seen = tuple(range(rows.shape[1]))
    found = counts_of(rows, seen, SIZES) / (ROWS / 2)
    expected = exact.sum(axis=3) if hidden else exact
    np.testing.assert_allclose(found, expected, atol=0.015)


def two_categories() -> TableColumns:
    """Return the columns of steps with two categories of an observation, and what they become."""
    space = TableBox(np.zeros(6, np.float32), np.ones(6, np.float32), ((0, 3), (3, 6)))
    bounds = Bounds(low=np.zeros(1), high=np.ones(1), columns=("reward",), step=np.ones(1))
    steps = step_columns(space, ACTION, bounds, next_observation="absolute", ends=3)
    return trajectory_columns(steps, groups=2, previous=False)


def related() -> TableModel:
    """Return a model in which each category mostly stays, and how both should go together."""
    columns = two_categories()
    model = model_of(columns)
    stays = np.log(0.1 + 0.6 * np.eye(3))
    potentials = dict(model.field.potentials)
    one, other = columns.of("observation")
    for before, after in zip((one, other), columns.of("next_observation"), strict=True):
        potentials[before, after] = stays
    field = Field(model.field.sizes, potentials)
    return replace(model, field=field, laterals={(one, other): np.eye(3) / 3})


def drawn_by(model: TableModel, sampler: Laterals) -> NDArray[np.int32]:
    """Return rows whose first observations go together, and what they lead to."""
    columns, random = model.columns, np.random.default_rng(3)
    rows = random.integers(0, 1, (ROWS, len(columns))).astype(np.int32)
    before, after = columns.of("observation"), columns.of("next_observation")
    rows[:, before[0]] = random.integers(0, 3, ROWS)
    rows[:, before[1]] = rows[:, before[0]]
    for place in after:
        rows[:, place] = random.integers(0, 3, ROWS)
    for _ in range(4):
        sampler.sweep(rows, random)
    return rows


def test_they_go_together_and_each_column_and_what_was_counted_stay() -> None:
    model = related()
    sampler = laterals_of(model)
    assert sampler is not None
    rows = drawn_by(model, sampler)
    columns = model.columns
    before, after = columns.of("observation"), columns.of("next_observation")
    assert (rows[:, after[0]] == rows[:, after[1]]).mean() > 0.9
    for one in after:
        np.testing.assert_allclose(np.bincount(rows[:, one]) / ROWS, 1 / 3, atol=0.03)
    # on rows of the model, whose observations have nothing to do with each other
    crowd = Crowd(model).rows.copy()
    sampler.sweep(crowd, np.random.default_rng(4))
    for one, other in zip(before, after, strict=True):
        assert (crowd[:, one] == crowd[:, other]).mean() == pytest.approx(0.7, abs=0.07)


def test_a_model_that_tells_all_draws_by_itself() -> None:
    assert laterals_of(model_of(columns_of())) is None


def test_what_a_change_leads_to_is_known() -> None:
    """Of a category, that it stays or what it becomes; of a number, the bin that it comes to."""
    space = TableBox(
        np.zeros(11, np.float32), np.append(np.ones(10), 9.0).astype(np.float32), ((0, 10),)
    )
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([9.0, 1.0]),
        columns=("observation_10", "reward"),
        step=np.ones(2),
    )
    steps = step_columns(space, ACTION, bounds, next_observation="counted", ends=3)
    both = trajectory_columns(steps, groups=2, previous=False)
    names = [column.name for column in both.columns]
    unused = frozenset(names.index(f"next_observation_{one}") for one in (0, 10))
    model = model_of(replace(both, unused=unused))
    category, number = reached_by(model)
    assert category.bins.shape == (10, 11)
    assert category.bins[4].tolist() == [4, *range(10)]
    assert number.bins.shape == (10, 19)  # changes of -9 to 9
    assert number.bins[3].tolist() == [0] * 6 + list(range(10)) + [9] * 3
    rows = np.zeros((2, len(both)), np.int32)
    rows[:, names.index("observation_0")] = 4
    rows[:, names.index("change_observation_0")] = [0, 8]
    there = Laterals(model.field, (), (category, number)).led_to(rows)
    assert there[:, names.index("observation_0")].tolist() == [4, 7]


def test_a_change_is_such_that_what_it_leads_to_goes_together() -> None:
    """A number that is a change, beside a category that is as it is: large ones with the last."""
    space = TableBox(
        np.zeros(4, np.float32), np.append(np.ones(3), 9.0).astype(np.float32), ((0, 3),)
    )
    bounds = Bounds(
        low=np.zeros(2),
        high=np.array([9.0, 1.0]),
        columns=("observation_3", "reward"),
        step=np.ones(2),
    )
    steps = step_columns(space, ACTION, bounds, next_observation="difference", ends=3)
    model = model_of(trajectory_columns(steps, groups=2, previous=False))
    kind, number = model.columns.of("observation")
    shares = np.zeros((3, 10))
    for one in range(3):
        shares[one, 3 * one : 3 * one + 4] = 1.0
    sampler = laterals_of(replace(model, laterals={(kind, number): shares / shares.sum()}))
    assert sampler is not None
    rows = Crowd(model).rows.copy()
    inside = [shares[tuple(sampler.led_to(rows)[:, [kind, number]].T)].mean()]
    for _ in range(2):
        sampler.sweep(rows, np.random.default_rng(1))
    inside.append(shares[tuple(sampler.led_to(rows)[:, [kind, number]].T)].mean())
    assert inside[0] < 0.5
    assert inside[1] > 0.85
