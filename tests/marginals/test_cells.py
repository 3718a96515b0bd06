"""Cells of a number: each number lies in one, atoms hold one value, values are of the grid."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.marginals.cells import FEW_VALUES, MOST_VALUES, NumberCells

RANGES = [(0.0, 10.0), (-1.0, 1.0), (-3.7, 250.0), (0.25, 0.75), (-1e6, -1e5), (18.0, 90.0)]
STEPPED = [(0.0, 4.0, 1.0), (-0.5, 0.5, 0.1), (18.0, 250.0, 1.0), (0.0, 9000.0, 0.5)]


@pytest.mark.parametrize(("low", "high"), RANGES)
@given(part=st.floats(0, 1))
def test_each_number_lies_in_one_cell_that_says_so(low: float, high: float, part: float) -> None:
    cells = NumberCells(low, high)
    number = min(max(low + part * (high - low), low), high)
    (cell,) = cells.cells_of(np.array([number]))
    starts, stops = cells.edges
    assert starts[cell] <= number <= stops[cell]
    inside = ~cells.atoms & (starts < number) & (number < stops)
    assert inside.sum() <= 1
    if inside.any():
        assert cell == np.flatnonzero(inside)[0] or cells.atoms[cell]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_intervals_cover_the_range_without_a_gap(low: float, high: float) -> None:
    cells = NumberCells(low, high)
    starts, stops = (side[~cells.atoms] for side in cells.edges)
    assert (starts[0], stops[-1]) == (low, high)
    np.testing.assert_array_equal(starts[1:], stops[:-1])
    assert (stops > starts).all()
    assert cells.widths.sum() == pytest.approx(high - low)


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_ends_and_zero_are_atoms_and_hold_nothing_else(low: float, high: float) -> None:
    cells = NumberCells(low, high)
    atoms = sorted({low, high} | ({0.0} if low < 0 < high else set()))
    np.testing.assert_array_equal(cells.edges[0][cells.atoms], atoms)
    held = cells.cells_of(np.array(atoms))
    assert cells.atoms[held].all()
    beside = [math.nextafter(low, high), math.nextafter(high, low)]
    assert not cells.atoms[cells.cells_of(np.array(beside))].any()
    beyond = cells.cells_of(np.array([low - 1e9, -np.finfo(float).max, high + 1e9]))
    assert beyond.tolist() == [held[0], held[0], held[-1]]


@pytest.mark.parametrize(("low", "high", "step"), STEPPED)
def test_each_value_of_a_grid_lies_in_one_cell_and_each_cell_holds_some(
    low: float, high: float, step: float
) -> None:
    cells = NumberCells(low, high, step)
    values = low + step * np.arange(cells.value_count)
    places = cells.cells_of(values)
    assert (np.diff(places) >= 0).all()
    assert set(places) == set(range(cells.size))
    starts, stops = cells.edges
    assert (starts[places] - 1e-9 <= values).all()
    assert (values <= stops[places] + 1e-9).all()
    assert cells.widths.sum() == pytest.approx(step * cells.value_count)
    nearly = values + 0.4 * step * np.cos(np.arange(len(values)))
    np.testing.assert_array_equal(cells.cells_of(nearly), places)
    np.testing.assert_array_equal(cells.values_of(values), np.arange(cells.value_count))
    assert [cells.first_value(cell) for cell in range(cells.size)] == [
        int(np.flatnonzero(places == cell)[0]) for cell in range(cells.size)
    ]


def test_few_values_have_a_cell_each_and_some_more_are_counted_beside() -> None:
    few = NumberCells(0, FEW_VALUES - 1, 1)
    assert (few.size, few.counted_values, bool(few.atoms.all())) == (FEW_VALUES, 0, True)
    some = NumberCells(0, MOST_VALUES - 1, 1)
    assert some.size < 400 < some.counted_values == MOST_VALUES
    assert NumberCells(0, MOST_VALUES, 1).counted_values == 0
    assert NumberCells(0, 1).counted_values == 0


def test_cells_are_fine_near_zero_and_end_at_round_numbers() -> None:
    cells = NumberCells(0, 100)
    widths = dict(zip(cells.edges[0].round(6).tolist(), cells.widths.tolist(), strict=True))
    assert widths[0.03] == pytest.approx(0.02)
    assert widths[50.0] == pytest.approx(2)
    by_number = dict(zip(cells.edges[0].round(6).tolist(), cells.roundness.tolist(), strict=True))
    assert by_number[50.0] == pytest.approx(math.log10(50))
    assert by_number[50.0] > by_number[40.0] > by_number[42.0] > by_number[0.7]


@pytest.mark.parametrize(
    ("low", "high", "step"), [(1, 1, 0), (2, 1, 0), (0, math.inf, 0), (0, 1, -1), (0, 1, 0.3)]
)
def test_ranges_that_make_no_cells_are_refused(low: float, high: float, step: float) -> None:
    with pytest.raises(ConfigError, match=r"cells need|no whole number"):
        NumberCells(low, high, step)
