"""Rows of the adjusted ones: each once, or as often as there are rows of such units."""

import numpy as np
import pytest

from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.methods.privsyn.model import Marginals
from tests.marginals.rows import few_columns

COUNT = 4000


def marginals(columns: TableColumns, *, units: tuple[float, ...] = ()) -> Marginals:
    """Return marginals of unrelated columns but of an action that follows from the state."""
    sizes, shapes = columns.sizes, list[ColumnShape]()
    singles = [np.ones(size) / size for size in sizes]
    if units:
        singles[-1] = np.array(units)
    for size, one in zip(sizes, singles, strict=True):
        shapes.append(ColumnShape(one, np.arange(size), one, 0.1, np.empty(0)))
    pair = np.array([[1.0, 0], [1, 0], [0, 1], [0, 1]]) / 4
    return Marginals(columns, tuple(shapes), singles, {(0, 1): pair})


def test_each_row_is_handed_out_once_before_any_is_again() -> None:
    random = np.random.default_rng(0)
    pool = marginals(few_columns()).pool(COUNT, iterations=30, streams=Streams(1))
    first, rest = pool.transitions(COUNT // 3, random), pool.transitions(COUNT - COUNT // 3, random)
    again = pool.transitions(COUNT, random)
    states = np.concatenate([first.observations, rest.observations])[:, 0]
    for found in (states, again.observations[:, 0]):
        np.testing.assert_array_equal(
            np.bincount(found.astype(int)), np.bincount(states.astype(int))
        )
        assert np.abs(np.bincount(found.astype(int)) / COUNT - 0.25).max() < 0.02
    follows = (first.observations[:, 0] >= 2) == (first.actions == 1)
    assert follows.mean() > 0.98


def test_rows_of_large_units_come_as_often_as_there_are_such_rows() -> None:
    """A unit of the second class has some two rows that weigh one together."""
    columns = few_columns().with_unit_sizes(UnitSizes(1, 4))
    sizes = columns.unit_sizes
    assert sizes is not None
    assert sizes.count == 3
    given = (0.5, 0.3, 0.2)
    pool = marginals(columns, units=given).pool(COUNT, iterations=5, streams=Streams(1))
    drawn = pool._rows[-1][pool._again()]
    expected = np.array(given) * sizes.rows
    found = np.bincount(drawn, minlength=3) / COUNT
    assert found == pytest.approx(expected / expected.sum(), abs=0.03)
