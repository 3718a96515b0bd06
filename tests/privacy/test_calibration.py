import math
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import (
    SUM_SLACK,
    PrivateRound,
    calibrate_private_round,
    calibrate_schedule,
    gaussian_multiplier,
    laplace_multiplier,
)
from distributed_privrl.privacy.events import (
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
)
from distributed_privrl.privacy.noise import SeededNoise, lattice_granularity
from distributed_privrl.privacy.units import PrivacyBudget, Relation

ROUND = PrivateRound(clip_norm=2.0, noise_multiplier=1.5, sampling_probability=0.1)


def budget(value=1.0, delta=1e-6, relation=Relation.REPLACE_WITH_NULL):
    return PrivacyBudget(epsilon=value, delta=delta, unit="trajectory", relation=relation)


def certified(*events, delta=1e-6, accountant="pld"):
    relation = Relation.REPLACE_WITH_NULL
    return epsilon(events, delta=delta, relation=relation, accountant=accountant)


def with_less_noise(mechanism, rounds, factor=1 - 1.1e-3):
    event = mechanism.event(rounds)
    return event.model_copy(update={"noise_multiplier": event.noise_multiplier * factor})


def test_the_reference_run():
    mechanism = calibrate_private_round(
        budget=budget(), sampling_probability=1e-3, rounds=10_000, clip_norm=1.0
    )
    assert mechanism.noise_multiplier == pytest.approx(0.788, abs=1.5e-3)
    assert certified(mechanism.event(10_000)) <= 1


@pytest.mark.parametrize(
    ("value", "probability", "rounds", "accountant"),
    [
        (0.5, 0.01, 3000, "pld"),
        (0.05, 1e-3, 100_000, "pld"),
        (2.0, 0.05, 200, "pld"),
        (8.0, 1.0, 50, "pld"),
        (1.0, 1e-3, 10_000, "rdp"),
    ],
)
def test_the_least_noise_on_the_safe_side(value, probability, rounds, accountant):
    mechanism = calibrate_private_round(
        budget=budget(value),
        sampling_probability=probability,
        rounds=rounds,
        clip_norm=1.0,
        accountant=accountant,
    )
    assert certified(mechanism.event(rounds), accountant=accountant) <= value
    assert certified(with_less_noise(mechanism, rounds), accountant=accountant) > value


def test_other_events_of_the_stage_are_paid_first():
    other = DiscreteLaplaceEvent(parameter=0.2, sensitivity=1)
    mechanism = calibrate_private_round(
        budget=budget(),
        sampling_probability=0.01,
        rounds=1000,
        clip_norm=1.0,
        other_events=(other,),
    )
    assert certified(mechanism.event(1000), other) <= 1
    assert certified(with_less_noise(mechanism, 1000), other) > 1


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"rounds": 0}, ConfigError, "rounds"),
        ({"rounds": -5}, ConfigError, "rounds"),
        ({"sampling_probability": 0.0}, ConfigError, "sampling_probability"),
        ({"sampling_probability": 1.5}, ConfigError, "sampling_probability"),
        ({"clip_norm": 0.0}, ConfigError, "clip_norm"),
        ({"clip_norm": float("nan")}, ConfigError, "clip_norm"),
        ({"budget": budget(delta=0.0)}, ConfigError, "delta > 0"),
        ({"budget": budget(relation=Relation.REPLACE_ONE)}, UnsafeError, "replace_one"),
        ({"other_events": (GaussianEvent(noise_multiplier=1.0),)}, ConfigError, "nothing is left"),
        ({"accountant": "gdp"}, ConfigError, "gdp"),
    ],
)
def test_impossible_requests_are_refused(changed, error, message):
    arguments = {
        "budget": budget(),
        "sampling_probability": 0.01,
        "rounds": 100,
        "clip_norm": 1.0,
        **changed,
    }
    with pytest.raises(error, match=message):
        calibrate_private_round(**arguments)


class Spy(SeededNoise):
    """Counts draws and keeps what it was asked for."""

    def __init__(self):
        super().__init__(0)
        self.calls = []

    def add_gaussian(self, values, **arguments):
        self.calls.append(arguments)
        return super().add_gaussian(values, **arguments)


def test_a_round_draws_once_with_the_noise_that_its_event_states():
    source, dimension = Spy(), 640
    noisy = ROUND.add_noise(np.zeros(dimension), source, round_index=7)
    (call,) = source.calls
    event = ROUND.event(1)
    assert call["tag"] == 7
    assert call["standard_deviation"] / ROUND.sensitivity(dimension) == pytest.approx(
        event.noise_multiplier, rel=1e-15
    )
    energy = float((noisy**2).sum()) / (event.noise_multiplier * ROUND.clip_norm) ** 2
    assert chi2.ppf(5e-7, dimension) < energy < chi2.isf(5e-7, dimension)


@pytest.mark.parametrize("dimension", [1, 10, 6_460_000])
def test_rounding_of_sums_and_to_the_lattice_is_inside_the_sensitivity(dimension):
    granularity = lattice_granularity(ROUND.clip_norm, dimension)
    expected = 2.0 * (1 + SUM_SLACK) + math.sqrt(dimension) * granularity
    assert ROUND.sensitivity(dimension) == expected
    assert ROUND.sensitivity(dimension) <= 2.0 * (1 + SUM_SLACK + 2.0**-20)
    exact = replace(ROUND, sum_slack=0.0)
    assert exact.sensitivity(dimension) == 2.0 + math.sqrt(dimension) * granularity


