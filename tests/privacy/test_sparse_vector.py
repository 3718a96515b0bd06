import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.integrate import quad
from scipy.stats import binom, laplace

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy import sparse_vector
from distributed_privrl.privacy.accounting import epsilon as epsilon_of
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.events import (
    EVENTS,
    LONGEST_PREFIX,
    PREFIX_ROUNDING,
    Event,
    ParallelEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
    stable_prefix_epsilon,
    stable_prefix_failure,
)
from distributed_privrl.privacy.laplace_tails import wrong_answer
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.prefix_costs import (
    OVERFLOW_SHARE,
    Variant,
    draw_epsilon,
    margin_of,
    overflow_cost,
)
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes
from distributed_privrl.privacy.units import Relation
from tests.methods.expert.toy import stopping

M, P_MIN, L = 3000, 0.02, 200
DELTA = 0.9 / M


def made(**changes: object) -> StablePrefixes:
    values = {
        "epsilon": 7.5,
        "delta": DELTA,
        "experts": M,
        "minimum_probability": P_MIN,
        "draws": 25,
        "max_length": L,
    }
    return stable_prefixes(**{**values, **changes})  # type: ignore[arg-type]


def composed(one: StablePrefixes, draws: int | None = None, delta: float = DELTA) -> float:
    return epsilon_of(one.events(draws), delta=delta, relation=Relation.POLICY_LEVEL)


@pytest.mark.parametrize(
    ("draws", "paper", "pld", "monotone", "optimised"),
    [(25, 1360, 653, 486, 416), (100, 2819, 1406, 1028, 892)],
)
def test_thresholds_of_the_privacy_notes(
    draws: int, paper: int, pld: int, monotone: int, optimised: int
) -> None:
    """The figures, and the settings that give them.

    pld: the paper's split of 2 epsilon' and its tail bound at delta' = delta / (2 T L), epsilon' by
    PLD at the other half of delta. monotone: query noise of half the scale, the exact tail.
    """
    printed = made(variant="paper", draws=draws)
    assert printed.threshold == pytest.approx(paper, rel=1e-3)
    each = draw_epsilon(7.5, DELTA / 2, draws) / 2
    theta = -1 / math.expm1(-each) / P_MIN
    failure = DELTA / (2 * draws * L)
    assert theta + 4 / each * math.log(1 / failure) == pytest.approx(pld, rel=1e-3)
    assert theta + margin_of(failure, 2 / each, 2 / each) == pytest.approx(monotone, rel=5e-3)
    assert made(draws=draws).threshold == pytest.approx(optimised, rel=2e-3)


