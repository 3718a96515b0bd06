"""Releases of real vectors by exact integers: lattice, rounding a unit, noise and event."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import (
    calibrate_discrete_gaussian,
    calibrate_discrete_laplace,
    gaussian_multiplier,
)
from distributed_privrl.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    LaplaceEvent,
)
from distributed_privrl.privacy.exact_releases import (
    EXACT_CELLS,
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)
from distributed_privrl.privacy.integer_noise import integer_gaussian, integer_laplace
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.gates.integers import furthest_apart

ALPHA = 1e-6
KINDS = [DiscreteGaussianRelease, FixedPointLaplaceRelease]


def release_of(kind, sensitivity=1.0, noise_multiplier=1.0, dimension=4, count=1):
    return kind(
        sensitivity=sensitivity,
        noise_multiplier=noise_multiplier,
        dimension=dimension,
        count=count,
    )


class Spy(SeededNoise):
    """Keeps what it was asked for."""

    def __init__(self):
        super().__init__(0)
        self.calls = []

    def add_discrete_gaussian(self, values, **arguments):
        self.calls.append(("discrete_gaussian", arguments))
        return super().add_discrete_gaussian(values, **arguments)

    def add_discrete_laplace(self, values, **arguments):
        self.calls.append(("discrete_laplace", arguments))
        return super().add_discrete_laplace(values, **arguments)

    def add_gaussian(self, values, **arguments):
        self.calls.append(("gaussian", arguments))
        return super().add_gaussian(values, **arguments)

    def add_laplace(self, values, **arguments):
        self.calls.append(("laplace", arguments))
        return super().add_laplace(values, **arguments)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sensitivity", [1e-3, 1.0, 1.9999, 777.7])
@pytest.mark.parametrize("dimension", [1, 2, 3, 300])
def test_the_rounding_of_two_units_is_paid_for_at_its_worst(kind, sensitivity, dimension) -> None:
    """Neighbours at exactly the sensitivity whose rounding pulls every coordinate apart."""
    release = release_of(kind, sensitivity, dimension=dimension)
    one, other = furthest_apart(release)
    moved = (release.to_steps(one) - release.to_steps(other)).astype(object)
    paid, steps = Fraction(release.sensitivity_steps), Fraction(sensitivity / release.lattice)
    power = 2 if kind is DiscreteGaussianRelease else 1
    size = sum(m**power for m in moved)
    assert size <= paid**power
    assert paid <= steps * (1 + Fraction(1, 2**15)) + 1
    # What is paid for is what may happen: without the rounding's share this pair is not covered,
    # but for one value whose sensitivity is whole steps.
    assert size > steps**power or (dimension == 1 and size == steps**power)


@pytest.mark.parametrize("kind", KINDS)
def test_values_beyond_the_sensitivity_are_cut_and_no_numbers_are_zero(kind) -> None:
    release = release_of(kind, 2.0, dimension=6)
    steps = release.to_steps([5.0, -1e308, math.inf, -math.inf, math.nan, 5e-324])
    most = 2.0 / release.lattice
    assert steps.tolist() == [most, -most, most, -most, 0, 0]
    assert release.to_steps(np.zeros((2, 3), np.float32)).shape == (2, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_steps_are_exact_in_any_order_and_come_back(kind) -> None:
    release = release_of(kind, 1.0, 1e-7, dimension=5)
    terms = np.random.default_rng(0).uniform(-0.4, 0.4, (1000, 5)) * [1, 1e-3, 1e-6, 1, 1]
    steps = release.to_steps(terms)
    total = steps.sum(axis=0)
    assert (steps[::-1].sum(axis=0) == total).all()
    np.testing.assert_allclose(
        release.release(total, SeededNoise(0)), terms.sum(axis=0), atol=1000 * release.lattice
    )


def test_noise_and_event_of_a_gaussian_release_agree() -> None:
    release, source = release_of(DiscreteGaussianRelease, 3.0, 2.0, 4000, count=5), Spy()
    released = release.release(np.full(4000, 7, np.int64), source, tag=4)
    ((name, call),) = source.calls
    assert (name, call["tag"]) == ("discrete_gaussian", 4)
    event = release.event
    assert event == DiscreteGaussianEvent(
        noise_multiplier=2.0, sensitivity=release.sensitivity_steps, count=5
    )
    spread = Fraction(event.noise_multiplier) * Fraction(event.sensitivity)
    assert spread <= Fraction(call["standard_deviation"]) <= spread * (1 + Fraction(1, 2**50))
    energy = float(((released - 7 * release.lattice) ** 2).sum()) / release.standard_deviation**2
    assert stats.chi2.ppf(5e-7, 4000) < energy < stats.chi2.isf(5e-7, 4000)
    assert release.standard_deviation == pytest.approx(6.0, rel=1e-4)


def test_noise_and_event_of_a_laplace_release_agree() -> None:
    release, source = release_of(FixedPointLaplaceRelease, 3.0, 2.0, 4000, count=5), Spy()
    released = release.release(np.full(4000, 7, np.int64), source, tag=4)
    ((name, call),) = source.calls
    assert (name, call["tag"]) == ("discrete_laplace", 4)
    event = release.event
    assert (event.sensitivity, event.count) == (release.sensitivity_steps, 5)
    # The noise is no less than what the event says: parameter and scale are each other's inverse.
    assert Fraction(event.parameter) * Fraction(call["scale"]) >= 1
    assert event.parameter * event.sensitivity == pytest.approx(0.5, rel=1e-12)
    energy = float(np.abs(released - 7 * release.lattice).sum()) * 2 / release.scale
    assert stats.chi2.ppf(5e-7, 8000) < energy < stats.chi2.isf(5e-7, 8000)
    assert release.scale == pytest.approx(6.0, rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_from_a_million_values_on_the_noise_and_its_event_are_the_lattices(kind) -> None:
    release, source = release_of(kind, 4.0, 200.0, EXACT_CELLS), Spy()
    total = np.full(EXACT_CELLS, 2**60 + 1, np.int64)
    released = release.release(total, source)
    ((name, call),) = source.calls
    expected = GaussianEvent if kind is DiscreteGaussianRelease else LaplaceEvent
    assert release.event == expected(noise_multiplier=200.0)
    assert name == release.event.kind
    spread = call.get("standard_deviation", call.get("scale"))
    assert spread / release.sensitivity_steps == pytest.approx(200.0)
    assert not release.exact
    assert release_of(kind, 4.0, 200.0, EXACT_CELLS - 1).exact
    noise = released / release.lattice - 2.0**60
    size = noise.std() if kind is DiscreteGaussianRelease else np.abs(noise).mean()
    assert size == pytest.approx(spread, rel=0.01)


def test_laplace_noise_of_millions_of_values_fits_its_lattice() -> None:
    """ICU-Sepsis has 12.8 million cells: the noise must not be refused once it was charged."""
    release = release_of(FixedPointLaplaceRelease, 4.0, 200.0, 12_850_000)
    assert release.scale / release.lattice <= 2.0**47
    assert 800.0 < release.scale <= 800.0 * (1 + 2.0**-8)
    with pytest.raises(ConfigError, match="have no lattice"):
        release_of(FixedPointLaplaceRelease, 4.0, 1e6, 12_850_000)


@pytest.mark.parametrize("kind", KINDS)
def test_releases_refuse_what_does_not_fit(kind) -> None:
    for changed in ({"sensitivity": 0.0}, {"noise_multiplier": math.inf}, {"dimension": 0}):
        with pytest.raises(ConfigError):
            release_of(kind, **changed)
    for wrong in (np.zeros(3, np.int64), np.zeros(4), np.zeros((4, 1), np.int64)):
        with pytest.raises(ConfigError, match="int64"):
            release_of(kind).release(wrong, SeededNoise(0))


def test_opendp_charges_no_more_than_the_events() -> None:
    gaussian = release_of(DiscreteGaussianRelease, 1.5, 0.7, 9)
    steps = gaussian.sensitivity_steps
    rho = integer_gaussian(gaussian._standard_deviation_steps).map(math.ceil(steps))
    assert rho == pytest.approx(1 / (2 * 0.7**2), rel=2 / steps)
    laplace = release_of(FixedPointLaplaceRelease, 1.5, 0.7, 9)
    cost = integer_laplace(laplace._scale_steps).map(laplace.sensitivity_steps)
    assert cost == pytest.approx(laplace.event.parameter * laplace.event.sensitivity, rel=1e-12)


def test_calibrated_releases_keep_the_budget_at_hardly_more_noise_than_the_continuous() -> None:
    budget = PrivacyBudget(
        epsilon=1.0, delta=1e-6, unit="trajectory", relation=Relation.REPLACE_ONE
    )
    for sensitivity, dimension in ((1.0, 1), (3.3, 10_000)):
        found = calibrate_discrete_gaussian(
            budget=budget, sensitivity=sensitivity, dimension=dimension, count=20
        )
        cost = epsilon([found.event], delta=1e-6, relation=Relation.REPLACE_ONE)
        assert 1 - 1e-6 < cost <= 1.0
        smooth = gaussian_multiplier(budget, 20)
        assert smooth <= found.noise_multiplier
        assert found.noise_multiplier == pytest.approx(smooth, rel=1e-6)
    pure = PrivacyBudget(epsilon=0.5, delta=0.0, unit="trajectory")
    laplace = calibrate_discrete_laplace(budget=pure, sensitivity=3.0, dimension=100, count=5)
    cost = epsilon([laplace.event], delta=0.0, relation=Relation.REPLACE_WITH_NULL)
    assert 0.5 * (1 - 1e-9) < cost <= 0.5
    assert isinstance(laplace.event, DiscreteLaplaceEvent)


def test_a_fifth_too_little_exact_noise_shows() -> None:
    release = release_of(DiscreteGaussianRelease, 1.0, 1.0, 2000)
    noise = release.release(np.zeros(2000, np.int64), SecureNoise()) / release.standard_deviation
    law = stats.chi2(2000)
    assert 2 * min(law.cdf((noise**2).sum()), law.sf((noise**2).sum())) > ALPHA
    assert law.cdf(((0.8 * noise) ** 2).sum()) < ALPHA
