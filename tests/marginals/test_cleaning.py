"""Joint counts without their noise, cleaned in the way that suits each."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.marginals import cleaning
from distributed_privrl.marginals.association import SUPPLE, BlockCounts, associated
from distributed_privrl.marginals.cleaning import Released, Rule, cleaned
from distributed_privrl.marginals.spreading import spread
from distributed_privrl.marginals.tables import Maps, Margin, blocks, parts_of

NO_ATOMS = (np.zeros(14, np.bool_),) * 2


def part_maps(truth: NDArray[np.float64], parts: int = 0) -> Maps:
    """Return the part of each bin of each axis; 0: bins."""
    sums = [truth.sum(axis=1), truth.sum(axis=0)]
    return tuple(parts_of(one, parts) if parts else np.arange(len(one)) for one in sums)


def clean(
    noisy: NDArray[np.float64],
    deviation: float,
    truth: NDArray[np.float64],
    *,
    ordered: bool = True,
    parts: int = 0,
    expected: NDArray[np.float64] | None = None,
    before: Sequence[BlockCounts] = (),
) -> NDArray[np.float64]:
    """Clean a table whose margins are known well.

    Args:
        noisy: counts.
        deviation: of their noise.
        truth: of bins.
        ordered: whether both are numbers.
        parts: that were counted; 0: bins.
        expected: of bins; None: columns have nothing to do with each other.
        before: earlier counts.
    """
    total = float(truth.sum())
    sums = [truth.sum(axis=1), truth.sum(axis=0)]
    released = Released(
        noisy=noisy,
        deviation=deviation,
        total=total,
        expected=np.outer(*sums) / total if expected is None else expected,
        margins=[Margin(one, np.full(len(one), deviation)) for one in sums],
        ordered=[ordered, ordered],
        maps=part_maps(truth, parts),
        before=before,
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
    bins = part_maps(truth)
    counts = [BlockCounts(noisy, 10.0, bins)]
    found = associated(counts, SUPPLE, expected=even, margins=margins)
    assert away(found, truth) < 0.5 * away(even, truth)
    np.testing.assert_allclose(found.sum(axis=0), truth.sum(axis=0), rtol=0.01)
    noisy = even + 10.0 * source.normal(size=(16, 16))
    flat = [Margin(even.sum(axis=1), np.full(16, 3.0))] * 2
    unrelated = associated([BlockCounts(noisy, 10.0, bins)], SUPPLE, expected=even, margins=flat)
    assert away(unrelated, even) < 0.3 * away(np.maximum(noisy, 0), even)


def test_what_was_guessed_of_halves_does_not_bind_fifths() -> None:
    """Lines through halves are too flat where numbers nearly decide each other."""
    truth = gaussian(0.93, 18, 4000)
    maps, halves = part_maps(truth, 5), part_maps(truth, 2)
    even = np.outer(truth.sum(axis=1), truth.sum(axis=0)) / 4000
    guessed = spread(
        even, blocks(truth, halves), halves, (True, True), (np.zeros(18, np.bool_),) * 2
    )
    source, misses = np.random.default_rng(7), []
    for _ in range(2):  # they miss 0.11 and 0.03, and hardly less or more in another draw
        noisy = blocks(truth, maps) + 7.0 * source.normal(size=(5, 5))
        counts = [BlockCounts(noisy, 7.0, maps)]
        margins = [Margin(truth.sum(axis=axis), np.full(18, 7.0)) for axis in (1, 0)]
        bound = associated(counts, SUPPLE, expected=guessed, margins=margins)
        found = clean(noisy, 7.0, truth, parts=5, expected=guessed)
        misses.append([away(one, truth) for one in (bound, found)])
    bound, found = np.mean(misses, axis=0)
    assert found < 0.9 * bound


def test_two_counts_of_the_same_numbers_tell_more_than_one() -> None:
    truth = gaussian(0.9, 18, 300)
    fifths, eighths = part_maps(truth, 5), part_maps(truth, 8)
    source, misses = np.random.default_rng(8), []
    for _ in range(8):
        first = blocks(truth, fifths) + 10.0 * source.normal(size=(5, 5))
        second = blocks(truth, eighths) + 10.0 * source.normal(size=blocks(truth, eighths).shape)
        before = [BlockCounts(first, 10.0, fifths)]
        ways = [clean(second, 10.0, truth, parts=8, before=one) for one in ((), before)]
        misses.append([away(one, truth) for one in ways])
    alone, together = np.mean(misses, axis=0)
    assert together < 0.9 * alone


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


def association(table: NDArray[np.float64]) -> float:
    """Return the correlation of the normal scores of two numbers."""
    shares = table / table.sum()
    sums = shares.sum(axis=1), shares.sum(axis=0)
    scores = [norm.ppf(np.clip(np.cumsum(one) - one / 2, 1e-4, 1 - 1e-4)) for one in sums]
    first, second = (score - one @ score for one, score in zip(sums, scores, strict=True))
    spreads = (sums[0] @ first**2) * (sums[1] @ second**2)
    return float(first @ shares @ second / np.sqrt(spreads))


@pytest.mark.parametrize("parts", [2, 3, 5])
def test_parts_tell_of_a_loose_relation_what_bins_do_not(parts: int) -> None:
    """600 people, noise of 10: between 14 x 14 bins a correlation of .4 drowns."""
    source, truth = np.random.default_rng(6), gaussian(0.4, 14, 600)
    maps = part_maps(truth, parts)
    counts, misses = blocks(truth, maps), []
    for _ in range(8):
        noisy = truth + 10.0 * source.normal(size=truth.shape)
        parted = counts + 10.0 * source.normal(size=counts.shape)
        found = clean(noisy, 10.0, truth), clean(parted, 10.0, truth, parts=parts)
        misses.append([abs(association(one) - association(truth)) for one in found])
    by_bins, by_parts = np.mean(misses, axis=0)
    assert by_parts < 0.15
    assert by_parts < 0.7 * by_bins


@pytest.mark.parametrize(("correlation", "parts"), [(0.2, 2), (-0.4, 2), (0.4, 3), (0.7, 3)])
def test_what_lies_within_parts_follows_from_what_lies_between_them(
    correlation: float, parts: int
) -> None:
    truth = gaussian(correlation, 14, 600)
    maps = part_maps(truth, parts)
    counts = blocks(truth, maps)
    even = np.outer(truth.sum(axis=1), truth.sum(axis=0)) / 600
    found = spread(even, counts, maps, (True, True), NO_ATOMS)
    np.testing.assert_allclose(blocks(found, maps), counts, rtol=1e-9)
    assert association(found) == pytest.approx(association(truth), abs=0.02)
    stepped = even * (counts / blocks(even, maps))[np.ix_(*maps)]
    assert abs(association(stepped)) < 0.75 * abs(association(truth))
    assert np.abs(found.sum(axis=1) - truth.sum(axis=1)).sum() < 0.02 * 600


def test_a_relation_does_not_turn_back_within_parts() -> None:
    """Fifths of two numbers that go together in the upper half alone, one deviation of noise."""
    truth = gaussian(0.9, 18, 570)
    for rows in (slice(0, 2), slice(4, 9)):
        truth[rows] = truth[rows].mean(axis=0)
    counts, means = blocks(truth, part_maps(truth, 5)), truth @ np.arange(18) / truth.sum(axis=1)
    for seed in range(6):
        noisy = counts + np.random.default_rng(seed).normal(size=counts.shape)
        found = clean(noisy, 1.0, truth, parts=5)
        own = found @ np.arange(18) / found.sum(axis=1)
        assert (np.diff(own) > 0).all()
        assert np.abs(own - means).mean() < 0.6


def test_where_two_numbers_decide_each_other_parts_are_steps() -> None:
    truth = 600 * np.eye(14) / 14 + 1e-6
    maps = part_maps(truth, 2)
    counts, even = blocks(truth, maps), np.full((14, 14), truth.sum() / 196)
    stepped = even * (counts / blocks(even, maps))[np.ix_(*maps)]
    np.testing.assert_allclose(spread(even, counts, maps, (True, True), NO_ATOMS), stepped)


def test_an_atom_is_told_by_itself() -> None:
    """Of a rare kind all have something, and like much as little; of the others a third none."""
    truth = np.stack([np.append(0.0, np.full(13, 30 / 13)), np.append(320.0, np.full(13, 50.0))])
    sums = truth.sum(axis=1), truth.sum(axis=0)
    found = []
    for atoms in (np.arange(14) == 0, np.zeros(14, np.bool_)):
        maps = (np.arange(2), parts_of(sums[1], 2, atoms))
        released = Released(
            noisy=blocks(truth, maps) + np.array([[1.0], [-1.0]]),
            deviation=3.0,
            total=1000.0,
            expected=np.outer(*sums) / 1000,
            margins=[Margin(sums[0], np.full(2, 3.0)), Margin(sums[1], np.full(14, 3.0), atoms)],
            ordered=[False, True],
            maps=maps,
        )
        found.append(cleaned(released, np.random.default_rng(1))[0])
    assert found[0][0] < 1
    assert found[0][1:].std() < 0.5
    assert found[1][0] > 3, "halves alone say that the rare kind has little less often"
    assert found[1][1:].std() > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_of_cells_that_are_ruled_out(seed: int) -> None:
    """And what noise put there goes where rows may be: the sums of columns stay."""
    source = np.random.default_rng(seed)
    truth = np.triu(np.full((12, 12), 40.0))
    sums = [truth.sum(axis=1), truth.sum(axis=0)]
    noisy = truth + 15.0 * source.standard_normal(truth.shape)
    falls = np.tril(np.ones(truth.shape, np.bool_), -1)
    found = []
    for ruled_out in (None, falls):
        counts = noisy if ruled_out is None else np.where(ruled_out, 0.0, noisy)
        released = Released(
            noisy=counts,
            deviation=15.0,
            total=float(truth.sum()),
            expected=np.outer(*sums) / truth.sum(),
            margins=[Margin(one, np.full(12, 15.0)) for one in sums],
            ordered=[True, True],
            maps=part_maps(truth, 0),
            ruled_out=ruled_out,
        )
        found.append(cleaned(released, np.random.default_rng(1)))
    assert found[0][falls].sum() > 30
    assert not found[1][falls].any()
    assert found[1].sum() == pytest.approx(truth.sum())
    errors = [np.abs(one - truth).sum() for one in found]
    assert errors[1] < errors[0]
