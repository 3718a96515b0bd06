"""What noisy counts of a column say: masses, bins, and numbers that are drawn from them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.shapes import column_shape, drawn_numbers
from distributed_privrl.marginals.tails import Weight


def number(low: float, high: float, step: float = 0.0) -> Column:
    return Column(name="observation_0", part="observation", cells=NumberCells(low, high, step))


def counted(column: Column, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the counts of a column's cells, and of its values where they are counted."""
    assert column.cells is not None
    cells = np.bincount(column.cells.cells_of(values), minlength=column.size)
    parts = [cells]
    if column.cells.counted_values:
        own = column.cells.values_of(values)
        parts.append(np.bincount(own, minlength=column.cells.counted_values))
    return np.concatenate(parts).astype(np.float64)


def drawn(column: Column, noisy: NDArray[np.float64], count: int = 4000, **about: Any) -> Any:
    shape = column_shape(column, noisy, **({"deviation": 1.0, "most_bins": 12} | about))
    source = np.random.default_rng(0)
    masses = shape.bin_masses if shape.bin_masses.any() else np.ones(shape.size)
    bins = source.choice(shape.size, count, p=masses / masses.sum())
    return drawn_numbers(column, shape, bins, source.random(count)), bins, shape


COLUMNS = [(0.0, 10.0, 0.0), (-3.0, 50.0, 0.0), (0.0, 200.0, 1.0), (0.0, 5000.0, 0.5)]


@pytest.mark.parametrize(("low", "high", "step"), COLUMNS)
@given(seed=st.integers(0, 2**32 - 1), deviation=st.floats(0.5, 500))
@settings(deadline=None, max_examples=15)
def test_numbers_lie_in_their_bins_and_on_the_grid(
    low: float, high: float, step: float, seed: int, deviation: float
) -> None:
    column, source = number(low, high, step), np.random.default_rng(seed)
    assert column.cells is not None
    noisy = counted(column, source.gamma(2.0, high / 9, 3000))
    noisy += np.rint(deviation * source.normal(size=len(noisy)))
    numbers, bins, shape = drawn(column, noisy, 300, deviation=deviation)
    assert shape.size <= 12 + column.cells.atoms.sum()  # those that weigh enough are bins
    assert (shape.masses >= 0).all()
    assert (np.sort(np.unique(shape.bins)) == np.arange(shape.size)).all()
    assert (low <= numbers).all()
    assert (numbers <= high).all()
    np.testing.assert_array_equal(shape.bins[column.cells.cells_of(numbers)], bins)
    if step:
        np.testing.assert_array_equal(low + step * column.cells.values_of(numbers), numbers)


def test_the_distribution_comes_back() -> None:
    column, source = number(0, 10), np.random.default_rng(1)
    values = np.minimum(source.gamma(2.0, 1.2, 50_000), 10)
    numbers, _, _ = drawn(column, counted(column, values), 50_000, deviation=20.0, most_bins=40)
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert np.quantile(numbers, share) == pytest.approx(np.quantile(values, share), abs=0.1)


def test_clipped_values_and_zero_come_back_exactly() -> None:
    column = number(-2, 8)
    values = np.concatenate([np.full(500, -2.0), np.zeros(300), np.full(200, 8.0)])
    numbers, _, _ = drawn(column, counted(column, values))
    assert set(np.unique(numbers)) == {-2.0, 0.0, 8.0}
    assert (numbers == -2).mean() == pytest.approx(0.5, abs=0.05)


def test_values_that_stand_out_of_their_cell_come_back() -> None:
    column = number(0, 4999, 1.0)
    values = np.concatenate([np.full(900, 1234.0), np.random.default_rng(2).integers(0, 5000, 900)])
    numbers, _, _ = drawn(column, counted(column, values))
    assert (numbers == 1234).mean() == pytest.approx(0.5, abs=0.1)


