"""What a discrete Gaussian costs, against exact enumeration and the proof in `atoms`."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.accounting import cross_check, epsilon
from distributed_privrl.privacy.atoms import ROUNDING_VARIANCE
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
)
from distributed_privrl.privacy.units import Relation

NULL, ONE = Relation.REPLACE_WITH_NULL, Relation.REPLACE_ONE


def cost(*events, delta=1e-6, accountant="pld", relation=NULL):
    return epsilon(events, delta=delta, accountant=accountant, relation=relation)


def law(deviation, shift, width):
    points = np.arange(-width, width + 1)
    masses = np.exp(-((points - shift) ** 2) / (2 * deviation**2))
    return masses / np.exp(-(points**2) / (2 * deviation**2)).sum()


def hockey_stick(first, second, value):
    return float(np.maximum(first - math.exp(value) * second, 0).sum())


def joint(deviation, shifts, width):
    masses = law(deviation, shifts[0], width)
    for shift in shifts[1:]:
        masses = np.multiply.outer(masses, law(deviation, shift, width))
    return masses


@pytest.mark.parametrize("deviation", [1.0, 3.5, 5.0, 12.0])
@pytest.mark.parametrize("shifts", [(1,), (4,), (1, 1), (3, 4), (2, -1), (1, 0)])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_vectors_of_integers_cost_no_more_than_is_certified(deviation, shifts, accountant) -> None:
    size = math.hypot(*shifts)
    event = DiscreteGaussianEvent(noise_multiplier=deviation / size, sensitivity=size)
    width = math.ceil(13 * deviation) + 4
    here, there = joint(deviation, (0,) * len(shifts), width), joint(deviation, shifts, width)
    for delta in (1e-1, 1e-2, 1e-4):
        value = cost(event, delta=delta, accountant=accountant)
        assert hockey_stick(here, there, value) <= delta * (1 + 1e-9)
        assert hockey_stick(there, here, value) <= delta * (1 + 1e-9)


def test_a_discrete_gaussian_may_cost_more_than_the_gaussian_of_its_multiplier() -> None:
    """Why it is an event of its own: stated as ``gaussian``, the cost would be understated."""
    here, there = law(1.0, 0, 20), law(1.0, 1, 20)
    plain, own = (
        GaussianEvent(noise_multiplier=1.0),
        DiscreteGaussianEvent(noise_multiplier=1.0, sensitivity=1.0),
    )
    deltas = [1e-3, 1e-2, 0.03, 0.1]
    assert any(hockey_stick(here, there, cost(plain, delta=d)) > d * 1.01 for d in deltas)
    assert all(hockey_stick(here, there, cost(own, delta=d)) <= d for d in deltas)
    assert cost(own) > cost(plain)


def test_rounding_a_gaussian_at_random_gives_the_discrete_one() -> None:
    """Steps 1 and 2 of the proof, with 60 digits: eta, and both laws' ratio at several means."""
    with mpmath.workdps(120):
        variance, rounding = mpmath.mpf(25), mpmath.mpf(ROUNDING_VARIANCE)
        eta = 2 * mpmath.nsum(lambda j: mpmath.exp(-2 * mpmath.pi**2 * rounding * j**2), [1, 5])
        assert eta < mpmath.mpf("1.5e-77")
        assert 2 * mpmath.atanh(eta) < mpmath.mpf("3e-77")
        for place in ("0", "0.5", "0.3"):
            weight = mpmath.fsum(
                mpmath.exp(-((k - mpmath.mpf(place)) ** 2) / (2 * rounding)) for k in range(-99, 99)
            )
            smooth = mpmath.sqrt(2 * mpmath.pi * rounding)
            assert abs(weight / smooth - 1) <= eta * (1 + mpmath.mpf("1e-30"))
    with mpmath.workdps(30):
        narrow, total = variance - rounding, mpmath.mpf(0)
        weights = mpmath.fsum(
            mpmath.exp(-mpmath.mpf(k**2) / (2 * variance)) for k in range(-99, 99)
        )

        def rounded_to(integer, mean):
            def inner(x):
                near = mpmath.exp(-((integer - x) ** 2) / (2 * rounding))
                every = mpmath.sqrt(2 * mpmath.pi * rounding)  # within eta of the sum
                density = mpmath.exp(-((x - mean) ** 2) / (2 * narrow))
                return density / mpmath.sqrt(2 * mpmath.pi * narrow) * near / every

            return mpmath.quad(inner, mpmath.linspace(mean - 60, mean + 60, 9))

        for integer, mean in ((0, 0), (3, 0), (-7, 2)):
            exact = mpmath.exp(-mpmath.mpf((integer - mean) ** 2) / (2 * variance)) / weights
            assert abs(rounded_to(integer, mean) / exact - 1) < mpmath.mpf("1e-20")
            total += exact
        assert 0 < total < 1


def test_on_a_fine_lattice_it_costs_what_the_continuous_one_does() -> None:
    plain = GaussianEvent(noise_multiplier=3.0, count=20)
    fine = DiscreteGaussianEvent(noise_multiplier=3.0, sensitivity=2.0**16, count=20)
    assert cost(plain) < cost(fine) < cost(plain) * (1 + 1e-8)
    assert cost(fine, accountant="gdp") == pytest.approx(cost(fine), rel=1e-12)
    assert cost(fine, accountant="rdp") == cost(plain, accountant="rdp") > cost(fine)
    assert cross_check([fine], delta=1e-6, relation=NULL).epsilon == cost(fine, accountant="rdp")


