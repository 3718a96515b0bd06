"""What is left of counts under their noise: visits of a cell against the noise of a count.

The limits are measured, and held against every stored cell: docs/design/0004-verdicts.md.
"""

import math
from dataclasses import dataclass

from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.resolution import Resolution
from distributed_privrl.stages.measured import Measured
from distributed_privrl.stages.verdict import Grade, Verdict


@dataclass(frozen=True, kw_only=True)
class Limits:
    """From which ratio of visits to noise a method was measured to learn what.

    Args:
        hopeless: below it no measured run kept half of what it learns without privacy.
        fine: from it on every measured run did.
        where: what was measured, and how to read its figure.
        rows: a stored figure for each grade.
        advice: what to change, in words of the configuration.
        telling: what tells the number of cells.
    """

    hopeless: float
    fine: float
    where: str
    rows: dict[Grade, Measured]
    advice: str
    telling: str


def _sepsis(counts: str, patients: int, epsilon: str, value: float) -> Measured:
    row = (
        *(("counts", counts), ("states", 716), ("pessimism", "practical")),
        *(("horizon", 20), ("patients", patients)),
    )
    return Measured(result="utility_icu_sepsis", row=row, figure=epsilon, value=value)


def _linear(method: str, rho: float, episodes: str, value: float) -> Measured:
    row = (("instance", "a"), ("constants", "tuned"), ("method", method), ("rho", rho))
    return Measured(result="utility_value_iteration", row=row, figure=episodes, value=value)


_FEATURES = "name data.environment, or a file of features in model.features"
_ABOVE_NOTHING = (
    "how far the linear MDP's policy is below the best one, 5.9 where nothing was learned"
)
COUNTS = Limits(
    hopeless=1.0,
    fine=50.0,
    where="survival in ICU-Sepsis, .782 without any treatment, .831 (100,000 patients) and .843"
    " (1,000,000) without privacy",
    rows={
        Grade.HOPELESS: _sepsis("pooled", 100_000, "eps 0.5", 0.782),
        Grade.LIMITED: _sepsis("once a patient", 100_000, "eps 4", 0.794),
        Grade.FINE: _sepsis("once a patient", 1_000_000, "eps 4", 0.826),
    },
    advice="group states (clusters in model.facts), count once (model.pooled: true,"
    " model.visits: first), raise privacy.epsilon",
    telling="name data.environment, or give rewards in model.facts",
)
"""Of DP-APVI."""
OURS = Limits(
    hopeless=0.3,
    fine=8.0,
    where=_ABOVE_NOTHING,
    rows={
        Grade.HOPELESS: _linear("DP-VAPVI, ours", 0.1, "K=100", 5.2),
        Grade.LIMITED: _linear("DP-VAPVI, ours", 1.0, "K=200", 2.87),
        Grade.FINE: _linear("DP-VAPVI, ours", 5.0, "K=1000", 0.511),
    },
    advice="take fewer features, model.split: false and model.pool_grams: true, raise"
    " privacy.epsilon",
    telling=_FEATURES,
)
"""Of our redesign of DP-VAPVI, whose targets are centred."""
PUBLISHED = Limits(
    hopeless=20.0,
    fine=300.0,
    where=_ABOVE_NOTHING,
    rows={
        Grade.HOPELESS: _linear("DP-VAPVI", 1.0, "K=1000", 5.4),
        Grade.LIMITED: _linear("DP-VAPVI", 25.0, "K=1000", 4.34),
        Grade.FINE: _linear("DP-VAPVI", 25.0, "K=10000", 2.1),
    },
    advice="take model.as_published: false and model.centre_values: true, raise privacy.epsilon",
    telling=_FEATURES,
)
"""Of DP-VAPVI as published, or without centred targets."""
EVIDENCE = tuple(row for limits in (COUNTS, OURS, PUBLISHED) for row in limits.rows.values())


def verdict_of_counts(config: ApviConfig, seen: Resolution, units: int) -> Verdict:
    """Return what is left of DP-APVI's counts.

    Args:
        config: of the run.
        seen: through the noise of its releases.
        units: that it has.
    """
    preset, at_best = config.training.pessimism.preset, ""
    if preset == "theory":
        at_best = (
            "with training.pessimism.preset=theory no measured private run was better than no"
            " treatment"
        )
    elif preset == "none":
        at_best = (
            "with training.pessimism.preset=none measured runs fell below no treatment at any noise"
        )
    return _verdict(seen, COUNTS, units, at_best)


def verdict_of_features(config: VapviConfig, seen: Resolution, units: int) -> Verdict:
    """Return what is left of DP-VAPVI's regressions; arguments as of `verdict_of_counts`."""
    model, at_best = config.model, ""
    if model.as_published and config.training.pessimism.offset is None:
        at_best = (
            "with the theorem's training.pessimism.offset no measured run learned anything; set it"
            " to 0"
        )
    ours = model.centre_values and not model.as_published
    return _verdict(seen, OURS if ours else PUBLISHED, units, at_best)


def _verdict(seen: Resolution, limits: Limits, units: int, at_best: str) -> Verdict:
    """Return the verdict; with ``at_best`` it is limited at best, for that reason.

    It is limited at worst: one family of problems was measured, and a refusal would be of others.
    """
    mean = seen.mean_visits
    if mean is None:
        return Verdict(
            grade=Grade.NOT_JUDGED,
            reason=f"{seen}, and nothing public tells over how many of a {seen.cell} they spread",
            advice=limits.telling,
        )
    ratio = mean / seen.count_noise
    needed = math.ceil(units * limits.fine / ratio)
    figures = {"visits_over_noise": ratio, "units_needed": float(needed)}
    said = (
        f"a {seen.cell} has {mean:.3g} visits on average, at most, {ratio:.3g} times the noise of"
        " a count"
    )
    if ratio < limits.hopeless:
        grade, row = Grade.LIMITED, limits.rows[Grade.HOPELESS]
        kept = f"{said}; below {limits.hopeless:g} no measured run kept half of what it learns"
    elif ratio < limits.fine:
        grade, row = Grade.LIMITED, limits.rows[Grade.LIMITED]
        kept = f"{said}; from {limits.fine:g} on every measured run kept half of what it learns"
    else:
        grade = Grade.LIMITED if at_best else Grade.FINE
        kept, row = said, limits.rows[grade]
    reason = "; ".join(part for part in (kept, at_best, f"{limits.where}: {row}") if part)
    if grade is Grade.FINE:
        return Verdict(grade=grade, reason=reason, figures=figures)
    advice = f"{limits.advice}, or bring {needed:,} units"
    return Verdict(grade=grade, reason=reason, advice=advice, figures=figures)
