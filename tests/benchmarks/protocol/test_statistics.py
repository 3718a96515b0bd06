import numpy as np
import pytest

from benchmarks.protocol.ladder import RUNGS, Admission
from benchmarks.protocol.statistics import compare, paired_difference, paired_share
from distributed_privrl.core.errors import ConfigError

ORDERED = Admission("grid", dict(zip(RUNGS, (90.0, 60.0, 40.0, 5.0, 10.0), strict=True)))
WORLDS = 2000


def _pairs(
    rng: np.random.Generator, count: int, *, real: float, share: float, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Scores whose sides share a recording: correlated, as pairs are."""
    recording = spread * rng.standard_normal(count)
    theirs = real + recording
    ours = share * real + 0.7 * recording + 0.5 * spread * rng.standard_normal(count)
    return ours, theirs


@pytest.mark.parametrize("count", [5, 10])
def test_intervals_hold_the_truth_as_often_as_they_say(count: int) -> None:
    """Within four standard errors of .95 on both sides: neither too narrow nor too wide."""
    rng = np.random.default_rng(7)
    held = np.zeros(2)
    for _ in range(WORLDS):
        ours, theirs = _pairs(rng, count, real=60, share=0.8, spread=8)
        difference, share = paired_difference(ours, theirs), paired_share(ours, theirs)
        assert difference is not None
        assert share is not None
        held += difference.low <= -12 <= difference.high, share.low <= 0.8 <= share.high
    error = 4 * np.sqrt(0.95 * 0.05 / WORLDS)
    np.testing.assert_allclose(held / WORLDS, 0.95, atol=error)


def test_fieller_is_unbounded_as_often_as_real_rows_look_like_nothing() -> None:
    """Of real scores with mean 0, the interval must be unbounded in .95 of the worlds."""
    rng = np.random.default_rng(8)
    unbounded = sum(
        paired_share(*_pairs(rng, 5, real=0, share=0, spread=8)) is None for _ in range(WORLDS)
    )
    assert unbounded / WORLDS == pytest.approx(0.95, abs=4 * np.sqrt(0.95 * 0.05 / WORLDS))


def test_fieller_of_equal_sides_is_one_and_scales_with_ours() -> None:
    theirs = np.array([50.0, 60.0, 70.0])
    same, half = paired_share(theirs, theirs), paired_share(theirs / 2, theirs)
    assert same is not None
    assert half is not None
    assert (same.low, same.high) == pytest.approx((1, 1), abs=1e-6)
    assert (half.low, half.high) == pytest.approx((0.5, 0.5), abs=1e-6)


def test_ends_of_fieller_are_ratios_at_which_a_paired_t_test_turns() -> None:
    ours, theirs = np.array([40.0, 55.0, 52.0, 61.0]), np.array([50.0, 71.0, 60.0, 90.0])
    interval = paired_share(ours, theirs)
    assert interval is not None
    for end in (interval.low, interval.high):
        tested = paired_difference(ours, end * theirs)
        assert tested is not None
        assert min(abs(tested.low), abs(tested.high)) == pytest.approx(0, abs=1e-9)


def test_a_share_needs_25_of_100_from_real_rows_and_more_pairs_where_it_is_wide() -> None:
    real = np.array([24.0, 25.0, 24.0, 26.0, 25.0])
    low = compare(real, real - 0.1, admission=ORDERED)
    assert (low.share, low.share_interval, low.pairs_wanted) == (None, None, 5)
    assert low.difference == pytest.approx(0.1)
    narrow = compare(real + 40, real + 40, admission=ORDERED)
    assert (narrow.share, narrow.pairs_wanted) == (1.0, 5)
    wide = compare([10.0, 90.0, 20.0, 80.0, 50.0], real + 40, admission=ORDERED)
    assert (wide.pairs, wide.pairs_wanted) == (5, 10)


def test_a_single_pair_has_no_interval() -> None:
    found = compare([50.0], [60.0], admission=ORDERED)
    assert found.difference == -10
    assert found.difference_interval is None
    assert found.share_interval is None


@pytest.mark.parametrize(
    ("ours", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([1.0], [float("nan")])]
)
def test_what_is_no_pairs_is_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ConfigError, match="scores of pairs"):
        paired_share(ours, theirs)