def test_coarse_integers_are_accounted_by_renyi_dp_alone() -> None:
    coarse = DiscreteGaussianEvent(noise_multiplier=2.0, sensitivity=1.5)  # three steps
    renyi = cost(coarse, accountant="rdp")
    assert cost(coarse) == renyi
    assert cost(coarse, PureDpEvent(epsilon=0.1)) >= renyi
    with pytest.raises(ConfigError, match="finer lattice"):
        cost(coarse, accountant="gdp")
    with pytest.raises(ConfigError, match="pure"):
        cost(coarse, accountant="pure")
    with pytest.raises(ConfigError, match="pure"):
        cost(coarse, delta=0.0)


def test_it_composes_with_every_other_kind() -> None:
    fine = DiscreteGaussianEvent(noise_multiplier=4.0, sensitivity=2.0**17, count=3)
    plain = GaussianEvent(noise_multiplier=4.0, count=3)
    others = (
        PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.0, count=100),
        LaplaceEvent(noise_multiplier=9.0),
        ApproximateDpEvent(epsilon=0.1, delta=1e-8),
        DiscreteLaplaceEvent(parameter=0.1, sensitivity=1),
    )
    for accountant in ("pld", "rdp"):
        together = cost(fine, *others, accountant=accountant)
        assert together == pytest.approx(cost(plain, *others, accountant=accountant), rel=1e-6)
        assert together > cost(*others, accountant=accountant) + 1e-3
    chosen = RepeatAndSelectEvent(distribution="poisson", mean=3.0, events=(fine,))
    same = RepeatAndSelectEvent(distribution="poisson", mean=3.0, events=(plain,))
    assert cost(chosen, accountant="rdp") == cost(same, accountant="rdp")


def test_halves_under_replace_one_take_both_kinds_of_integers() -> None:
    """A replaced unit leaves one half and joins the other: together no more than one branch."""
    fine = DiscreteGaussianEvent(noise_multiplier=4.0, sensitivity=2.0**17)
    integers = DiscreteLaplaceEvent(parameter=0.05, sensitivity=4)
    halves = ParallelEvent(branches=((fine, integers), (fine,)))
    assert cost(halves, relation=ONE) == cost(fine, integers, relation=ONE)
    wrong = ParallelEvent(branches=((PureDpEvent(epsilon=0.1),), (fine,)))
    with pytest.raises(UnsafeError, match="pure_dp"):
        cost(wrong, relation=ONE)
    # Two units of one step each, out of one half and into the other: sensitivity 2 in a branch.
    shift, parameter = 2, 0.3
    width = 60
    points = np.arange(-width, width + 1)

    def laplace(at):
        return math.tanh(parameter / 2) * np.exp(-parameter * np.abs(points - at))

    here = np.multiply.outer(laplace(0), laplace(1))
    there = np.multiply.outer(laplace(1), laplace(0))
    event = DiscreteLaplaceEvent(parameter=parameter, sensitivity=shift)
    both = ParallelEvent(branches=((event,), (event,)))
    for delta in (0.01, 0.1):
        assert hockey_stick(here, there, cost(both, delta=delta, relation=ONE)) <= delta


@pytest.mark.parametrize("parameter", [1e-4, 3e-5])
def test_large_integer_shifts_of_laplace_noise_against_enumeration(parameter) -> None:
    """`continuous_multiplier` bounds the exact divergence, and hardly above it."""
    shift = 10_001
    event = DiscreteLaplaceEvent(parameter=parameter, sensitivity=shift)
    smooth = LaplaceEvent(noise_multiplier=1 / (parameter * shift))
    losses = parameter * (shift - 2 * np.arange(shift + 1.0))
    masses = math.tanh(parameter / 2) * np.exp(-parameter * np.arange(shift + 1.0))
    masses[0] = 1 / (1 + math.exp(-parameter))
    masses[-1] = masses[0] * math.exp(-parameter * shift)
    for delta in (1e-3, 0.1):
        value = cost(event, delta=delta)
        assert float((masses * np.maximum(-np.expm1(value - losses), 0)).sum()) <= delta
        assert value <= cost(smooth, delta=delta) * (1 + 1e-3)
    assert cost(event, delta=0.0) == parameter * shift
    many = event.model_copy(update={"count": 20})
    assert cost(many, delta=1e-3) < 0.99 * 20 * parameter * shift


def test_every_shift_within_the_sensitivity_is_covered() -> None:
    """All integer vectors of norm 3 and less in three dimensions, at one calibrated figure."""
    deviation, delta = 4.0, 1e-3
    value = cost(
        DiscreteGaussianEvent(noise_multiplier=deviation / 3, sensitivity=3.0), delta=delta
    )
    here = joint(deviation, (0, 0, 0), 26)
    for shifts in product(range(4), repeat=3):
        if list(shifts) == sorted(shifts) and math.hypot(*shifts) <= 3:
            assert hockey_stick(joint(deviation, shifts, 26), here, value) <= delta * (1 + 1e-6)
