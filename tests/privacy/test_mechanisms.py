import math

import numpy as np
import pytest
from scipy.stats import chi2

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import DiscreteLaplaceEvent, GaussianEvent, LaplaceEvent
from distributed_privrl.privacy.mechanisms import (
    DiscreteLaplaceRelease,
    GaussianRelease,
    LaplaceRelease,
    noisy_count,
)
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise, lattice_granularity


class Spy(SeededNoise):
    """Keeps what it was asked for."""

    def __init__(self):
        super().__init__(0)
        self.calls = []

    def add_gaussian(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_gaussian(values, **arguments)

    def add_laplace(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_laplace(values, **arguments)

    def add_discrete_laplace(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_discrete_laplace(values, **arguments)


def test_gaussian_noise_and_event_agree():
    release, source, n = GaussianRelease(sensitivity=3.0, noise_multiplier=2.0), Spy(), 4000
    released = release.release(np.full(n, 5.0), source, tag=4)
    (call,) = source.calls
    granularity = lattice_granularity(3.0, n)
    assert call == {
        "standard_deviation": 2.0 * (3.0 + math.sqrt(n) * granularity),
        "granularity": granularity,
        "tag": 4,
    }
    assert release.event == GaussianEvent(noise_multiplier=2.0)
    energy = float(((released - 5.0) ** 2).sum()) / 6.0**2
    assert chi2.ppf(5e-7, n) < energy < chi2.isf(5e-7, n)


def test_laplace_noise_and_event_agree():
    release, source, n = LaplaceRelease(sensitivity=3.0, noise_multiplier=2.0, count=5), Spy(), 4000
    released = release.release(np.full(n, 5.0), source)
    (call,) = source.calls
    # Rounding adds up to n g to an L1 distance, which must be small beside the sensitivity too.
    assert n * call["granularity"] <= 3.0 * 2.0**-20
    assert call["scale"] == 2.0 * (3.0 + n * call["granularity"])
    assert release.event == LaplaceEvent(noise_multiplier=2.0, count=5)
    # 2 |x| / scale of a Laplace variable is chi-square with two degrees of freedom.
    energy = float(np.abs(released - 5.0).sum()) * 2 / 6.0
    assert chi2.ppf(5e-7, 2 * n) < energy < chi2.isf(5e-7, 2 * n)


def test_discrete_laplace_noise_and_event_agree():
    release, source = DiscreteLaplaceRelease(sensitivity=2, scale=4.0), Spy()
    released = release.release(np.array([10, 20]), source, tag=1)
    assert source.calls == [{"scale": 4.0, "tag": 1}]
    assert released.dtype == np.int64
    assert release.event == DiscreteLaplaceEvent(parameter=0.25, sensitivity=2)


def test_a_count_has_sensitivity_one_and_costs_what_was_asked():
    release = noisy_count(epsilon=0.05)
    assert release.event.parameter == pytest.approx(0.05, rel=1e-15)
    assert release.event.sensitivity == 1
    counts = np.array([release.release(np.array([1000]), SecureNoise())[0] for _ in range(2)])
    assert (np.abs(counts - 1000) < 20 * 45).all()


@pytest.mark.parametrize("kind", [GaussianRelease, LaplaceRelease])
@pytest.mark.parametrize(
    "changed",
    [{"sensitivity": 0.0}, {"noise_multiplier": 0.0}, {"noise_multiplier": math.inf}, {"count": 0}],
)
def test_releases_refuse_impossible_values(kind, changed):
    with pytest.raises(ConfigError):
        kind(**{"sensitivity": 1.0, "noise_multiplier": 1.0, **changed})


def test_integer_releases_refuse_what_is_no_integer_or_out_of_range():
    with pytest.raises(ConfigError, match="integer"):
        DiscreteLaplaceRelease(sensitivity=1.5, scale=1.0)
    with pytest.raises(ConfigError, match="epsilon"):
        noisy_count(epsilon=0.0)


@pytest.mark.parametrize("values", [np.zeros((2, 2)), np.zeros(0)])
def test_a_release_takes_one_vector(values):
    release = GaussianRelease(sensitivity=1.0, noise_multiplier=1.0)
    with pytest.raises(ConfigError, match=r"\(N,\)"):
        release.release(values, SeededNoise(0))


def test_laplace_noise_of_millions_of_values_fits_its_lattice() -> None:
    """ICU-Sepsis has 12.8 million cells: the noise must not be refused once it was charged."""
    values, release = 12_850_000, LaplaceRelease(sensitivity=4.0, noise_multiplier=200.0)
    scale, granularity = release.scale(values), release._granularity(values)
    assert scale / granularity <= 2.0**47
    assert release.noise_multiplier * 4.0 < scale <= release.noise_multiplier * 4.0 * (1 + 2.0**-8)
    assert scale == release.noise_multiplier * (4.0 + values * granularity)
    with pytest.raises(ConfigError, match="have no lattice"):
        LaplaceRelease(sensitivity=4.0, noise_multiplier=1e6).scale(values)
