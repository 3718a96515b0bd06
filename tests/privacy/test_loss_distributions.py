"""Privacy loss distributions beside dp_accounting's own, which invert the loss point by point."""

import warnings

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as library

from distributed_privrl.privacy.composition import _ROUNDING
from distributed_privrl.privacy.loss_distributions import _Losses, _private_round

SAMPLED = [(1e-5, 0.5), (4e-3, 1.0), (0.05, 0.6), (0.2, 4.8), (0.9, 20.0), (1 - 1e-9, 2.0)]


@pytest.mark.parametrize("scale", [1.0, 10.0])
@pytest.mark.parametrize(("probability", "multiplier"), SAMPLED)
def test_a_sampled_gaussian_is_the_library_s(
    probability: float, multiplier: float, scale: float
) -> None:
    ours = _private_round(probability, multiplier, scale)
    theirs = library.from_gaussian_mechanism(
        multiplier, value_discretization_interval=ours.interval, sampling_prob=probability
    )
    for direction in ("_pmf_remove", "_pmf_add"):
        mine, other = (
            getattr(one, direction).to_dense_pmf() for one in (ours.distribution, theirs)
        )
        assert mine._lower_loss == other._lower_loss
        np.testing.assert_allclose(mine._probs, other._probs, rtol=0, atol=1e-10)
        assert mine._infinity_mass == pytest.approx(other._infinity_mass, rel=1e-6, abs=1e-30)
    mine, other = (one.self_compose(100) for one in (ours.distribution, theirs))
    figures = [one.get_epsilon_for_delta(1e-6) for one in (mine, other)]
    assert figures[0] == pytest.approx(figures[1], rel=1e-6)


@pytest.mark.parametrize(("probability", "multiplier"), [(0.5, 0.033), (1e-3, 0.033), (1e-17, 1.0)])
def test_nothing_overflows_far_from_what_can_happen(probability: float, multiplier: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = _private_round(probability, multiplier, 10.0)
    for pmf in (losses.distribution._pmf_remove, losses.distribution._pmf_add):
        assert np.isfinite(pmf.to_dense_pmf()._probs).all()


def test_losses_on_another_grid_keep_their_infinite_one() -> None:
    pmf = pld_pmf.DensePLDPmf(0.1, -1, np.array([0.2, 0.3, 0.4]), 0.1, True)
    losses = _Losses(library.PrivacyLossDistribution(pmf), 0.1)
    coarse = losses.on_grid(0.15)._pmf_remove.to_dense_pmf()
    assert coarse._infinity_mass == 0.1
    assert (coarse._lower_loss, coarse._probs.tolist()) == (0, [0.5, 0.4])


@pytest.mark.parametrize(("probability", "multiplier"), [*SAMPLED[:5], (0.028, 7.0), (1e-3, 1.14)])
def test_a_round_s_divergences_are_not_below_forty_digits(
    probability: float, multiplier: float
) -> None:
    """By less than what is paid from delta for a round's rounding, or 1e-12 of them."""
    losses = _private_round(probability, multiplier, 1.0)
    generator = np.random.default_rng(0)
    for removes, pmf in (
        (True, losses.distribution._pmf_remove),
        (False, losses.distribution._pmf_add),
    ):
        dense = pmf.to_dense_pmf()
        masses = dense._probs.astype(np.longdouble)
        for point in generator.integers(0, dense.size, 20):
            gaps = np.arange(dense.size - point) * np.longdouble(losses.interval)
            ours = float((masses[point:] * -np.expm1(-gaps)).sum()) + dense._infinity_mass
            epsilon = int(dense._lower_loss + point) * losses.interval
            exact = float(_divergence(probability, multiplier, epsilon, removes))
            assert ours >= exact * (1 - 1e-12) - _ROUNDING


def _divergence(probability: float, multiplier: float, epsilon: float, removes: bool) -> mpmath.mpf:
    """Return the hockey-stick divergence by the densities' own crossing, to forty digits."""
    with mpmath.workdps(40):
        q, z = mpmath.mpf(probability), mpmath.mpf(multiplier)
        ratio = mpmath.exp(epsilon if removes else -epsilon)
        if ratio <= 1 - q:  # of the mixture to the plain one, everywhere
            return 1 - mpmath.exp(epsilon) if removes else mpmath.mpf(0)
        crossing = mpmath.log((ratio - (1 - q)) / q) * z**2 + mpmath.mpf(1) / 2
        plain = mpmath.ncdf(crossing / z)
        mixture = (1 - q) * plain + q * mpmath.ncdf((crossing - 1) / z)
        if removes:
            return 1 - mixture - mpmath.exp(epsilon) * (1 - plain)
        return plain - mpmath.exp(epsilon) * mixture
