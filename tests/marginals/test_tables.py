"""Joint counts, and rows weighted until they agree with them."""

import numpy as np
import pytest

from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.shapes import column_shape
from distributed_privrl.marginals.tables import (
    CUTS,
    Margin,
    block_maps,
    blocks,
    counts_of,
    local_correlation,
    parts_of,
    raked,
)
from distributed_privrl.marginals.tails import Weight


def test_weighted_rows_are_counted_by_hand() -> None:
    rows = np.array([[0, 2, 1], [1, 0, 1], [0, 2, 0]], np.int32)
    assert counts_of(rows, (0, 1), (2, 3, 2)).tolist() == [[0, 0, 2], [1, 0, 0]]
    weighted = counts_of(rows, (1, 2), (2, 3, 2), np.array([0.5, 2.0, 4.0]))
    assert weighted.tolist() == [[0, 2], [0, 0], [4, 0.5]]


def test_rows_are_weighted_until_they_agree() -> None:
    source = np.random.default_rng(2)
    sizes = (3, 4, 2)
    rows = np.stack([source.integers(0, size, 4000) for size in sizes], axis=1).astype(np.int32)
    whole = source.dirichlet(np.ones(24)).reshape(sizes)
    tables = {(0, 1): 900 * whole.sum(axis=2), (1, 2): 900 * whole.sum(axis=0)}
    weights = raked(rows, np.full(4000, 1 / 4000), tables, sizes)
    assert weights.sum() == pytest.approx(1)
    for clique, table in tables.items():
        np.testing.assert_allclose(900 * counts_of(rows, clique, sizes, weights), table, rtol=1e-3)


def test_cells_that_no_row_reaches_do_no_harm() -> None:
    rows = np.array([[0, 0], [1, 1]], np.int32)
    table = np.array([[10.0, 70.0], [0.0, 30.0]])
    weights = raked(rows, np.full(2, 0.5), {(0, 1): table}, (2, 2))
    assert weights.tolist() == pytest.approx([0.25, 0.75])
    nothing = raked(rows, np.full(2, 0.5), {(0, 1): np.array([[0.0, 9.0], [9.0, 0.0]])}, (2, 2))
    assert nothing.tolist() == [0.5, 0.5]


def test_correlation_of_a_table_has_its_sign_and_size() -> None:
    source = np.random.default_rng(3)
    first = source.normal(size=200_000)
    edges = np.linspace(-2, 2, 7)
    for correlation in (-0.7, 0.0, 0.7):
        second = correlation * first + np.sqrt(1 - correlation**2) * source.normal(size=200_000)
        rows = np.stack([np.digitize(first, edges), np.digitize(second, edges)], axis=1)
        found = local_correlation(counts_of(rows, (0, 1), (8, 8)))
        assert found.shape == (8, 8)
        assert np.abs(found[3:5, 3:5] - correlation).max() < 0.1


def test_weights_that_have_all_but_vanished_stay_numbers() -> None:
    """Rows of a cell that weighs next to nothing do not come back as infinitely many."""
    rows = np.array([[0], [1], [1]], np.int32)
    weights = raked(rows, np.array([1.0, 1e-310, 1e-310]), {(0,): np.array([1.0, 1.0])}, (2,))
    assert np.isfinite(weights).all()
    assert weights.sum() == pytest.approx(1)
    assert weights[0] > 0.99


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize(("masses", "varies"), [((90, 5, 7, 6), True), ((90, 5, 2, 3), False)])
def test_a_part_that_no_bin_shows_makes_a_column_vary(
    masses: tuple[int, ...], varies: bool, ordered: bool
) -> None:
    """Beside one frequent bin, 18 in three of deviation 4 stand out together, and 10 do not."""
    margin = Margin(np.array(masses, float), np.full(4, 4.0))
    assert margin.varies(2.0, ordered=ordered) == varies


@pytest.mark.parametrize("ordered", [False, True])
def test_bins_that_stand_out_make_a_column_vary(ordered: bool) -> None:
    deviations = np.array([4.0, 4.0])
    assert Margin(np.array([30.0, 30.0]), deviations).varies(2.0, ordered=ordered)
    assert not Margin(np.array([3.0, 3.0]), deviations).varies(2.0, ordered=ordered)
    assert not Margin(np.array([60.0]), deviations[:1]).varies(2.0, ordered=ordered)


def test_halves_of_a_number_that_stand_out_make_it_vary() -> None:
    """Of six bins of 7 none stands out by two deviations of 4; halves of 21 with one of 6.9 do."""
    margin = Margin(np.full(6, 7.0), np.full(6, 4.0))
    assert margin.varies(2.0, ordered=True)
    assert not margin.varies(2.0, ordered=False), "categories have no halves"
    thin = Margin(np.array([60.0, 1.0, 1.0, 2.0]), np.full(4, 4.0))
    assert not thin.varies(2.0, ordered=True), "noise may have made all that lies in one half"


@pytest.mark.parametrize(("dated", "found"), [(318, range(15, 21)), (0, range(4))])
def test_dates_that_most_people_lack_may_be_counted_with_others(dated: int, found: range) -> None:
    """Of 1,629 people 318 have a day in ten years; a day of nobody is the first one."""
    cells, source = NumberCells(0, 3650, 1), np.random.default_rng(4)
    column = Column(name="died_on", part="observation", cells=cells)
    days = source.integers(1, 3650, dated).astype(float)
    counts = np.bincount(cells.cells_of(days), minlength=cells.size).astype(float)
    counts[0] += 1629 - dated
    seen = 0
    for _ in range(20):
        noisy = source.normal(0, 9.6, cells.size + cells.counted_values)
        noisy[: cells.size] += counts
        total = Weight(value=source.normal(1629, 4.8), deviation=4.8)
        shape = column_shape(column, noisy, deviation=9.6, most_bins=32, total=total)
        _, joined = shape.bin_counts
        seen += Margin(shape.bin_masses, 9.6 * np.sqrt(joined)).varies(2.0, ordered=True)
    assert seen in found, "by two deviations one constant column in 40 varies"


@pytest.mark.parametrize("parts", CUTS)
def test_each_bin_is_in_one_part_and_each_part_has_a_bin(parts: int) -> None:
    """A part that was left out would have the next one's bins added up twice: who lies there would
    count twice."""
    source = np.random.default_rng(parts)
    for _ in range(300):
        size = int(source.integers(1, 30))
        weights = source.gamma(0.2, 100.0, size) * (source.random(size) < 0.7)
        atoms = source.random(size) < source.choice([0.0, 0.3])
        own = parts_of(weights - source.choice([0.0, 5.0]), parts, atoms)
        assert own[0] == 0
        assert set(np.diff(own)) <= {0, 1}
        table = source.integers(0, 2**40, (size, 3))
        found = blocks(table, (own, np.arange(3)))
        for column in range(3):
            np.testing.assert_array_equal(
                found[:, column], [table[own == one, column].sum() for one in range(own[-1] + 1)]
            )
        for maps in block_maps(table.shape, [True, False]):
            assert blocks(table, maps).sum() == table.sum()
