"""Penalties and error bounds against the paper's formulas, written out."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import laplace, norm

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.pessimism import Pessimism, Uncertainty
from distributed_privrl.methods.value_iteration.sensitivity import tabular_sensitivities
from distributed_privrl.methods.value_iteration.step_noise import Release, StepNoise
from distributed_privrl.privacy.units import Relation

H, S, A = 20, 10, 4
SIZE = Uncertainty(horizon=H, states=S, actions=A, successors=S, releases=H, reward_width=1.0)
DIMENSION = S * A * (S + 1)
STATED = tabular_sensitivities(Relation.REPLACE_ONE, horizon=H)
FAILURE, RHO = 0.05, 0.8
THEORY = Pessimism(failure_probability=FAILURE)


def release_of(noise: StepNoise, dimension: int = DIMENSION) -> Release:
    sensitivity = STATED.l1 if noise.law == "laplace" else STATED.l2
    return noise.release(sensitivity=sensitivity, dimension=dimension)


def test_the_gaussian_error_is_the_papers():
    error = THEORY.count_error(release_of(STATED.gaussian(RHO)), SIZE)
    paper = 4 * math.sqrt(H * math.log(4 * H * S**2 * A / FAILURE) / RHO)
    assert error == pytest.approx(paper, rel=3e-5)
    assert THEORY.count_error(None, SIZE) == 0


def test_the_laplace_error_is_its_union_bound():
    error = THEORY.count_error(release_of(STATED.laplace(2.0)), SIZE)
    assert error == pytest.approx(
        2 * (4 * H / 2.0) * math.log(2 * H * S**2 * A / FAILURE), rel=3e-5
    )


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
@pytest.mark.parametrize("estimated_reward", [False, True])
@pytest.mark.parametrize(("states", "releases"), [(1, 1), (1, H), (S, H), (S, 1)])
def test_all_noise_stays_below_half_the_error_and_not_by_much(
    kind, estimated_reward, states, releases
):
    size = replace(
        SIZE,
        states=states,
        successors=states,
        releases=releases,
        estimated_reward=estimated_reward,
    )
    dimension = states * A * (states + 1 + estimated_reward)
    release = release_of(getattr(STATED, kind)(RHO), dimension)
    half = THEORY.count_error(release, size) / 2

    def failure(bound: float) -> float:
        if kind == "gaussian":
            tail = 2 * norm.sf(bound, scale=release.standard_deviation)
        else:
            tail = 2 * laplace.sf(bound, scale=release.scale)
        return -math.expm1(dimension * releases * math.log1p(-tail))

    assert failure(half) <= FAILURE < failure(0.8 * half)


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_the_error_may_be_some_deviations(kind):
    practical = replace(THEORY, noise_deviations=2.5)
    release = release_of(getattr(STATED, kind)(RHO))
    factor = math.sqrt(2) if kind == "laplace" else 1.0
    spread = release.noise_multiplier * release.sensitivity * factor
    assert practical.count_error(release, SIZE) == pytest.approx(5 * spread, rel=3e-5)


VARIANCES, TOTALS = np.array([0.0, 2.0, 3.0, 5.0]), np.array([500.0, 400.0, 90.0, 100.0])
IOTA = math.log(H * S * A / FAILURE)


def penalties(pessimism: Pessimism, *, error: float, size: Uncertainty = SIZE, steps_left: int = 3):
    return pessimism.penalties(VARIANCES, TOTALS, error=error, size=size, steps_left=steps_left)


def test_bernstein_is_line_five():
    n = TOTALS[:2]
    expected = math.sqrt(2) * np.sqrt(VARIANCES[:2] * IOTA / (n - 100))
    expected += 16 * S * H * 100 * IOTA / n
    # A count that is not above E is not trusted: C H.
    assert penalties(THEORY, error=100.0) == pytest.approx([*expected, 2.0 * H, 2.0 * H])


def test_hoeffding_is_the_papers():
    n = TOTALS[:2]
    expected = math.sqrt(2) * H * np.sqrt(IOTA / (n - 100)) + 16 * S * H * 100 * IOTA / n
    hoeffding = replace(THEORY, kind="hoeffding")
    assert penalties(hoeffding, error=100.0) == pytest.approx([*expected, 2.0 * H, 2.0 * H])


def test_without_noise_it_is_apvis():
    printed = replace(THEORY, variance_constant=2.0)
    expected = 2 * np.sqrt(VARIANCES * IOTA / TOTALS) + 14 / 3 * H * IOTA / TOTALS
    assert penalties(printed, error=0.0) == pytest.approx(expected)
    hoeffding = replace(THEORY, kind="hoeffding")
    assert penalties(hoeffding, error=0.0) == pytest.approx(np.sqrt(2 * IOTA / TOTALS) * H)


def test_penalties_scale_with_the_rewards():
    wide = replace(SIZE, reward_width=7.0)
    scaled = THEORY.penalties(VARIANCES * 49, TOTALS, error=9.0, size=wide, steps_left=3)
    assert scaled == pytest.approx(7 * penalties(THEORY, error=9.0))


def test_an_estimated_reward_costs_its_largest_variance():
    more = penalties(THEORY, error=9.0, size=replace(SIZE, estimated_reward=True))
    extra = math.sqrt(2) * np.sqrt(0.25 * IOTA / (TOTALS - 9.0))
    assert more - penalties(THEORY, error=9.0) == pytest.approx(extra)


def test_practical_penalties_have_no_union_bounds_in_the_second_term():
    practical = Pessimism.preset("practical")
    practical = replace(practical, failure_probability=FAILURE, sampling_constant=0.0)
    c1, c2 = practical.variance_constant, practical.privacy_constant
    expected = c1 * np.sqrt(VARIANCES * IOTA / (TOTALS - 9)) + c2 * 9 * 3 / TOTALS
    assert penalties(practical, error=9.0) == pytest.approx(expected)
    arrival = replace(SIZE, random_reward=True)
    more = penalties(practical, error=9.0, size=arrival) - expected
    assert more == pytest.approx(c2 * 9 / TOTALS)
    theory = Pessimism.preset("theory", "hoeffding")
    assert theory == Pessimism(kind="hoeffding")
    assert (penalties(practical, error=9.0) < penalties(THEORY, error=9.0)).all()


def test_no_penalty():
    assert np.array_equal(penalties(Pessimism.preset("none"), error=100.0), np.zeros(4))


@pytest.mark.parametrize(
    "changed",
    [
        {"kind": "chernoff"},
        {"variance_constant": -1.0},
        {"privacy_constant": math.nan},
        {"sampling_constant": math.inf},
        {"unvisited_constant": 1.0},
        {"failure_probability": 0.0},
        {"noise_deviations": 0.0},
    ],
)
def test_impossible_constants_are_refused(changed):
    with pytest.raises(ConfigError, match=next(iter(changed))):
        Pessimism(**changed)


def test_unknown_presets_are_refused():
    with pytest.raises(ConfigError, match="preset"):
        Pessimism.preset("generous")  # type: ignore[arg-type]
