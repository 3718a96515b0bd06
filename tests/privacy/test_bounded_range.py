"""Choices of bounded range: the closed form, what dominates them, and what they cost together.

That `ExponentialSelection` draws what it is charged for is in `tests/gates/selections.py`.
"""

import math
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import pld_pmf, privacy_loss_distribution
from scipy.optimize import brentq, minimize_scalar

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.accounting import cross_check, epsilon
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    GaussianEvent,
    ParallelEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
    drawn_from_floats,
)
from distributed_privrl.privacy.loss_distributions import _bounded_range
from distributed_privrl.privacy.units import Relation

RANGES = (1e-6, 0.05, 0.3, 1.0, 4.0)
RANGE = pytest.mark.parametrize("value", RANGES)


def choices(value, count=1):
    return BoundedRangeEvent(epsilon=value, count=count)


def cost(*events, delta=1e-5, **options):
    options = {"relation": Relation.REPLACE_WITH_NULL, **options}
    return epsilon(events, delta=delta, **options)


def profile(at, value):
    """Return the largest divergence at ``at`` of any choice of that range."""
    inside = np.expm1((np.clip(at, -value, value) - value) / 2) ** 2 / -np.expm1(-value)
    return np.where(at < -value, -np.expm1(at), inside)


def worst_pair(value, largest):
    """Return the two losses, and their odds under the first neighbour, with ``largest`` = t."""
    odds = math.exp(largest) * math.expm1(value - largest) / math.expm1(value)
    return np.array([largest, largest - value]), np.array([odds, 1 - odds])


def divergence(at, losses, odds):
    return float((odds * np.maximum(-np.expm1(at - losses), 0)).sum())


@RANGE
def test_the_closed_form_is_the_largest_divergence_over_all_ranges(value):
    largest = np.linspace(0, value, 2001)
    for at in np.linspace(-1.2 * value, 1.2 * value, 25):
        best = max(divergence(at, *worst_pair(value, t)) for t in largest)
        exact = float(profile(at, value))
        assert best <= exact + 1e-12
        assert best >= exact - 1e-6 * value


@RANGE
def test_the_pair_that_dominates_has_the_density_of_the_proof_and_is_its_own_reverse(value):
    losses = np.linspace(-value, value, 200_001)
    density = np.exp(losses / 2) / (4 * math.sinh(value / 2))
    assert np.trapezoid(density, losses) == pytest.approx(1, rel=1e-6)
    for at in np.linspace(-value, value, 9):
        above = np.maximum(-np.expm1(at - losses), 0)
        assert np.trapezoid(density * above, losses) == pytest.approx(
            float(profile(at, value)), abs=1e-6 * value
        )
        reverse = 1 - math.exp(at) * (1 - float(profile(-at, value)))
        assert reverse == pytest.approx(float(profile(at, value)), abs=1e-12)


@RANGE
def test_the_certified_distribution_is_above_the_closed_form_and_within_a_hundredth(value):
    losses = _bounded_range(value, 1.0)
    pmf = losses.distribution._pmf_remove.to_dense_pmf()
    assert losses.interval <= 1e-4
    assert pmf._probs.sum() == pytest.approx(1, abs=1e-14)
    for at in np.linspace(-1.1 * value, 0.8 * value, 40):
        ours, exact = losses.distribution.get_delta_for_epsilon(at), float(profile(at, value))
        assert exact * (1 - 1e-9) - 1e-15 <= ours <= exact * 1.01 + 1e-15
    for delta in (0.5 * math.tanh(value / 4), 0.01 * math.tanh(value / 4)):
        mine = losses.distribution.get_epsilon_for_delta(delta)
        exact = value + 2 * math.log1p(-math.sqrt(delta * -math.expm1(-value)))
        assert exact - 1e-12 <= mine <= exact + 0.01 * value


@pytest.mark.parametrize("value", RANGES[1:])
def test_the_masses_are_what_connecting_the_dots_gives(value):
    losses = _bounded_range(value, 10.0)
    pmf = losses.distribution._pmf_remove.to_dense_pmf()
    steps = -pmf._lower_loss
    deltas = profile(np.arange(-steps, steps + 1) * losses.interval, value)
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        losses.interval, -steps, steps, np.clip(deltas, 0, 1)
    ).to_dense_pmf()
    np.testing.assert_allclose(pmf._probs, theirs._probs, rtol=0, atol=1e-12)


