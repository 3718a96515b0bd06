import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent
from distributed_privrl.privacy.mechanisms import (
    DiscreteLaplaceRelease,
    IntegerGaussianRelease,
    noisy_count,
)
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise


class Spy(SeededNoise):
    """Keeps what it was asked for."""

    def __init__(self):
        super().__init__(0)
        self.calls = []

    def add_discrete_laplace(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_discrete_laplace(values, **arguments)

    def add_discrete_gaussian(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_discrete_gaussian(values, **arguments)


def test_discrete_laplace_noise_and_event_agree():
    release, source = DiscreteLaplaceRelease(sensitivity=2, scale=4.0), Spy()
    released = release.release(np.array([10, 20]), source, tag=1)
    assert source.calls == [{"scale": 4.0, "tag": 1}]
    assert released.dtype == np.int64
    assert release.event == DiscreteLaplaceEvent(parameter=0.25, sensitivity=2)


@pytest.mark.parametrize("sensitivity", [1.0, math.sqrt(3) * 2**20])
@pytest.mark.parametrize("noise_multiplier", [0.3, 1.7])
def test_discrete_gaussian_noise_is_no_less_than_its_event(sensitivity, noise_multiplier):
    release = IntegerGaussianRelease(
        sensitivity=sensitivity, noise_multiplier=noise_multiplier, count=5
    )
    source, values = Spy(), np.full(4000, 7)
    released = release.release(values, source, tag=3)
    assert source.calls == [{"standard_deviation": release.standard_deviation, "tag": 3}]
    assert released.dtype == np.int64
    event = release.event
    assert event == DiscreteGaussianEvent(
        noise_multiplier=noise_multiplier, sensitivity=sensitivity, count=5
    )
    charged = Fraction(event.noise_multiplier) * Fraction(event.sensitivity)
    drawn = Fraction(release.standard_deviation)
    assert charged <= drawn <= charged * (1 + Fraction(1, 2**50))


def test_discrete_gaussian_noise_has_the_variance_of_its_event():
    release = IntegerGaussianRelease(sensitivity=12.5, noise_multiplier=2.0)
    noise = release.release(np.full(4000, -7), SecureNoise()) + 7
    energy = (
        float(noise @ noise) / (release.event.noise_multiplier * release.event.sensitivity) ** 2
    )
    assert stats.chi2.ppf(5e-7, 4000) < energy < stats.chi2.isf(5e-7, 4000)


def test_a_count_has_sensitivity_one_and_costs_what_was_asked():
    release = noisy_count(epsilon=0.05)
    assert release.event.parameter == pytest.approx(0.05, rel=1e-15)
    assert release.event.sensitivity == 1
    counts = np.array([release.release(np.array([1000]), SecureNoise())[0] for _ in range(2)])
    assert (np.abs(counts - 1000) < 20 * 45).all()


@pytest.mark.parametrize(
    "changed", [{"sensitivity": 0}, {"scale": 0.0}, {"scale": math.inf}, {"count": 0}]
)
def test_laplace_releases_refuse_impossible_values(changed):
    with pytest.raises(ConfigError):
        DiscreteLaplaceRelease(**{"sensitivity": 1, "scale": 1.0, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"sensitivity": 0.0},
        {"sensitivity": math.nan},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.inf},
        {"count": 0},
    ],
)
def test_gaussian_releases_refuse_impossible_values(changed):
    with pytest.raises(ConfigError):
        IntegerGaussianRelease(**{"sensitivity": 1.0, "noise_multiplier": 1.0, **changed})


def test_integer_releases_refuse_what_is_no_integer_or_out_of_range():
    with pytest.raises(ConfigError, match="integer"):
        DiscreteLaplaceRelease(sensitivity=1.5, scale=1.0)
    with pytest.raises(ConfigError, match="epsilon"):
        noisy_count(epsilon=0.0)


@pytest.mark.parametrize("values", [np.zeros((2, 2), np.int64), np.zeros(0, np.int64)])
@pytest.mark.parametrize(
    "release",
    [
        DiscreteLaplaceRelease(sensitivity=1, scale=1.0),
        IntegerGaussianRelease(sensitivity=1.0, noise_multiplier=1.0),
    ],
)
def test_a_release_takes_one_vector(release, values):
    with pytest.raises(ConfigError, match=r"\(N,\)"):
        release.release(values, SeededNoise(0))
