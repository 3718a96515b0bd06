"""Intervals cover what they say, and say how they were made."""

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.intervals import (
    bootstrap_interval,
    mean_interval,
    ratio_interval,
)


def test_bootstrap_interval_has_the_normal_width() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    low, high = bootstrap_interval(values, generator=np.random.default_rng(2), resamples=4000)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)
    narrow = bootstrap_interval(values, generator=np.random.default_rng(2), confidence=0.5)
    assert narrow[1] - narrow[0] == pytest.approx((high - low) * 0.674 / 1.96, rel=0.1)


def test_bootstrap_interval_of_one_value_is_that_value() -> None:
    assert bootstrap_interval([3.0], generator=np.random.default_rng(0)) == (3.0, 3.0)
    with pytest.raises(ConfigError, match="values"):
        bootstrap_interval([], generator=np.random.default_rng(0))


def test_a_bootstrap_of_three_is_their_range_and_covers_too_rarely() -> None:
    generator = np.random.default_rng(0)
    samples = generator.normal(size=(400, 3))
    covered = {"bootstrap": 0, "t": 0}
    for sample in samples:
        low, high = bootstrap_interval(sample, generator=generator, resamples=5000)
        covered["bootstrap"] += low <= 0 <= high
        assert (low, high) == pytest.approx((sample.min(), sample.max()))
        interval = mean_interval(sample)
        assert interval is not None
        assert interval.method == "t, n=3"
        covered["t"] += interval.low <= 0 <= interval.high
    assert covered["bootstrap"] < 0.82 * len(samples)
    assert covered["t"] > 0.92 * len(samples)


def test_intervals_of_ratios_cover_them_whatever_the_variances() -> None:
    generator = np.random.default_rng(0)
    for deviations in ((1.0, 1.0), (3.0, 0.3), (0.3, 2.0)):
        found = []
        for _ in range(150):
            ours = 10 + deviations[0] * generator.normal(size=3)
            theirs = 20 + deviations[1] * generator.normal(size=3)
            interval = ratio_interval(ours, theirs)
            found.append(interval is None or interval.low <= 0.5 <= interval.high)
        assert np.mean(found) > 0.92
    assert ratio_interval([1.0], [2.0, 3.0]) is None
    assert ratio_interval([1.0, 2.0], [-1.0, 5.0]) is None, "the reference may be zero"