def test_two_neighbouring_rounded_sums_stay_within_the_sensitivity():
    generator = np.random.Generator(np.random.Philox(key=1))
    dimension = 50
    granularity = lattice_granularity(ROUND.clip_norm, dimension)
    for _ in range(200):
        total = generator.normal(size=dimension) * 100
        unit = generator.normal(size=dimension)
        unit *= ROUND.clip_norm / np.linalg.norm(unit)
        rounded = [np.rint(v / granularity) * granularity for v in (total, total + unit)]
        assert np.linalg.norm(rounded[1] - rounded[0]) <= ROUND.sensitivity(dimension)


def test_the_noisy_sum_lies_on_the_lattice():
    noisy = ROUND.add_noise(np.linspace(-1, 1, 16), SeededNoise(0), round_index=0)
    cells = noisy / lattice_granularity(ROUND.clip_norm, 16)
    np.testing.assert_array_equal(cells, np.rint(cells))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"clip_norm": -1.0}, ConfigError),
        ({"noise_multiplier": 0.0}, ConfigError),
        ({"sampling_probability": 2.0}, ConfigError),
        ({"relation": Relation.REPLACE_ONE}, UnsafeError),
    ],
)
def test_rounds_refuse_impossible_values(changed, error):
    values = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sampling_probability": 0.1, **changed}
    with pytest.raises(error):
        PrivateRound(**values)


@pytest.mark.parametrize(("value", "expected"), [(1.0, 41.90), (2.0, 22.14), (4.0, 11.86)])
def test_gaussian_calibration_gives_the_figures_of_dp_rft(value, expected):
    multiplier = gaussian_multiplier(budget(value, 1.182e-6), 100)
    assert multiplier == pytest.approx(expected, abs=0.006)
    event = GaussianEvent(noise_multiplier=multiplier, count=100)
    cost = certified(event, delta=1.182e-6)
    assert value * (1 - 1e-6) < cost <= value


def test_gaussian_calibration_needs_a_delta():
    with pytest.raises(ConfigError, match="delta"):
        gaussian_multiplier(budget(delta=0.0))
    with pytest.raises(ConfigError, match="count"):
        gaussian_multiplier(budget(), 0)


def test_laplace_calibration_is_pure_without_a_delta_and_less_noisy_with_one():
    assert laplace_multiplier(budget(delta=0.0), 50) == 50
    composed = laplace_multiplier(budget(), 50)
    assert composed < 0.8 * 50
    assert 0.99 < certified(LaplaceEvent(noise_multiplier=composed, count=50)) <= 1
    assert laplace_multiplier(budget()) == 1


@pytest.mark.parametrize("count", [1, 3, 21])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_no_calibrated_release_is_a_rounding_error_above_its_budget(
    count: int, delta: float
) -> None:
    """A run that were could draw its noise, and never be settled."""
    for value in (5e-4, *(step / 100 for step in range(10, 800, 23)), 49.0):
        budget = PrivacyBudget(epsilon=value, delta=delta, unit="trajectory")
        event: Event = (
            LaplaceEvent(noise_multiplier=laplace_multiplier(budget, count), count=count)
            if delta == 0
            else GaussianEvent(noise_multiplier=gaussian_multiplier(budget, count), count=count)
        )
        cost = epsilon([event], delta=delta, relation=budget.relation)
        assert 0.999 * value < cost <= value


def adaptive_schedule(factor: float) -> list[Event]:
    """Eleven columns at once, then five times ten choices and one measurement.

    As in AIM, a tenth of the loss is in the choices.
    """
    columns = DiscreteGaussianEvent(noise_multiplier=2.0 * factor, sensitivity=11**0.5 * 2.0**20)
    choices = BoundedRangeEvent(epsilon=0.085 / factor, count=10)
    measured = DiscreteGaussianEvent(noise_multiplier=3.0 * factor, sensitivity=2.0**20)
    return [columns, *[choices, measured] * 5]


@pytest.mark.parametrize(("accountant", "delta"), [("pld", 1e-5), ("rdp", 1e-5), ("pld", 1e-9)])
def test_a_schedule_of_choices_and_measurements_has_the_least_noise(accountant, delta):
    kept = budget(4.0, delta)
    started = time.process_time()
    factor = calibrate_schedule(adaptive_schedule, kept, accountant)
    assert time.process_time() - started < 2

    def certified_at(value):
        return certified(*adaptive_schedule(value), delta=delta, accountant=accountant)

    assert certified_at(factor) <= 4.0 < certified_at(factor * (1 - 1.1e-3))


@pytest.mark.parametrize("value", [3e-4, 2e-3])
def test_a_schedule_is_calibrated_below_what_the_coarse_grid_resolves(value):
    factor = calibrate_schedule(adaptive_schedule, budget(value, 1e-7))
    cost = certified(*adaptive_schedule(factor), delta=1e-7)
    assert 0.98 * value < cost <= value


def test_privacy_loss_distributions_save_a_schedule_noise():
    factors = [calibrate_schedule(adaptive_schedule, budget(4.0, 1e-5), a) for a in ("pld", "rdp")]
    assert 0.93 * factors[1] < factors[0] < 0.97 * factors[1]


def test_a_schedule_of_choices_alone_needs_no_delta():
    factor = calibrate_schedule(
        lambda value: [BoundedRangeEvent(epsilon=1 / value, count=8)], budget(2.0, 0.0)
    )
    assert factor == pytest.approx(4.0, rel=1e-3)
    assert 8 / factor <= 2.0


def test_a_schedule_whose_fixed_part_exceeds_the_budget_is_refused():
    fixed = GaussianEvent(noise_multiplier=1.0)
    with pytest.raises(ConfigError, match="no factor"):
        calibrate_schedule(lambda value: [fixed, *adaptive_schedule(value)], budget(1.0))