def exponential(scores, scale):
    weights = np.exp((np.array(scores) - max(scores)) / scale)
    return weights / weights.sum()


@pytest.mark.parametrize(("candidates", "sensitivity"), [(2, 1), (3, 1), (3, 2), (4, 1)])
@pytest.mark.parametrize("scale", [0.7, 5.0])
def test_exponential_mechanisms_stay_within_range_and_profile(candidates, sensitivity, scale):
    """All moves of the scores by D at most, from scores that are near and far apart."""
    value, seen = 2 * sensitivity / scale, 0.0
    points = np.linspace(-value, value, 15)
    bound = profile(points, value)
    for scores in ((0,) * candidates, tuple(range(candidates)), (9, *[0] * (candidates - 1))):
        first = exponential(scores, scale)
        for moves in product(range(-sensitivity, sensitivity + 1), repeat=candidates):
            second = exponential(np.add(scores, moves), scale)
            losses = np.log(first / second)
            assert np.ptp(losses) <= value * (1 + 1e-12)
            seen = max(seen, np.ptp(losses))
            below = [divergence(at, losses, first) for at in points]
            assert (below <= bound + 1e-12).all()
    assert seen == pytest.approx(value, rel=1e-9)


def adaptive(at, value, grid, rest):
    """Return the divergence of a choice whose range is the worst, then whatever ``rest`` gives."""
    pairs = [worst_pair(value, t) for t in grid]
    return max(odds @ [rest(at - loss) for loss in losses] for losses, odds in pairs)


@pytest.mark.parametrize("value", [0.3, 1.0])
def test_two_choices_whose_second_range_depends_on_the_first_answer_are_dominated(value):
    grid = np.linspace(0, value, 101)
    two = _bounded_range(value, 1.0).repeated(2).distribution
    for at in np.linspace(-value, 1.9 * value, 12):
        worst = adaptive(at, value, grid, lambda x: float(profile(x, value)))
        assert worst <= two.get_delta_for_epsilon(at) + 1e-12


@RANGE
@pytest.mark.parametrize("order", [1.5, 2.0, 8.0, 64.0])
def test_renyi_divergences_of_all_ranges_are_within_those_of_zcdp(value, order):
    for largest in np.linspace(0, value, 41)[1:-1]:
        losses, odds = worst_pair(value, largest)
        moment = np.log(odds @ np.exp((order - 1) * (losses - value))) + (order - 1) * value
        assert moment / (order - 1) <= min(value, order * value**2 / 8) + 1e-12


def test_thirty_two_choices_cost_half_of_what_they_would_as_pure_atoms():
    event = choices(0.3, 32)
    pure = cost(PureDpEvent(epsilon=0.3, count=32))
    concentrated = cost(event, accountant="rdp")
    assert pure == pytest.approx(7.62, abs=0.006)
    assert concentrated == pytest.approx(3.92, abs=0.006)
    assert concentrated == pytest.approx(zcdp_to_dp(32 * 0.3**2 / 8, 1e-5), rel=2e-3)
    together = cost(event)
    assert together <= concentrated
    losses, odds = worst_pair(0.3, 0.15)
    assert together >= composed_pairs(losses, odds, 32).get_epsilon_for_delta(1e-5)


def composed_pairs(losses, odds, count):
    """Return the distribution of ``count`` choices of one range, which holds in no other."""
    dense = pld_pmf.DensePLDPmf(losses[0], -1, np.array([odds[1], 0, odds[0]]), 0.0, True)
    return privacy_loss_distribution.PrivacyLossDistribution(dense).self_compose(count)


def test_choices_among_discrete_gaussians_are_cheaper_by_pld_than_by_renyi():
    """With a tenth of the loss in the choices, as in AIM; one fixed range bounds it from below."""
    noise = DiscreteGaussianEvent(noise_multiplier=3.0, sensitivity=2.0**20, count=6)
    few = choices(0.08, 50)
    both, renyi = cost(noise, few), cost(noise, few, accountant="rdp")
    assert cost(noise) < both < 0.97 * renyi
    gaussian = privacy_loss_distribution.from_gaussian_mechanism(
        3.0 / math.sqrt(6), value_discretization_interval=1e-4
    )
    _, odds = worst_pair(0.08, 0.04)
    dense = np.zeros(801)
    dense[[-1, 0]] = odds
    pair = privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(1e-4, -400, dense, 0.0, True)
    )
    single = gaussian.compose(pair.self_compose(50)).get_epsilon_for_delta(1e-5)
    assert single * (1 - 1e-4) <= both <= 1.025 * single


