"""Intervals cover what they say, and say how they were made."""

import numpy as np
import pytest

from benchmarks.ratios import ratio_interval
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.intervals import mean_interval


def test_means_of_many_values_have_the_normal_width() -> None:
    values = np.random.default_rng(1).normal(5, 2, size=400)
    interval = mean_interval(values)
    assert interval is not None
    assert interval.method == "percentile bootstrap, n=400"
    half = 1.96 * values.std() / 20
    assert interval.low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(values.mean() + half, abs=0.1 * half)
    assert mean_interval(values) == interval, "the same figures have one interval"


def test_one_value_has_no_interval_and_none_is_refused() -> None:
    assert mean_interval([3.0]) is None
    for nothing in ([], [[1.0, 2.0]]):
        with pytest.raises(ConfigError, match="values"):
            mean_interval(nothing)


@pytest.mark.parametrize("count", [3, 12])
def test_equal_values_are_called_so(count: int) -> None:
    assert f"{mean_interval([4.6] * count):g}" == f"4.6 .. 4.6 (all equal, n={count})"


@pytest.mark.parametrize("count", [3, 9, 10, 30])
def test_intervals_of_means_cover_them_however_few(count: int) -> None:
    covered = 0
    for sample in np.random.default_rng(0).normal(size=(300, count)):
        interval = mean_interval(sample)
        assert interval is not None
        assert interval.method.startswith("t," if count < 10 else "percentile")
        covered += interval.low <= 0 <= interval.high
    assert covered > (0.92 if count < 10 else 0.87) * 300


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