def test_categories_are_bins_and_come_back() -> None:
    column = Column(name="action", part="action", categories=4, start=2)
    shape = column_shape(column, np.array([7.0, -3.0, 0.0, 9.0]), deviation=2.0, most_bins=2)
    assert shape.bins.tolist() == [0, 1, 2, 3]
    assert shape.masses.tolist() == [7, 0, 0, 9]
    numbers = drawn_numbers(column, shape, np.array([3, 0, 3]), np.zeros(3))
    assert numbers.tolist() == [3, 0, 3]


def test_a_category_that_noise_alone_may_have_made_is_not_drawn() -> None:
    column = Column(name="end", part="end", categories=2)
    shape = column_shape(column, np.array([100.0, 5.9]), deviation=2.0, most_bins=2)
    assert shape.masses.tolist() == [100, 0]
    seen = column_shape(column, np.array([100.0, 6.1]), deviation=2.0, most_bins=2)
    assert seen.masses.tolist() == [100, 6.1]


def test_categories_that_stand_out_together_alone_are_kept() -> None:
    column = Column(name="state", part="observation", categories=101)
    noisy = np.append(100.0, np.full(100, 5.0))
    shape = column_shape(column, noisy, deviation=2.0, most_bins=2)
    assert shape.masses[1:] == pytest.approx(5.0)


def test_an_empty_tail_does_not_fill_with_noise() -> None:
    column, source = number(0, 1000), np.random.default_rng(3)
    noisy = counted(column, source.uniform(0, 20, 20_000))
    noisy += 60 * source.normal(size=len(noisy))
    numbers, _, _ = drawn(column, noisy, 20_000, deviation=60.0)
    cut = np.maximum(noisy, 0)
    low = column.cells.edges[0]
    far = cut[low > 40].sum() / cut.sum()
    assert (numbers > 40).mean() < far / 3


def test_more_noise_makes_fewer_bins() -> None:
    column = number(0, 10)
    noisy = counted(column, np.random.default_rng(4).uniform(0, 10, 10_000))
    sizes = [drawn(column, noisy, deviation=one, most_bins=40)[2].size for one in (1.0, 100.0, 1e4)]
    assert sizes[0] > sizes[1] > sizes[2] == 1


def test_many_frequent_values_share_bins_and_a_peak_stays_alone() -> None:
    """With a bin for each of 63 ages, ages before and after a step were too many to count."""
    column = number(18, 80, 1)
    ages = np.random.default_rng(0).integers(19, 80, 12_000)
    ages[:2000] = 65
    noisy = counted(column, np.append(ages, np.full(300, 18)))
    numbers, _, shape = drawn(column, noisy, 12_000, most_bins=20)
    assert (noisy > 100).sum() > 3 * 20
    assert shape.size <= 20 + 2
    peak, least = shape.bins[65 - 18], shape.bins[0]
    assert [(shape.bins == one).sum() for one in (peak, least)] == [1, 1]
    assert np.isin([18, 65], numbers).all()
    found = np.bincount(numbers.astype(np.int64), minlength=81)[18:] / 12_000
    assert np.abs(found - noisy / noisy.sum()).max() < 0.01


def test_symmetric_counts_have_symmetric_masses() -> None:
    """A zero that does not stand out divides nothing: both sides have pieces of their own."""
    column = number(-3, 3)
    low, high = column.cells.edges
    exact = counted(column, np.random.default_rng(0).normal(0, 0.7, 20_000))
    masses = column_shape(column, exact, deviation=3.0, most_bins=48).masses
    above, below = masses[(low >= 0.5)].sum(), masses[(high <= -0.5)].sum()
    assert above == pytest.approx(below, rel=0.05)
    assert masses[low >= 1.5].sum() < 0.1 * above


def test_a_flag_of_which_both_values_are_frequent_is_taken_as_released() -> None:
    column = Column(name="flag", part="observation", cells=NumberCells(0.0, 1.0, 1.0))
    shape = column_shape(column, np.array([500.0, 300.0]), deviation=2.0, most_bins=48)
    assert shape.masses.tolist() == [500, 300]
    assert shape.bins.tolist() == [0, 1]


