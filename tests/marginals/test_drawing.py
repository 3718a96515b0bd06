"""Rows drawn from a table's model: numbers of counted columns go together inside their bins."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel, couplings
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.step_tables import step_columns

BINS, COUNT = 3, 30_000


def table() -> TableColumns:
    bounds = Bounds(
        low=np.array([0.0, 0.0, 0.0]),
        high=np.array([10.0, 10.0, 1.0]),
        step=np.array([0.0, 0.0, 1.0]),
        columns=("observation_0", "observation_1", "reward"),
    )
    return step_columns(Box(0, 10, (2,)), Discrete(2), bounds, next_observation="absolute", ends=1)


def model(correlated: bool) -> TableModel:
    """Return a model of two numbers in three wide bins each, which go together or do not."""
    columns = table()
    shapes = []
    for column in columns.columns:
        size = column.size
        wide = column.cells is not None and not column.cells.step
        bins = np.arange(size) * BINS // size if wide else np.arange(size)
        widths = column.cells.widths if wide and column.cells is not None else np.ones(size)
        shapes.append(ColumnShape(widths, bins, widths, 1.0, np.empty(0)))
    sizes = tuple(shape.size for shape in shapes)
    joint = np.full((BINS, BINS), 1.0) + (6 * np.eye(BINS) if correlated else 0)
    field = Field(sizes, {(0, 1): np.log(joint)})
    rows = np.zeros((COUNT, len(columns)), np.int32)
    Drawer(field).fill(rows, np.random.default_rng(1))
    together = couplings(columns, sizes, [(0, 1)], rows)
    return TableModel(columns, tuple(shapes), together, field, np.empty(0))


def inside(made: TableModel) -> float:
    """Return the correlation of two numbers within the middle bins of both."""
    rows = np.ones((COUNT, len(made.columns)), np.int32)
    numbers = made.numbers(rows, np.random.default_rng(2))
    return float(np.corrcoef(numbers[0], numbers[1])[0, 1])


def test_numbers_follow_each_other_inside_bins_as_bins_do() -> None:
    assert inside(model(correlated=True)) > 0.25
    assert abs(inside(model(correlated=False))) < 0.03
    assert model(correlated=False).couplings == {}
    ((place, coupling),) = model(correlated=True).couplings.items()
    assert (place, coupling.leader) == (1, 0)


def test_coupling_leaves_each_number_as_it_is() -> None:
    spread = []
    for correlated in (True, False):
        rows = np.ones((COUNT, 6), np.int32)
        numbers = model(correlated).numbers(rows, np.random.default_rng(3))
        spread.append(np.quantile(numbers[1], [0.1, 0.5, 0.9]))
    assert spread[0] == pytest.approx(spread[1], rel=0.03)


def test_columns_that_are_not_asked_for_are_empty() -> None:
    made = model(correlated=True)
    rows = np.zeros((10, len(made.columns)), np.int32)
    numbers = made.numbers(rows, np.random.default_rng(0), places=[1, 2])
    assert [len(one) for one in numbers] == [0, 10, 10, 0, 0, 0]


def test_known_places_in_bins_are_followed() -> None:
    made = model(correlated=True)
    rows = np.ones((COUNT, len(made.columns)), np.int32)
    found = []
    for known in (-2.0, 2.0):
        scores = np.zeros(rows.shape)
        scores[:, 0] = known
        numbers = made.numbers(rows, np.random.default_rng(0), places=[1], scores=scores)
        found.append(numbers[1].mean())
    assert found[1] > found[0] + 0.5


def test_transitions_are_of_the_spaces_and_the_same_for_the_same_source() -> None:
    made = model(correlated=True)
    one, other = (made.transitions(200, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(one.observations, other.observations)
    assert one.observations.dtype == np.float32
    assert one.observations.min() >= 0
    assert one.observations.max() <= 10
    assert set(one.actions.tolist()) == {0, 1}
    assert set(one.rewards.tolist()) == {0.0, 1.0}
    assert not one.terminated.any()
    assert len(np.unique(one.unit_ids)) == 200
