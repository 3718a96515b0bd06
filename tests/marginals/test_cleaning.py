"""Joint counts without their noise, cleaned in the way that suits each."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.marginals import cleaning
from distributed_privrl.marginals.association import SUPPLE, associated
from distributed_privrl.marginals.cleaning import Released, Rule, cleaned
from distributed_privrl.marginals.tables import Margin


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
    released = Released(
        noisy=noisy,
        deviation=deviation,
        total=total,
        expected=np.outer(*sums) / total,
        margins=[Margin(one, np.full(len(one), deviation)) for one in sums],
        ordered=[ordered, ordered],
    )
    return cleaned(released, np.random.default_rng(9))


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
    for _ in range(3):
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


def away(found: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    """Return the share of all weight that lies in other cells than it should."""
    return float(np.abs(found - truth).sum() / truth.sum() / 2)


def gaussian(correlation: float, bins: int, total: float) -> NDArray[np.float64]:
    """Return a table of two numbers that go together, in bins of equal weight."""
    places = norm.ppf((np.arange(bins) + 0.5) / bins)
    x, y = places[:, None], places[None, :]
    table = np.exp(-(x**2 - 2 * correlation * x * y + y**2) / (2 * (1 - correlation**2)))
    for _ in range(50):
        table /= table.sum(axis=1, keepdims=True)
        table /= table.sum(axis=0, keepdims=True)
    return np.asarray(total * table / table.sum())


def test_each_table_is_cleaned_in_the_way_that_suits_it() -> None:
    """A loose relation, none, and one that single cells carry: no rule alone is good at all."""
    source, deviation = np.random.default_rng(4), 5.0
    sharp = np.zeros((20, 20))
    sharp[np.arange(20), source.permutation(20)] = 170.0
    tables = {
        "loose": (gaussian(0.6, 20, 3400), True),
        "none": (gaussian(0.0, 20, 3400), True),
        "sharp": (sharp, False),
    }
    for name, (truth, ordered) in tables.items():
        chosen, alone = [], {rule: [] for rule in Rule}
        for _ in range(8):
            noisy = truth + deviation * source.normal(size=truth.shape)
            chosen.append(away(clean(noisy, deviation, truth, ordered=ordered), truth))
            for rule in Rule:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(cleaning, "associated", lambda *_, expected, **__: expected)
                    patch.setattr(cleaning, "RULES", [rule])
                    found = clean(noisy, deviation, truth, ordered=ordered)
                alone[rule].append(away(found, truth))
        best = min(float(np.mean(one)) for one in alone.values())
        assert np.mean(chosen) < 1.05 * best + 0.01, name
        if name == "loose":
            assert np.mean(chosen) < 0.8 * best


def test_an_association_tells_more_than_its_cells() -> None:
    source, truth = np.random.default_rng(5), gaussian(-0.7, 16, 1000)
    margins = [Margin(truth.sum(axis=1 - axis), np.full(16, 3.0)) for axis in (0, 1)]
    even = np.full((16, 16), 1000 / 256)
    noisy = truth + 10.0 * source.normal(size=truth.shape)
    found = associated(noisy, 10.0, SUPPLE, expected=even, margins=margins)
    assert away(found, truth) < 0.5 * away(even, truth)
    np.testing.assert_allclose(found.sum(axis=0), truth.sum(axis=0), rtol=0.01)
    noisy = even + 10.0 * source.normal(size=(16, 16))
    flat = [Margin(even.sum(axis=1), np.full(16, 3.0))] * 2
    unrelated = associated(noisy, 10.0, SUPPLE, expected=even, margins=flat)
    assert away(unrelated, even) < 0.3 * away(np.maximum(noisy, 0), even)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_category_that_nobody_saw_has_no_rows(ordered: bool) -> None:
    """Noise of a joint count revives no category; an empty bin of a number may be one by chance."""
    source, deviation = np.random.default_rng(3), 5.0
    truth = np.outer(source.uniform(50, 100, 6), [1.0, 0.0, 1.0])
    noisy = truth + deviation * source.normal(size=truth.shape)
    noisy[:, 1] = 4 * deviation
    found = clean(noisy, deviation, truth, ordered=ordered)
    assert (found[:, 1] > 0).any() == ordered
    assert found.sum() == pytest.approx(truth.sum())
