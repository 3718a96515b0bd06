"""Figures with a source are stated to their last printed digit."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy.stats import binom, norm

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy import composition
from distributed_privrl.privacy.accounting import coarse_figures, cross_check, epsilon
from distributed_privrl.privacy.atoms import atoms_of_every_choice
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    BoundedRangeEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
)
from distributed_privrl.privacy.units import Relation

NULL = Relation.REPLACE_WITH_NULL


def rounds(q, z, count):
    return PoissonGaussianEvent(sampling_probability=q, noise_multiplier=z, count=count)


def cost(*events, delta=1e-6, **options):
    return epsilon(events, **{"delta": delta, "relation": NULL, **options})


PRIMORL_TABLE_2 = [
    (0.35, 7000, 19.51, 22.94),
    (0.52, 7000, 4.07, 5.13),
    (0.25, 7000, 69.60, 82.03),
    (0.45, 7000, 7.20, 8.76),
    (0.25, 10000, 83.16, 95.31),
    (0.38, 10000, 16.01, 18.86),
]


@pytest.mark.parametrize(("multiplier", "count", "pld", "rdp"), PRIMORL_TABLE_2)
def test_the_noise_of_primorl_s_table_2(multiplier, count, pld, rdp):
    event = rounds(1e-3, multiplier, count)
    assert cost(event, delta=1e-5, certified=False) == pytest.approx(pld, rel=5e-4)
    assert cost(event, delta=1e-5, accountant="rdp") == pytest.approx(rdp, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize(("multiplier", "count", "pld", "rdp"), PRIMORL_TABLE_2)
def test_the_noise_of_primorl_s_table_2_certified(multiplier, count, pld, rdp):
    assert cost(rounds(1e-3, multiplier, count), delta=1e-5) == pytest.approx(pld, abs=0.006)


def test_the_noise_of_privorl_s_umaze():
    event = rounds(1.28e-4, 0.44, 574_000)
    assert cost(event, accountant="rdp") == pytest.approx(10.39, abs=0.006)
    assert cost(event) == pytest.approx(8.98, abs=0.006)


def test_five_epochs_of_poisson_rounds_are_not_five_epochs_of_fixed_batches():
    whole_set_five_times = GaussianEvent(noise_multiplier=0.44, count=5)
    assert cost(whole_set_five_times) > 20


@pytest.mark.parametrize(("multiplier", "expected"), [(41.90, 1.0), (22.14, 2.0), (11.86, 4.0)])
def test_the_noise_of_dp_rft(multiplier, expected):
    event = GaussianEvent(noise_multiplier=multiplier, count=100)
    for accountant in ("gdp", "pld"):
        assert cost(event, delta=1.182e-6, accountant=accountant) == pytest.approx(
            expected, rel=5e-4
        )


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
def test_zcdp_to_dp_is_a_quarter_to_a_third_lower_than_the_printed_conversion(rho):
    exact = cost(GaussianEvent(noise_multiplier=1 / math.sqrt(2 * rho)), delta=1e-3)
    printed = rho + 2 * math.sqrt(rho * math.log(1e3))
    assert 0.225 <= 1 - exact / printed <= 0.33


def test_the_reference_run():
    event = rounds(1e-3, 0.789, 10_000)
    certified = cost(event)
    assert certified == pytest.approx(0.9939, abs=5e-4)
    assert certified < cost(event, certified=False) < 1.015 * certified
    assert cost(rounds(1e-3, 0.992, 10_000), accountant="rdp") == pytest.approx(1, abs=5e-3)


def test_the_grid_follows_the_loss_of_one_step():
    event = rounds(1e-3, 20.0, 100_000)
    assert cost(event) == pytest.approx(0.0552, abs=5e-5)
    assert cost(event, certified=False) < 0.058
    naive = PLDAccountant(value_discretization_interval=1e-4)
    naive.compose(dp.PoissonSampledDpEvent(1e-3, dp.GaussianDpEvent(20.0)), 100_000)
    assert naive.get_epsilon(1e-6) == pytest.approx(0.0725, abs=5e-5)


def hockey_stick(probabilities, others, value):
    return float(np.maximum(probabilities - math.exp(value) * others, 0).sum())


@pytest.mark.parametrize(("q", "z"), [(0.2, 1.0), (0.05, 0.6), (0.9, 3.0)])
def test_one_private_round_against_numerical_integration(q, z):
    delta = 1e-3
    grid = np.linspace(-12 * z - 1, 12 * z + 1, 2_000_001)
    without = norm.pdf(grid, scale=z)
    mixture = (1 - q) * without + q * norm.pdf(grid, loc=1, scale=z)
    step = grid[1] - grid[0]
    value = cost(rounds(q, z, 1), delta=delta)

    def worst(at):
        return step * max(hockey_stick(mixture, without, at), hockey_stick(without, mixture, at))

    assert worst(value) <= delta * (1 + 1e-6)
    assert worst(value - 2e-3) > delta


def test_two_discrete_laplace_releases_against_enumeration():
    parameter, shift, delta = 0.2, 3, 0.2
    outcomes = np.arange(-120, 121)
    mass = np.tanh(parameter / 2) * np.exp(-parameter * np.abs(outcomes))
    moved = np.tanh(parameter / 2) * np.exp(-parameter * np.abs(outcomes - shift))
    both, both_moved = np.outer(mass, mass), np.outer(moved, moved)
    event = DiscreteLaplaceEvent(parameter=parameter, sensitivity=shift, count=2)
    value = cost(event, delta=delta)
    assert hockey_stick(both, both_moved, value) <= delta * (1 + 1e-9)
    assert hockey_stick(both, both_moved, value - 1e-6) > delta
    # One coordinate that moves by 3 is worse than three that move by 1.
    split = DiscreteLaplaceEvent(parameter=parameter, sensitivity=1, count=6)
    assert cost(split, delta=delta) < value


def test_discrete_laplace_uses_exact_atoms():
    event = DiscreteLaplaceEvent(parameter=2.0, sensitivity=1, count=20)
    assert cost(event) == pytest.approx(40, abs=1e-4)
    assert cost(event, delta=0.0) == 40
    assert cost(LaplaceEvent(noise_multiplier=0.5, count=20)) == pytest.approx(39.67, abs=0.006)


def test_a_very_large_integer_sensitivity_is_bounded_from_above():
    event = DiscreteLaplaceEvent(parameter=1e-7, sensitivity=10**6, count=20)
    smooth = cost(LaplaceEvent(noise_multiplier=10.0, count=20))
    assert smooth <= cost(event) <= 2.0


def test_pure_atoms_against_the_binomial_formula():
    value, count, delta = 0.02, 100, 1e-6
    total = cost(PureDpEvent(epsilon=value, count=count), delta=delta)
    plus = np.arange(count + 1)
    losses = value * (2 * plus - count)
    masses = binom.pmf(plus, count, 1 / (1 + math.exp(-value)))

    def exact(at):
        return float((masses * np.maximum(-np.expm1(at - losses), 0)).sum())

    assert exact(total) <= delta
    assert exact(total - 1e-5) > delta
    assert cost(PureDpEvent(epsilon=value, count=count), delta=0.0) == pytest.approx(2.0)
    assert cost(PureDpEvent(epsilon=value), delta=1e-9) <= value


def test_atoms_of_different_kinds_compose():
    events = (
        rounds(1e-2, 1.5, 500),
        GaussianEvent(noise_multiplier=12.0),
        LaplaceEvent(noise_multiplier=20.0, count=2),
    )
    library = PLDAccountant()
    library.compose(dp.PoissonSampledDpEvent(1e-2, dp.GaussianDpEvent(1.5)), 500)
    library.compose(dp.GaussianDpEvent(12.0))
    library.compose(dp.LaplaceDpEvent(20.0), 2)
    assert cost(*events) == pytest.approx(library.get_epsilon(1e-6), rel=2e-3)
    more = cost(
        *events, PureDpEvent(epsilon=0.05), DiscreteLaplaceEvent(parameter=0.05, sensitivity=1)
    )
    assert cost(*events) < more < cost(*events) + 0.1 + 1e-3


def test_different_pure_atoms_round_up_to_the_common_grid():
    first, second, delta = 0.45678, 0.12345, 0.02
    losses = np.array([first + second, first - second, second - first, -first - second])
    masses = np.array([1, math.exp(-second), math.exp(-first), math.exp(-first - second)])
    masses /= masses.sum()
    value = cost(PureDpEvent(epsilon=first), PureDpEvent(epsilon=second), delta=delta)

    def exact(at):
        return float((masses * np.maximum(-np.expm1(at - losses), 0)).sum())

    assert exact(value) <= delta
    assert exact(value - 2.5e-4) > delta


def test_equal_events_count_as_one_event_with_the_sum():
    assert cost(rounds(0.01, 3.0, 300), rounds(0.01, 3.0, 700)) == cost(rounds(0.01, 3.0, 1000))
    assert cost(rounds(1.0, 2.0, 3)) == cost(GaussianEvent(noise_multiplier=2.0, count=3))
    assert cost(rounds(0.01, 1.0, 0)) == 0
    assert cost() == 0


def test_pld_is_never_above_rdp():
    for q, z, count in [(1e-4, 50.0, 10**6), (0.3, 30.0, 20), (1e-3, 2.0, 10**5)]:
        event = rounds(q, z, count)
        assert cost(event) <= cost(event, accountant="rdp")


def test_rounding_of_the_fourier_transform_is_paid_from_delta():
    count, multiplier, delta = 10_000, 100.0, 1e-12
    exact = dp.get_epsilon_gaussian(multiplier / math.sqrt(count), delta)
    library = privacy_loss_distribution.from_gaussian_mechanism(
        multiplier, value_discretization_interval=1 / multiplier / 20
    ).self_compose(count)
    assert library.get_epsilon_for_delta(delta) < exact
    assert cost(rounds(1 - 1e-9, multiplier, count), delta=delta) >= exact * (1 - 1e-8)


def test_rounding_of_renyi_divergences_is_no_perfect_privacy():
    q, z, count = 0.5, 1e9, 10**12
    library = RdpAccountant()
    library.compose(dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z)), count)
    assert library.get_epsilon(1e-6) == 0
    central_limit = dp.get_epsilon_gaussian(1 / (q * math.sqrt(count) / z), 1e-6)
    assert central_limit > 1e-3
    for accountant in ("pld", "rdp"):
        assert cost(rounds(q, z, count), accountant=accountant) >= central_limit


def test_noise_that_protects_nothing_gives_no_false_comfort():
    assert cost(rounds(0.5, 0.3, 100_000)) > 1e4
    assert cost(rounds(1e-3, 1e-3, 10)) > 1e4
    assert cost(GaussianEvent(noise_multiplier=1e-3)) > 1e4


def test_orders_that_the_library_leaves_out_are_no_news(capfd):
    assert cost(rounds(0.5, 0.8, 10), accountant="rdp") > 0
    assert "order" not in capfd.readouterr().err


def test_parallel_branches_cost_the_largest():
    small, large = GaussianEvent(noise_multiplier=4.0), GaussianEvent(noise_multiplier=2.0)
    parallel = ParallelEvent(branches=((small,), (large,), ()))
    assert cost(parallel) == cost(large)
    assert cost(parallel, small) == cost(large, small)
    nested = ParallelEvent(branches=((small, parallel), (small,)))
    assert cost(nested) == cost(small, large)


def test_which_branch_is_largest_may_depend_on_the_rest():
    pure = PureDpEvent(epsilon=1.0)
    gaussian = GaussianEvent(noise_multiplier=4.5)
    parallel = ParallelEvent(branches=((pure,), (gaussian,)))
    rest = GaussianEvent(noise_multiplier=1.0, count=4)
    assert cost(parallel, rest) == max(cost(pure, rest), cost(gaussian, rest))


def test_too_many_choices_of_branches_are_refused():
    parallel = ParallelEvent(branches=((), (GaussianEvent(noise_multiplier=9.0),)))
    with pytest.raises(ConfigError, match="choices"):
        cost(*[parallel] * 9)


def test_failures_are_paid_from_delta():
    event = rounds(0.01, 3.0, 100)
    failing = ApproximateDpEvent(epsilon=0.0, delta=1e-7, count=4)
    assert cost(event, failing) == cost(event, delta=6e-7)
    assert cost(event, failing, accountant="rdp") == pytest.approx(
        cost(event, delta=6e-7, accountant="rdp")
    )
    with pytest.raises(UnsafeError, match="does not cover"):
        cost(event, ApproximateDpEvent(epsilon=0.0, delta=1e-6, count=2))


def test_an_approximate_mechanism_is_randomised_response_that_may_leak():
    event = ApproximateDpEvent(epsilon=0.25, delta=1e-7, count=4)
    worst = privacy_loss_distribution.from_privacy_parameters(
        dp.pld.common.DifferentialPrivacyParameters(0.25, 1e-7), value_discretization_interval=0.25
    ).self_compose(4)
    assert cost(event) == pytest.approx(worst.get_epsilon_for_delta(1e-6), abs=1e-6)


def test_delta_zero_takes_pure_events_alone():
    laplace = LaplaceEvent(noise_multiplier=4.0, count=2)
    failing = ApproximateDpEvent(epsilon=0.25, delta=1e-6)
    assert cost(laplace, delta=0.0) == 0.5
    assert cost(laplace, failing, delta=1e-6) == 0.75
    assert cost(laplace, accountant="pure") == 0.5
    for accountant in ("pld", "rdp", "pure", "gdp"):
        with pytest.raises(ConfigError):
            cost(GaussianEvent(noise_multiplier=1.0), delta=0.0, accountant=accountant)


def test_accountants_refuse_what_they_cannot_take():
    selection = selected("poisson", None)
    with pytest.raises(ConfigError, match="pure"):
        cost(GaussianEvent(noise_multiplier=1.0), accountant="pure")
    with pytest.raises(ConfigError, match="gdp"):
        cost(rounds(0.1, 1.0, 1), accountant="gdp")
    with pytest.raises(ConfigError, match="rdp"):
        cost(selection)
    with pytest.raises(ConfigError, match="accountant"):
        cost(selection, accountant="moments")
    with pytest.raises(ConfigError, match="delta"):
        cost(selection, delta=1.0)


def test_replace_one_with_poisson_rounds_is_refused():
    for accountant in ("pld", "rdp"):
        with pytest.raises(UnsafeError, match="replace_one"):
            cost(rounds(0.1, 1.0, 1), relation=Relation.REPLACE_ONE, accountant=accountant)
        with pytest.raises(UnsafeError, match="replace_one"):
            cost(
                ParallelEvent(branches=((), (rounds(1.0, 1.0, 1),))),
                relation=Relation.REPLACE_ONE,
                accountant=accountant,
            )


def test_the_trap_of_dp_accounting_under_replace_one():
    relation = dp.NeighboringRelation.REPLACE_ONE
    figures = []
    for accountant in (PLDAccountant(relation), RdpAccountant(neighboring_relation=relation)):
        accountant.compose(dp.GaussianDpEvent(2.0))
        figures.append(accountant.get_epsilon(1e-5))
    assert figures == [pytest.approx(4.377, abs=6e-4), pytest.approx(2.166, abs=6e-4)]
    # Ours state the multiplier relative to the sensitivity under replace-one itself, so that the
    # doubled sensitivity is a halved multiplier, and both accountants agree on what is doubled.
    ours = GaussianEvent(noise_multiplier=1.0)
    plain = cost(ours, delta=1e-5, relation=Relation.REPLACE_ONE)
    renyi = cost(ours, delta=1e-5, relation=Relation.REPLACE_ONE, accountant="rdp")
    assert plain == pytest.approx(figures[0], abs=1e-3)
    assert figures[0] < renyi < 1.15 * figures[0]
    laplace = LaplaceEvent(noise_multiplier=2.0)
    assert cost(laplace, relation=Relation.REPLACE_ONE) == pytest.approx(0.5, abs=1e-4)


def selected(distribution, shape):
    return RepeatAndSelectEvent(
        distribution=distribution, shape=shape, mean=20, events=(rounds(0.01, 2.19, 2000),)
    )


@pytest.mark.parametrize(
    ("distribution", "shape", "expected"),
    [("negative_binomial", 1.0, 2.16), ("negative_binomial", 0.0, 1.77), ("poisson", None, 3.21)],
)
def test_private_selection_costs_less_than_releasing_every_trial(distribution, shape, expected):
    assert cost(selected(distribution, shape), accountant="rdp") == pytest.approx(
        expected, abs=0.006
    )
    assert cost(rounds(0.01, 2.19, 40_000), accountant="rdp") == pytest.approx(5.03, abs=0.006)


def test_selection_takes_counts_and_parallel_branches_but_no_failures():
    count = DiscreteLaplaceEvent(parameter=0.01, sensitivity=1)
    small, large = (GaussianEvent(noise_multiplier=z) for z in (9.0, 5.0))

    def selection(*events):
        event = RepeatAndSelectEvent(
            distribution="negative_binomial", shape=1.0, mean=5.0, events=events
        )
        return cost(event, accountant="rdp")

    assert selection(large) < selection(large, count) < selection(large) + 0.2
    assert selection(ParallelEvent(branches=((small,), (large,)))) == selection(large)
    with pytest.raises(ConfigError, match="approximate_dp"):
        selection(ApproximateDpEvent(epsilon=0.0, delta=1e-9))


def test_the_cross_check_speaks_or_says_why_not():
    figure = cross_check((rounds(0.01, 1.0, 100),), delta=1e-6, relation=NULL)
    assert figure.epsilon == cost(rounds(0.01, 1.0, 100), accountant="rdp")
    assert figure.reason is None
    assert cross_check((PureDpEvent(epsilon=1.0),), delta=0.0, relation=NULL).epsilon == 1.0
    silent = cross_check((GaussianEvent(noise_multiplier=1.0),), delta=0.0, relation=NULL)
    assert silent.epsilon is None
    assert "delta > 0" in silent.reason
    hopeless = cross_check((rounds(0.5, 1e-3, 10**9),), delta=1e-6, relation=NULL)
    assert hopeless.epsilon is None or hopeless.epsilon > 1e6
    atoms = (PureDpEvent(epsilon=0.3), DiscreteLaplaceEvent(parameter=2.0, sensitivity=1))
    bound = cross_check(atoms, delta=1e-6, relation=NULL).epsilon
    assert cost(*atoms) <= bound


@pytest.mark.parametrize("relation", [Relation.ADD_OR_REMOVE, Relation.POLICY_LEVEL])
def test_a_contribution_that_becomes_zero_costs_what_a_removed_one_does(relation):
    event = rounds(0.01, 2.0, 100)
    assert cost(event, relation=relation, certified=False) == cost(event, certified=False)


def test_parallel_branches_under_replace_one_are_sums_alone() -> None:
    """A unit that is replaced may leave one branch and join another: half the cost in each."""
    sums = ParallelEvent(
        branches=((GaussianEvent(noise_multiplier=2.0),), (GaussianEvent(noise_multiplier=2.0),))
    )
    cost = epsilon([sums], delta=1e-6, relation=Relation.REPLACE_ONE)
    one = epsilon([GaussianEvent(noise_multiplier=2.0)], delta=1e-6, relation=Relation.REPLACE_ONE)
    assert cost == one
    choices = ParallelEvent(branches=((PureDpEvent(epsilon=1.0),), (PureDpEvent(epsilon=1.0),)))
    with pytest.raises(UnsafeError, match="may change branches"):
        epsilon([choices], delta=1e-6, relation=Relation.REPLACE_ONE)
    assert epsilon([choices], delta=1e-6, relation=Relation.REPLACE_WITH_NULL) <= 1.0


def test_coarse_figures_bound_the_certified_ones_from_above():
    """What a plan shows is never less than what a run costs, and near it."""
    for event in (
        rounds(0.01, 0.8, 500),
        rounds(0.25, 5.0, 1000),
        GaussianEvent(noise_multiplier=2.0, count=3),
    ):
        certified = cost(event)
        with coarse_figures():
            coarse = cost(event)
        assert certified <= coarse <= 1.02 * certified
        assert cost(event) == certified


@pytest.mark.parametrize(
    "events",
    [
        (rounds(1e-3, 0.25, 7000),),
        (rounds(0.01, 1.1, 500), LaplaceEvent(noise_multiplier=3.0, count=2)),
        (rounds(0.5, 20.0, 3), BoundedRangeEvent(epsilon=0.2, count=4)),
        (LaplaceEvent(noise_multiplier=0.2, count=3), BoundedRangeEvent(epsilon=0.2, count=4)),
        (
            GaussianEvent(noise_multiplier=40.0, count=1),
            LaplaceEvent(noise_multiplier=90.0, count=1),
        ),
    ],
)
def test_the_orders_beside_the_best_of_a_few_are_enough(events):
    """The least epsilon over every order of dp_accounting is among them."""
    (atoms,) = atoms_of_every_choice(events, NULL)
    accountant = RdpAccountant(None, dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp.ComposedDpEvent(composition._renyi_events(atoms)))
    for delta in (1e-9, 1e-5, 0.05):
        least = accountant.get_epsilon(delta)
        assert cost(*events, delta=delta, accountant="rdp") == pytest.approx(least, rel=1e-12)