@pytest.mark.parametrize("variant", ["tight", "paper"])
@pytest.mark.parametrize("draws", [1, 25, 100])
def test_the_budget_is_kept_and_used(variant: str, draws: int) -> None:
    one = made(variant=variant, draws=draws)
    cost = composed(one)
    assert cost <= 7.5
    if variant == "tight":
        assert cost > 7.3
        fewer = composed(one, draws // 2)
        assert draws == 1 or fewer < cost
    failures = sum(event.delta * event.count for event in one.events() if event.kind != "pure_dp")
    assert failures == pytest.approx(draws * one.draw_failure + one.overflow)
    assert failures < 0.52 * DELTA


@pytest.mark.parametrize("draws", [1, 3, 25, 100])
def test_a_draws_epsilon_is_the_largest_that_composes(draws: int) -> None:
    """Against the exact hockey-stick divergence of composed randomised responses."""
    each = draw_epsilon(4.0, 1e-4, draws)

    def divergence(one: float) -> float:
        wins = np.arange(draws + 1)
        losses = (2 * wins - draws) * one
        masses = binom.pmf(wins, draws, 1 / (1 + math.exp(-one)))
        return float((masses * np.clip(1 - np.exp(4.0 - losses), 0, None)).sum())

    assert divergence(each) <= 1e-4 * (1 + 1e-6)
    assert divergence(each * 1.01) > 1e-4


@pytest.mark.parametrize("scales", [(1.0, 1.0), (1.0, 1.0 + 1e-7), (2.0, 4.0), (5.0, 0.3)])
@pytest.mark.parametrize("margin", [0.0, 0.7, 8.0])
def test_wrong_answers_are_exact(scales: tuple[float, float], margin: float) -> None:
    threshold, query = scales

    def density(z: float) -> float:
        return float(laplace.pdf(z, scale=threshold) * laplace.sf(margin + z, scale=query))

    expected = sum(
        quad(density, *ends, epsabs=1e-13, limit=200)[0]
        for ends in ((-90.0, -margin), (-margin, 0.0), (0.0, 90.0))
        if ends[0] < ends[1]
    )
    assert wrong_answer(margin, threshold, query) == pytest.approx(expected, rel=1e-6)
    if margin:
        found = margin_of(wrong_answer(margin, threshold, query), threshold, query)
        assert margin <= found * (1 + 1e-9)
        assert found == pytest.approx(margin, rel=1e-5)


@pytest.mark.parametrize("scales", [(0.3, 0.3), (1.0, 1.0), (2.0, 4.0), (5.0, 0.3), (40.0, 40.0)])
@pytest.mark.parametrize("margin", [0, 1, 2, 7, 90])
def test_discrete_noise_fails_no_oftener_at_two_steps_more(
    scales: tuple[float, float], margin: int
) -> None:
    """The law of the difference by convolution; one step more would not do for small margins."""
    points = np.arange(-4000, 4001)
    laws = [math.tanh(1 / (2 * b)) * np.exp(-np.abs(points) / b) for b in scales]
    difference = np.convolve(*laws)
    middle = len(difference) // 2

    def tail(least: int) -> float:
        return float(difference[middle + least :].sum())

    assert tail(margin + 2) <= wrong_answer(margin, *scales) * (1 + 1e-9)
    assert tail(margin) > wrong_answer(margin, *scales) * (1 - 1e-9)


@pytest.mark.parametrize("step", [2.0**-20, 0.25, 1.0])
def test_a_count_below_theta_is_as_far_from_the_threshold_as_its_failure_needs(
    step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whole steps, whatever rounding did to the two."""
    monkeypatch.setattr(sparse_vector, "STEP", step)
    asked: list[int] = []

    class Noted(SeededNoise):
        def add_discrete_laplace(self, values: np.ndarray, **options: float) -> np.ndarray:
            asked.extend(values.tolist())
            return super().add_discrete_laplace(values, **options)

    for epsilon in (1.0, 3.3, 7.5):
        one = made(epsilon=epsilon, draws=1)
        asked.clear()
        one.stable_steps(np.array([math.nextafter(one.stable_count, 0)]), Noted(0))
        threshold, count = asked
        assert (threshold - count - 2) * step >= one.margin


def pairs(common: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Counts of a set with one expert less, and with it, at most 1 apart; in any order."""
    found = []
    for low in (-12.0, -6.0, 0.0, 6.0):
        for last in (-20.0, 0.0, 20.0):
            fewer = np.array([low] * 30 + [last])
            moved = np.ones(31)
            found += [(fewer, fewer + moved), (fewer, fewer + np.append(moved[1:], 0))]
            found += [
                (fewer, fewer + np.linspace(1, 0, 31)),
                (fewer, fewer + (moved.cumsum() > 30)),
            ]
            if not common:
                found += [(fewer, fewer + np.append(side * moved[1:], -side)) for side in (1, -1)]
    return found


def losses(one: StablePrefixes, common: bool) -> tuple[float, float]:
    """Return the largest log ratios of the answers' laws: fewer over more, and more over fewer."""
    found = []
    for fewer, more in pairs(common):
        low, high = (stopping(one, one.threshold + counts) for counts in (fewer, more))
        seen = (low > 1e-11) & (high > 1e-11)
        found.append((np.log(low[seen] / high[seen]).max(), np.log(high[seen] / low[seen]).max()))
    adding, removing = (max(side) for side in zip(*found, strict=True))
    return float(adding), float(removing)


def custom(variant: str, threshold: float, query: float) -> StablePrefixes:
    queries = query if variant == "tight" else query / 2
    return StablePrefixes(
        variant=variant,  # type: ignore[arg-type]
        experts=M,
        minimum_probability=0.2,
        draws=1,
        max_length=40,
        epsilon_draw=0.5,
        epsilon_threshold=threshold,
        epsilon_query=query,
        margin=margin_of(1e-4, 1 / threshold, 1 / queries),
        failure=1e-4,
        release_pool=4,
    )


@pytest.mark.parametrize("step", [sparse_vector.STEP, 0.25])
@pytest.mark.parametrize(("threshold", "query"), [(0.5, 0.5), (0.2, 0.6), (0.7, 0.1)])
def test_answers_of_monotone_counts_cost_what_is_claimed(
    threshold: float, query: float, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ways: never more, and nearly as much, so that a scale that is too large fails too."""
    monkeypatch.setattr(sparse_vector, "STEP", step)
    one = custom("tight", threshold, query)
    adding, removing = losses(one, common=True)
    assert 0.9 * (threshold + query) < removing <= threshold + query + 1e-6
    assert 0.9 * query < adding <= query + 1e-6


def test_counts_that_move_both_ways_need_the_papers_noise() -> None:
    tight, paper = custom("tight", 0.5, 0.5), custom("paper", 0.5, 0.5)
    assert max(losses(tight, common=False)) > 1.3
    assert 0.9 < max(losses(paper, common=False)) <= 1.0 + 1e-6


def test_a_trajectory_fails_once_and_not_at_each_step() -> None:
    """Whatever the counts below theta are: they never grow, so the first of them decides."""
    one = replace(made(), max_length=4)
    theta = one.stable_count
    released = []
    for counts in ([theta] * 4, [theta + 60, theta, theta, theta], [theta, 9.0, 3.0, 1.0]):
        law = stopping(one, np.array(counts) - 1e-9)
        first = int(np.argmax(np.array(counts) <= theta))
        released.append(law[first + 1 :].sum())
    assert max(released) <= one.failure
    assert max(released) > 0.5 * one.failure
    assert made(variant="paper").draw_failure == L * made(variant="paper").failure


def test_the_draw_costs_what_lemma_5_1_says() -> None:
    one = made()
    count = one.least_count
    assert math.log(count / (count - 1)) == pytest.approx(one.epsilon_draw)
    assert one.stable_count * P_MIN >= count


@pytest.mark.parametrize(("draws", "pool", "experts"), [(6, 1, 40), (12, 2, 25), (14, 3, 20)])
def test_running_short_is_no_likelier_than_the_bound(draws: int, pool: int, experts: int) -> None:
    generator = np.random.default_rng(3)
    drawn = generator.integers(experts, size=(20_000, draws))
    most = np.array([np.bincount(row).max() for row in drawn])
    seen = (most > pool).mean()
    bound = overflow_cost(draws, pool, experts, 0.0) / 2
    assert bound / 4 < seen <= bound
    costly = overflow_cost(draws, pool, 10 * experts, 0.3)
    free = overflow_cost(draws, pool, 10 * experts, 0.0) / 2
    assert costly == pytest.approx(free * (1 + math.exp((pool + 1) * 0.3)))
    assert overflow_cost(pool, pool, experts, 0.3) == 0


def test_the_pool_is_the_smallest_that_suffices() -> None:
    one = made(draws=100)
    assert one.overflow <= OVERFLOW_SHARE * DELTA
    assert one.release_pool > 4
    with pytest.raises(UnsafeError, match=f"take a pool of {one.release_pool}"):
        made(draws=100, release_pool=one.release_pool - 1)
    assert made(draws=100, release_pool=one.release_pool + 2).release_pool == one.release_pool + 2
    assert made(draws=1).release_pool == 4


def test_the_event_recomputes_its_epsilon() -> None:
    for variant in ("tight", "paper"):
        one = made(variant=variant)
        event = one.draw_events()[0]
        assert isinstance(event, PureDpEvent)
        derived = stable_prefix_epsilon(event.derivation)
        assert derived == pytest.approx(event.epsilon, rel=1e-9)
        again = EVENTS.validate_json(EVENTS.dump_json((event,)))
        assert again == (event,)


@pytest.mark.parametrize(
    "change",
    [
        {"stable_count": 100.0},
        {"minimum_probability": 0.01},
        {"threshold_scale": 1.0},
        {"query_scale": 1.0},
        {"variant": "paper"},
        {"variant": "hopeful"},
        {"stable_count": 10.0},
        {"query_scale": "large"},
        {"threshold_scale": math.nan},
        {"margin": 20.0},
        {"margin": -1.0},
        {"margin": math.nan},
        {"failure": 1e-9},
        {"failure": 0.5},
        {"failure": 0},
        {"max_length": 0},
        {"max_length": 2048},
        {"max_length": "long"},
    ],
)
def test_an_event_below_its_derivation_is_refused(change: dict[str, object]) -> None:
    event = made().draw_events()[0]
    assert isinstance(event, PureDpEvent)
    with pytest.raises(ValidationError):
        PureDpEvent(epsilon=event.epsilon, derivation={**event.derivation, **change})  # type: ignore[dict-item]
    with pytest.raises(ValidationError):
        PureDpEvent(epsilon=event.epsilon * 0.99, derivation=event.derivation)


@pytest.mark.parametrize("variant", ["tight", "paper"])
def test_a_stage_states_the_failures_beside_the_epsilon(variant: str) -> None:
    one = made(variant=variant)
    assert stable_prefix_failure(one.draw_events()[0].derivation) == one.draw_failure  # type: ignore[union-attr]

    def stage(*events: Event) -> Stage:
        return Stage(
            name="filter",
            dataset="a/b-v0",
            unit="expert",
            relation=Relation.POLICY_LEVEL,
            units=M,
            units_source="declared",
            accountant="pld",
            delta=DELTA,
            events=events,
        )

    pure, failures, overflow = one.events()
    assert stage(pure, failures, overflow).events == (pure, failures, overflow)
    less = failures.model_copy(update={"delta": one.draw_failure * 0.9})
    fewer = failures.model_copy(update={"count": 24})
    wrong: list[tuple[Event, ...]] = [(pure,), (pure, overflow), (pure, less), (pure, fewer)]
    for events in wrong:
        with pytest.raises(ValidationError, match="approximate_dp"):
            stage(*events)
        with pytest.raises(ValidationError, match="approximate_dp"):
            stage(ParallelEvent(branches=((), events)))
        with pytest.raises(ValidationError, match="approximate_dp"):
            stage(RepeatAndSelectEvent(distribution="poisson", mean=2.0, events=events))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"minimum_probability": 1e-3}, ConfigError, "below c_min"),
        ({"minimum_probability": 0.6}, ConfigError, "minimum_probability"),
        ({"experts": 0}, ConfigError, "experts"),
        ({"draws": 0}, ConfigError, "draws"),
        ({"max_length": 0}, ConfigError, "max_length"),
        ({"max_length": 2048}, ConfigError, "max_length=2048 is above 2047"),
        ({"delta": 0.0}, ConfigError, "delta"),
        ({"epsilon": -1.0}, ConfigError, "epsilon"),
        ({"variant": "loose"}, ConfigError, "variant"),
    ],
)
def test_what_public_facts_rule_out_is_refused(
    changes: dict[str, object], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        made(**changes)


def test_rounding_of_the_longest_prefix_is_paid_for() -> None:
    """Half of what theta is enlarged by; the other half is for p_min's own rounding."""
    assert (1 + 2.0**-22) ** LONGEST_PREFIX - 1 < PREFIX_ROUNDING / 2 * 1.001
    assert made(max_length=LONGEST_PREFIX).threshold > 0


def test_a_threshold_above_the_experts_is_told() -> None:
    with pytest.warns(UserWarning, match="hardly anything"):
        made(experts=600, draws=100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made()


def test_a_margin_that_is_too_small_is_refused() -> None:
    with pytest.raises(UnsafeError, match="failure"):
        replace(made(), margin=20.0)
    with pytest.raises(UnsafeError, match="failure"):
        replace(made(), failure=0.4, margin=1.0)


def test_steps_stop_at_the_first_answer_below() -> None:
    one = made()
    high, low = one.threshold + 1e4, one.threshold - 1e4
    counts = np.array([high, high, low, high])
    assert one.stable_steps(counts, SeededNoise(1)) == 2
    assert one.stable_steps(counts[:2], SeededNoise(1)) == 2
    assert one.stable_steps(counts[2:], SeededNoise(1)) == 0
    assert one.stable_steps(np.empty(0), SeededNoise(1)) == 0
    with pytest.raises(ConfigError, match="max_length"):
        one.stable_steps(np.ones(L + 1), SeededNoise(1))


@pytest.mark.parametrize("variant", ["tight", "paper"])
@pytest.mark.parametrize("epsilon", [20.0, 45.0])
def test_a_draw_that_may_cost_much_still_fails_as_seldom_as_the_proof_needs(
    variant: Variant, epsilon: float
) -> None:
    found = stable_prefixes(
        epsilon=epsilon,
        delta=2.7e-4,
        experts=3000,
        minimum_probability=0.02,
        draws=1,
        max_length=200,
        variant=variant,
    )
    queries = found.epsilon_threshold + found.epsilon_query
    assert found.failure <= math.exp(-queries) * -math.expm1(-found.epsilon)
    assert found.epsilon <= epsilon
