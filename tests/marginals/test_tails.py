"""Tails of numbers: as heavy as what is left of all weight, and no heavier."""

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.pieces import number_masses
from distributed_privrl.marginals.tails import Tail, Weight

NOISE = 13.0
CELLS = NumberCells(0, 5000, 0.01)
"""Of money with cents: zero is a value by itself, and there are some sixty further cells."""


def spending(heavy: bool) -> NDArray[np.float64]:
    """Return the exact counts of 5,600 people, 190 of whom spend something."""
    random = np.random.default_rng(3)
    spent = random.exponential(150, 190) if not heavy else 80 * random.pareto(2.0, 190)
    values = np.append(np.round(np.clip(spent, 0.01, 5000), 2), np.zeros(5410))
    return np.bincount(CELLS.cells_of(values), minlength=CELLS.size).astype(float)


def released(
    counts: NDArray[np.float64], seed: int, cells: NumberCells = CELLS, *, known: bool = True
) -> NDArray[np.float64]:
    random = np.random.default_rng(seed)
    total = Weight(value=counts.sum() + random.normal(0, 0.5 * NOISE), deviation=0.5 * NOISE)
    noisy = counts + random.normal(0, NOISE, len(counts))
    return number_masses(cells, noisy, NOISE, total=total if known else None)


def mean(masses: NDArray[np.float64], cells: NumberCells = CELLS) -> float:
    low, high = cells.edges
    return float(masses @ (low + high)) / 2 / float(masses.sum())


@pytest.mark.parametrize("heavy", [False, True])
def test_what_all_columns_weigh_says_how_much_lies_in_a_tail_that_noise_hides(heavy: bool) -> None:
    """Sixty cells add up to a noise of a hundred; what zero leaves of all people has fourteen."""
    counts = spending(heavy)
    assert (counts[1:] < 4 * NOISE).all(), "no cell stands out"
    found = [released(counts, seed) for seed in range(20)]
    weights = [masses[1:].sum() for masses in found]
    assert np.median(weights) == pytest.approx(190, rel=0.1)
    assert min(weights) > 130
    means = np.array([mean(masses) for masses in found])
    assert np.median(means) == pytest.approx(mean(counts), rel=0.35)
    alone = [released(counts, seed, known=False)[1:].sum() for seed in range(20)]
    assert np.std(alone) > 2 * np.std(weights), "its own cells say far less"


def test_nothing_is_made_up_where_nobody_is() -> None:
    counts = np.zeros(CELLS.size)
    counts[0] = 5600
    found = [released(counts, seed) for seed in range(20)]
    assert np.median([masses[1:].sum() for masses in found]) < NOISE
    assert max(masses[1:].sum() for masses in found) < 4 * NOISE


def test_noise_makes_no_single_value_far_out() -> None:
    """Of a hundred values one is above three deviations of noise in every eighth column."""
    cells = NumberCells(0, 100, 1)
    counts = np.zeros(cells.size)
    counts[:4] = [5000, 400, 150, 50]
    far = [released(counts, seed, cells)[20:].max() for seed in range(60)]
    assert sum(one > 3 * NOISE for one in far) <= 2
    counts[100] = 3.5 * NOISE
    ends = [released(counts, seed, cells)[100] for seed in range(20)]
    assert np.median(ends) > 3 * NOISE, "an end of the range needs no more than three"


def test_a_tail_to_the_left_is_the_mirror_of_one_to_the_right() -> None:
    right, left = NumberCells(0, 200), NumberCells(-200, 0)
    numbers = np.minimum(np.random.default_rng(0).exponential(9, 4000), 200)
    counts = np.bincount(right.cells_of(numbers), minlength=right.size).astype(float)
    mirrored = np.bincount(left.cells_of(-numbers), minlength=left.size).astype(float)
    assert right.size == left.size
    noise = np.random.default_rng(1).normal(0, NOISE, right.size)
    total = Weight(value=4000, deviation=5.0)
    one = number_masses(right, counts + noise, NOISE, total=total)
    other = number_masses(left, mirrored + noise[::-1], NOISE, total=total)
    apart = np.cumsum(other[::-1]) - np.cumsum(one)  # runs of equal cost may end elsewhere
    assert np.abs(apart).max() < 10


