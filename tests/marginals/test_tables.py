"""Joint counts without their noise, and rows weighted until they agree with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from distributed_privrl.marginals.tables import (
    Margin,
    cleaned,
    counts_of,
    local_correlation,
    raked,
)


def test_weighted_rows_are_counted_by_hand() -> None:
    rows = np.array([[0, 2, 1], [1, 0, 1], [0, 2, 0]], np.int32)
    assert counts_of(rows, (0, 1), (2, 3, 2)).tolist() == [[0, 0, 2], [1, 0, 0]]
    weighted = counts_of(rows, (1, 2), (2, 3, 2), np.array([0.5, 2.0, 4.0]))
    assert weighted.tolist() == [[0, 2], [0, 0], [4, 0.5]]


def clean(
    noisy: NDArray[np.float64],
    deviation: float,
    truth: NDArray[np.float64],
    *,
    ordered: bool = True,
) -> NDArray[np.float64]:
    """Clean a table whose margins are known well, and of which nothing else is expected."""
    total = float(truth.sum())
    sums = [truth.sum(axis=1), truth.sum(axis=0)]
    return cleaned(
        noisy,
        deviation,
        total=total,
        expected=np.outer(*sums) / total,
        margins=[Margin(one, np.full(len(one), deviation)) for one in sums],
        ordered=[ordered, ordered],
    )


@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 17)),
    deviation=st.floats(0.1, 1e4),
    ordered=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_totals_are_kept_and_nothing_is_negative(
    seed: int, shape: tuple[int, int], deviation: float, ordered: bool
) -> None:
    source = np.random.default_rng(seed)
    truth = source.gamma(0.3, 100.0, shape) + 1e-3
    found = clean(truth + deviation * source.normal(size=shape), deviation, truth, ordered=ordered)
    assert found.shape == shape
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(truth.sum())


def test_a_diagonal_is_nearer_to_the_truth_than_what_was_released() -> None:
    """Single cells drown in noise; neither they, nor them cut at 0, nor margins tell as much."""
    source = np.random.default_rng(0)
    bins, deviation = 24, 40.0
    places = np.arange(bins)
    truth = 200 * np.exp(-((places[:, None] - places) ** 2) / 6)
    raw, cut, found, expected = [], [], [], []
    for _ in range(5):
        noisy = truth + deviation * source.normal(size=truth.shape)
        positive = np.maximum(noisy, 0)
        away = [
            np.abs(one - truth).sum()
            for one in (
                noisy,
                positive * truth.sum() / positive.sum(),
                clean(noisy, deviation, truth),
                np.outer(truth.sum(axis=1), truth.sum(axis=0)) / truth.sum(),
            )
        ]
        for values, one in zip((raw, cut, found, expected), away, strict=True):
            values.append(one)
    assert np.mean(found) < 0.4 * np.mean(raw)
    assert np.mean(found) < 0.8 * np.mean(cut)
    assert np.mean(found) < 0.8 * np.mean(expected)


def test_without_noise_a_table_stays_as_it_is() -> None:
    truth = np.random.default_rng(1).gamma(0.5, 100.0, (6, 7)) + 1.0
    np.testing.assert_allclose(clean(truth, 1e-3, truth), truth, rtol=1e-6)


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
