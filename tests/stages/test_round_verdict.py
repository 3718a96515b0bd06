"""What plans of rounds say of themselves, from their noise and the number of weights."""

import math

import pytest

from distributed_privrl.core.config import PrivacyConfig, RuntimeConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.round_plan import RoundPlan, RoundsConfig, make_plan
from distributed_privrl.stages.round_verdict import (
    LITTLE_NOISE,
    MUCH_NOISE,
    round_noise,
    verdict_of_rounds,
    with_verdict,
)
from distributed_privrl.stages.verdict import OF_STRONG_PAIRS, Grade, Verdict, worse


def planned(*, units: int = 1000, batch: int = 100, epsilon: float | None = 2.0) -> RoundPlan:
    return make_plan(
        PrivacyConfig(epsilon=epsilon, delta=1e-6, accountant="rdp"),
        RoundsConfig(rounds=10, expected_batch_size=batch),
        unit="patient",
        units=UnitCount(value=units, source="declared"),
    )


def weights_for(plan: RoundPlan, noise: float) -> int:
    assert plan.mechanism is not None
    return math.ceil((noise * 100 / plan.mechanism.noise_multiplier) ** 2)


@pytest.mark.parametrize(
    ("noise", "taught", "grade"),
    [
        (0.9 * LITTLE_NOISE, False, Grade.FINE),
        (1.1 * LITTLE_NOISE, False, Grade.LIMITED),
        (0.9 * MUCH_NOISE, False, Grade.LIMITED),
        (1.1 * MUCH_NOISE, False, Grade.HOPELESS),
        (1.1 * MUCH_NOISE, True, Grade.LIMITED),
    ],
)
def test_a_verdict_follows_from_the_noise_of_a_round(
    noise: float, taught: bool, grade: Grade
) -> None:
    plan = planned()
    weights = weights_for(plan, noise)
    assert round_noise(plan, weights) == pytest.approx(noise, rel=0.02)
    verdict = verdict_of_rounds(plan, weights, taught=taught, smaller="a smaller network")
    assert verdict.grade is grade
    assert f"{weights:,} weights" in verdict.reason
    assert bool(verdict.advice) is (grade is not Grade.FINE)
    assert (OF_STRONG_PAIRS in verdict.reason) is (grade is Grade.FINE)


def test_units_that_are_said_to_be_needed_are_enough() -> None:
    plan = planned()
    weights = weights_for(plan, 3.0)
    verdict = verdict_of_rounds(plan, weights, taught=False, smaller="less")
    needed = int(verdict.figures["units_needed"])
    more = planned(units=needed, batch=round(needed * plan.sampling_probability))
    assert round_noise(more, weights) == pytest.approx(LITTLE_NOISE, rel=0.01)


def test_a_plan_shows_weights_and_noise_and_keeps_what_it_had() -> None:
    other = Verdict(grade=Grade.LIMITED, reason="marginals")
    plan = with_verdict(
        planned(),
        100,
        taught=True,
        smaller="less",
        details={"marginals": {"rows": 5}},
        verdict=other,
    )
    assert plan.verdict is other
    facts = plan.facts()
    assert facts["weights"] == 100
    assert facts["round_noise"] == pytest.approx(round_noise(plan, 100), abs=1e-3)
    assert facts["marginals"] == {"rows": 5}


def test_nobody_judges_without_weights_or_without_privacy() -> None:
    unknown = with_verdict(planned(), None, taught=False, smaller="less")
    assert unknown.verdict is None
    assert "weights" not in unknown.facts()
    public = with_verdict(planned(epsilon=None), 10**9, taught=False, smaller="less")
    assert public.verdict is None
    assert public.facts()["weights"] == 10**9
    assert round_noise(public, 10**9) == 0


def test_the_worse_of_two_verdicts() -> None:
    grades = [Verdict(grade=grade, reason="") for grade in Grade]
    for place, one in enumerate(grades):
        for other_place, other in enumerate(grades):
            assert worse(one, other) is grades[max(place, other_place)]
        assert worse(one, None) is one
        assert worse(None, one) is one
    assert worse(None, None) is None


def test_more_workers_than_blocks_are_refused_by_the_plan() -> None:
    """Before anything is charged: a run that found it out later would stay charged."""
    plan = planned()
    plan.check_runtime(RuntimeConfig(workers=2))
    with pytest.raises(ConfigError, match=r"workers=1000 is above the \d+ blocks"):
        plan.check_runtime(RuntimeConfig(workers=1000))