def test_two_tails_share_what_is_left() -> None:
    cells = NumberCells(-500, 500, 1)
    numbers = np.random.default_rng(0).laplace(0, 20, 6000).round()
    counts = np.bincount(cells.cells_of(numbers), minlength=cells.size).astype(float)
    low, _ = cells.edges
    for seed in range(5):
        masses = released(counts, seed, cells)
        assert masses.sum() == pytest.approx(6000, abs=12 * NOISE)
        for far in (low < -60, low > 60):
            assert masses[far].sum() == pytest.approx(counts[far].sum(), abs=90)


@pytest.mark.parametrize("shape", [0.0, 0.25])
def test_a_tail_that_noise_does_not_hide_is_found_as_it_is(shape: float) -> None:
    low = np.arange(0.0, 300, 5)
    beyond = np.exp(-low / 30) if shape == 0 else (1 + shape * low / 30) ** (-1 / shape)
    exact = 1e6 * -np.diff(np.append(beyond, beyond[-1] * 0.8))
    tail = Tail(low=low, high=low + 5, noisy=exact, deviation=300.0)
    found = tail.masses(None)
    assert found.sum() == pytest.approx(exact.sum(), rel=0.02)
    assert abs(found - exact).sum() < 0.06 * exact.sum()


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_plateau_at_an_end_stays_even_and_a_fall_goes_on_falling(mirrored: bool) -> None:
    """Wide outermost pieces of both were a tail once, and the plateau fell off as well."""
    cells = NumberCells(0, 119, 1)

    def found(exact: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
        noisy = np.concatenate([exact, np.zeros(cells.size - len(exact))])
        noisy += np.random.default_rng(seed).normal(0, NOISE, cells.size)
        total = Weight(value=float(exact.sum()), deviation=NOISE)
        if not mirrored:
            return number_masses(cells, noisy, NOISE, total=total)
        return number_masses(cells, noisy[::-1], NOISE, total=total)[::-1]

    plateau = np.repeat([200.0, 60.0], [40, 40])
    fall = np.append(np.full(40, 200.0), 200 * np.exp(-np.arange(60) / 12))
    for seed in range(5):
        even = found(plateau, seed)
        assert even[70:80].mean() == pytest.approx(60, abs=10)
        assert even[90:].mean() < 3
        falling = found(fall, seed)
        assert falling[40:46].mean() > 1.5 * falling[52:58].mean() > 3 * falling[70:80].mean()


def test_a_cell_of_noise_far_out_is_not_the_end_of_a_body() -> None:
    """Of some thousand empty runs of cells one has four deviations of noise, and more."""
    cells = NumberCells(-60, 1440, 1)
    random = np.random.default_rng(5)
    delays = np.append(random.normal(-4, 10, 2600), random.exponential(45, 1400))
    counts = np.bincount(cells.cells_of(np.clip(np.rint(delays), -60, 1440)), minlength=cells.size)
    low = cells.edges[0]

    def far(deviations: float, seed: int) -> float:
        noisy = counts + np.random.default_rng(seed).normal(0, NOISE, cells.size)
        noisy[low == 600] = deviations * NOISE
        masses = number_masses(cells, noisy, NOISE, total=Weight(value=4000, deviation=6))
        return float(masses[low >= 400].sum()) / NOISE

    assert max(far(4.5, seed) for seed in range(10)) < 1
    assert min(far(7.0, seed) for seed in range(10)) > 6, "so many people are no noise"


def test_a_value_that_noise_made_is_not_the_middle_of_a_column_that_noise_hides() -> None:
    """As years of 595 people came out once: no cell shows anything, and nineteen together do."""
    cells = NumberCells(0, 55, 1)
    low = cells.edges[0]
    noisy = np.select([low < 19, low < 32], [0.85 * NOISE, -0.7 * NOISE], 0.57 * NOISE)
    noisy[low == 49] = 4.2 * NOISE
    masses = number_masses(cells, noisy, NOISE, total=Weight(value=23 * NOISE, deviation=5 * NOISE))
    assert masses[low < 19].sum() > 0.4 * masses.sum()


def test_tails_on_both_sides_of_a_value_begin_at_it() -> None:
    """Of ages nine in ten are a year more next year; the others are not sixty years less."""
    cells = NumberCells(-59, 59, 1)
    counts = np.zeros(cells.size)
    low = cells.edges[0]
    counts[low == 1] = 22 * NOISE
    counts[(low == 0) | (low == 2)] = 1.5 * NOISE
    far = []
    for seed in range(20):
        masses = released(counts, seed, cells)
        far.append(masses[np.abs(low - 1) > 15].sum() / masses.sum())
    assert np.median(far) < 0.03
    assert max(far) < 0.1