def test_a_heavy_tail_is_neither_cut_off_nor_made_up() -> None:
    """A few of 4,000 lie far out, in cells that drown in noise one by one."""
    column, source = number(0, 2000, 1.0), np.random.default_rng(6)
    assert column.cells is not None
    low, high = column.cells.edges
    middle, apart = (low + high) / 2, []
    exact = counted(column, np.minimum(np.rint(source.exponential(40, 4000)), 2000))
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=len(exact))
        masses = column_shape(column, exact + 6 * noise, deviation=6.0, most_bins=24).masses
        shares = masses / masses.sum()
        apart.append(np.sqrt(shares @ (middle - shares @ middle) ** 2) / 40)
    assert 0.9 < np.median(apart) < 1.15
    assert min(apart) > 0.7
    assert max(apart) < 1.5


def test_a_range_that_ends_where_numbers_are_dense_has_no_tail_beyond() -> None:
    column, source = number(0, 24, 1.0), np.random.default_rng(7)
    exact = counted(column, source.integers(5, 22, 4000).astype(float))
    noisy = exact + 6 * source.normal(size=len(exact))
    masses = column_shape(column, noisy, deviation=6.0, most_bins=24).masses
    assert masses[:5].sum() + masses[22:].sum() < 0.02 * masses.sum()


def test_a_column_that_noise_hides_is_even() -> None:
    for column in (number(0, 10), Column(name="ward", part="observation", categories=5)):
        noisy = np.full(column.counted, -50.0)
        masses = column_shape(column, noisy, deviation=40.0, most_bins=8).masses
        assert masses.sum() > 0
        assert np.isfinite(masses / masses.sum()).all()
    assert masses.tolist() == [40.0] * 5


def test_values_that_stand_for_themselves_are_atoms() -> None:
    """A third pay nothing, a tenth the most there is; a year later all but a few are one older."""
    column, source = number(0.0, 200.0), np.random.default_rng(6)
    assert column.cells is not None
    costs = np.concatenate([np.zeros(1000), np.full(300, 200.0), source.uniform(1, 199, 1700)])
    _, _, shape = drawn(column, counted(column, costs), deviation=2.0)
    places = np.flatnonzero(shape.atoms(column.cells))
    assert places.tolist() == [0, shape.size - 1]
    _, _, shape = drawn(column, counted(column, source.uniform(0, 200, 3000)), deviation=2.0)
    assert not shape.atoms(column.cells).any()
    column = number(-40.0, 40.0, 1.0)
    assert column.cells is not None
    older = np.concatenate([np.ones(2900), source.integers(-40, 41, 100)])
    _, _, shape = drawn(column, counted(column, older), deviation=2.0)
    (place,) = np.flatnonzero(shape.atoms(column.cells))
    assert column.cells.edges[0][shape.bins == place].tolist() == [1.0]


def test_what_frequent_categories_leave_of_all_rows_is_there() -> None:
    """Eighty rare ones, whose sum is lost in the noise of eighty cells."""
    column = Column(name="moves", part="next_observation", categories=81)
    counts, source = np.append(3700.0, np.full(80, 1.5)), np.random.default_rng(0)
    known = Weight(value=3820.0, deviation=5.0)
    misses: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(30):
        noisy = counts + 13 * source.standard_normal(81)
        for told, found in misses.items():
            total = known if told else None
            shape = column_shape(column, noisy, deviation=13.0, most_bins=24, total=total)
            found.append(abs(shape.masses[1:].sum() - 120))
        nobody = Weight(value=noisy[0] + 20, deviation=5.0)
        shape = column_shape(
            column, np.append(noisy[0], np.zeros(80)), deviation=13.0, most_bins=24, total=nobody
        )
        assert not shape.masses[1:].any()
    assert np.mean(misses[True]) < 35
    assert np.mean(misses[False]) > 70