def test_choices_of_different_ranges_compose():
    apart = cost(choices(0.2, 10), choices(0.5, 3), GaussianEvent(noise_multiplier=2.0))
    assert apart <= cost(choices(0.5, 13), GaussianEvent(noise_multiplier=2.0))
    assert apart >= cost(choices(0.2, 13), GaussianEvent(noise_multiplier=2.0))


def test_one_choice_costs_its_range_at_most_and_that_at_delta_zero():
    assert cost(choices(0.5), delta=0.0) == 0.5
    assert cost(choices(0.5, 3), accountant="pure") == 1.5
    assert 0.49 < cost(choices(0.5), delta=1e-6) <= 0.5
    assert cost(choices(50.0), accountant="rdp") == pytest.approx(50, rel=1e-3)
    exact = 1 + 2 * math.log1p(-math.sqrt(0.05 * -math.expm1(-1.0)))
    assert exact <= cost(choices(1.0), delta=0.05) <= exact + 1e-4


def zcdp_to_dp(rho, delta):
    """Return AIM's conversion (Canonne, Kamath and Steinke 2020, proposition 12)."""

    def at(log_order):
        order = 1 + math.exp(log_order)
        return rho * order + math.log(1 / (order * delta)) / (order - 1) + math.log1p(-1 / order)

    return minimize_scalar(at, bounds=(-7, 12), method="bounded", options={"xatol": 1e-9}).fun


@pytest.mark.parametrize(("total", "delta"), [(1.0, 1e-9), (4.0, 1e-5), (10.0, 1e-6)])
def test_a_run_of_aim_costs_what_aim_s_own_conversion_says(total, delta):
    rounds, alpha = 176, 0.9
    rho = brentq(lambda value: zcdp_to_dp(value, delta) - total, 1e-6, 50)
    chosen = choices(math.sqrt(8 * (1 - alpha) * rho / rounds), rounds)
    measured = DiscreteGaussianEvent(
        noise_multiplier=math.sqrt(rounds / (2 * alpha * rho)), sensitivity=2.0**20, count=rounds
    )
    assert cost(chosen, measured, delta=delta, accountant="rdp") == pytest.approx(total, rel=0.01)
    assert cost(chosen, measured, delta=delta) < total


def test_failures_are_paid_from_delta_and_selections_take_choices():
    failing = ApproximateDpEvent(epsilon=0.0, delta=4e-6)
    assert cost(choices(0.3, 8), failing) == cost(choices(0.3, 8), delta=6e-6)
    runs = RepeatAndSelectEvent(
        distribution="negative_binomial", shape=1.0, mean=5.0, events=(choices(0.1, 10),)
    )
    assert cost(choices(0.1, 10), accountant="rdp") < cost(runs, accountant="rdp") < 3
    with pytest.raises(ConfigError, match="rdp"):
        cost(runs)
    figure = cross_check((choices(0.3, 8),), delta=1e-5, relation=Relation.REPLACE_WITH_NULL)
    assert figure.epsilon == cost(choices(0.3, 8), accountant="rdp")


def test_choices_have_no_parallel_form_where_a_unit_may_change_branches():
    parallel = ParallelEvent(branches=((choices(0.3),), (choices(0.2),)))
    assert cost(parallel) == cost(choices(0.3))
    with pytest.raises(UnsafeError, match="bounded_range"):
        cost(parallel, relation=Relation.REPLACE_ONE)
    assert cost(choices(0.3), relation=Relation.REPLACE_ONE) == cost(choices(0.3))


def test_choices_are_drawn_exactly():
    assert not drawn_from_floats([choices(0.3, 2)])
    assert drawn_from_floats([choices(0.3), GaussianEvent(noise_multiplier=1.0)])


@pytest.mark.parametrize("value", [1e-18, 1e-9, 300.0, 1e9])
def test_no_range_over_or_underflows(value):
    for count in (1, 1000):
        assert 0 <= cost(choices(value, count)) <= value * count


def test_rounding_is_paid_from_delta():
    """So many choices that their rounding uses up half of delta are left to Renyi DP; fewer not."""
    noise, delta = GaussianEvent(noise_multiplier=1.0), 1e-11
    for count, left in ((3_000, False), (10_000, True)):
        events = (noise, choices(1e-3, count))
        assert (cost(*events, delta=delta) == cost(*events, delta=delta, accountant="rdp")) is left
