"""What private rounds can learn: the noise of a round against what units agree on.

The noise of a round falls on every number that is learned, and the sum of clipped vectors does not
grow with how many these are. So the more weights a network has, the less a round says of the units.
"""

import math
from dataclasses import replace
from typing import Any

from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.verdict import OF_STRONG_PAIRS, Grade, Verdict, worse

SIGNAL = 0.3
"""Length of the mean clipped vector in the first round of our tables, in clip norms: at most 1."""
LITTLE_NOISE = 0.4
"""Noise of a round, in clip norms, up to which rounds learned what strong pairs of columns do."""
MUCH_NOISE = 5.0
"""Noise of a round above which rounds learned nothing."""


def round_noise(plan: RoundPlan, weights: int) -> float:
    """Return the expected length of a round's noise, in clip norms; 0 without privacy.

    Args:
        plan: calibrated; its noise is added to a sum and divided by the expected batch.
        weights: numbers that the rounds learn.
    """
    if plan.mechanism is None:
        return 0.0
    return plan.mechanism.noise_multiplier * math.sqrt(weights) / plan.expected_units


def with_verdict(
    plan: RoundPlan, weights: int | None, *, taught: bool, smaller: str, **shown: Any
) -> RoundPlan:
    """Return the plan with its number of weights, its noise, and what that leaves of the data.

    Args:
        plan: calibrated.
        weights: numbers that the rounds learn; None: public facts do not tell, and nobody judges.
        taught: the network was trained on public rows, or on rows of what was paid for, so that
            rounds which learn nothing leave what it knew.
        smaller: what makes the network smaller, in words of the configuration.
        shown: fields of the plan to set beside; ``details`` are added to, and of two verdicts the
            worse one stays.
    """
    details = {**plan.details, **shown.pop("details", {})}
    other = shown.pop("verdict", None)
    if weights is None:
        return replace(plan, details=details, verdict=other, **shown)
    details["weights"] = weights
    verdict = other
    if plan.mechanism is not None:
        details["round_noise"] = round(round_noise(plan, weights), 4)
        verdict = worse(verdict_of_rounds(plan, weights, taught=taught, smaller=smaller), other)
    return replace(plan, details=details, verdict=verdict, **shown)


def verdict_of_rounds(plan: RoundPlan, weights: int, *, taught: bool, smaller: str) -> Verdict:
    """Return what rounds can learn; the limits are measured: docs/design/0004-verdicts.md.

    Args:
        plan: as in `with_verdict`, private.
        weights: likewise.
        taught: likewise.
        smaller: likewise.
    """
    noise = round_noise(plan, weights)
    units = plan.units.value
    needed = math.ceil(units * noise / LITTLE_NOISE)
    figures = {"weights": float(weights), "noise_of_a_round": noise, "units_needed": float(needed)}
    said = (
        f"{weights:,} weights are learned; the noise of a round is {noise:.3g} clip norms long,"
        f" what units agree on some {SIGNAL:g}"
    )
    if noise <= LITTLE_NOISE:
        return Verdict(grade=Grade.FINE, reason=f"{OF_STRONG_PAIRS}: {said}", figures=figures)
    advice = (
        f"take {smaller}, raise privacy.epsilon, or bring {needed:,} units with a batch that grows"
        " alike"
    )
    if noise <= MUCH_NOISE or taught:
        kept = (
            "rounds add little to what pre-training taught"
            if taught
            else "rounds learn what is strongest in the data, and no more"
        )
        return Verdict(
            grade=Grade.LIMITED, reason=f"{kept}: {said}", advice=advice, figures=figures
        )
    return Verdict(
        grade=Grade.HOPELESS,
        reason=f"rounds learn nothing: {said}",
        advice=advice,
        figures=figures,
    )
