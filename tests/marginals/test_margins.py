"""What joint counts say of the columns that they count."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distributed_privrl.marginals.margins import PartSums, combined
from distributed_privrl.marginals.tables import Margin


def test_a_tail_is_told_by_the_part_that_it_makes() -> None:
    """Sixty cells of a tail have the noise of sixty; a part of a joint count has that of eight."""
    source = np.random.default_rng(0)
    truth = np.array([400.0, 300.0, 200.0, 80.0, 20.0])
    noise = 2.5 * np.sqrt([1, 1, 1, 1, 60])
    parts = np.array([0, 1, 2, 3, 3])
    before, after = [], []
    for _ in range(200):
        masses = np.maximum(truth + noise * source.normal(size=5), 1.0)
        masses *= 1000 / masses.sum()
        own = Margin(masses, noise)
        sums = np.bincount(parts, truth) + 5.0 * source.normal(size=4)
        found = combined(own, [PartSums(sums, 5.0, parts)])
        before.append(abs(own.masses[4] - 20))
        after.append(abs(found.masses[4] - 20))
        assert found.deviations[4] < 0.5 * noise[4]
    assert np.mean(after) < 0.65 * np.mean(before)


def test_what_a_part_has_more_goes_to_its_bins_as_they_are_uncertain() -> None:
    own = Margin(np.array([900.0, 80.0, 20.0]), np.array([30.0, 1.0, 3.0]))
    found = combined(own, [PartSums(np.array([890.0, 110.0]), 1e-3, np.array([0, 1, 1]))])
    np.testing.assert_allclose(found.masses, [890, 81, 29], atol=1e-3)


def test_several_counts_tell_more_than_one() -> None:
    own = Margin(np.array([50.0, 50.0]), np.array([40.0, 40.0]))
    told = [PartSums(np.array([80.0, 20.0]), 10.0, np.arange(2)) for _ in range(4)]
    one, four = combined(own, told[:1]), combined(own, told)
    assert 70 < one.masses[0] < four.masses[0] < 80
    assert four.deviations[0] < 0.6 * one.deviations[0]


@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 9),
    counts=st.integers(0, 3),
    noise=st.floats(1e-3, 1e4),
)
@settings(deadline=None, max_examples=60)
def test_the_weight_of_all_rows_stays_and_nothing_comes_from_nothing(
    seed: int, size: int, counts: int, noise: float
) -> None:
    source = np.random.default_rng(seed)
    masses = source.gamma(0.5, 100.0, size) * (source.random(size) < 0.8)
    masses[0] += 1.0
    own = Margin(masses, source.uniform(0.5, 20.0, size))
    told = []
    for _ in range(counts):
        parts = np.cumsum(source.random(size) < 0.5)
        parts -= parts[0]
        sums = np.bincount(parts, masses)
        told.append(PartSums(sums + noise * source.normal(size=len(sums)), noise, parts))
    found = combined(own, told)
    assert found.masses.sum() == pytest.approx(masses.sum())
    assert (found.masses >= 0).all()
    assert (found.masses[masses == 0] == 0).all()
    assert (found.deviations <= own.deviations * (1 + 1e-9)).all()


def test_noise_alone_tells_nothing() -> None:
    """Joint counts whose noise left nothing above zero do not make bins of no number."""
    own = Margin(np.array([2.0, 1.0, 0.5]), np.array([1e6, 1e6, 1e6]))
    told = [PartSums(np.full(3, -1e9), 1.0, np.arange(3))]
    assert combined(own, told) is own
