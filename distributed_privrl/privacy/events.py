"""What was released: frozen events whose docstrings are their specification.

An event says what ran; what it costs is the accountant's business. The JSON form is the contract of
``certificate.json``.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.laplace_tails import wrong_answer

# Bounds far beyond any use, within which no accountant over- or underflows.
Multiplier = Annotated[float, Field(ge=1e-9, le=1e9)]
Cost = Annotated[float, Field(ge=0, le=1e9)]
Count = Annotated[int, Field(ge=0, le=10**12)]

PERMUTE_AND_FLIP = "permute_and_flip"
"""A ``derivation``'s mechanism with ``sensitivity`` and ``scale``: epsilon is 2 their ratio."""
STABLE_PREFIX = "stable_prefix"
"""A ``derivation``'s mechanism whose epsilon is `stable_prefix_epsilon`."""
PREFIX_ROUNDING = 2.0**-10
"""Share by which a stable prefix's count may be above the odds that it was drawn: rounding."""
LONGEST_PREFIX = 2**11 - 1
"""Steps of a stable prefix at most: float32 rounds by 2^-22 a step, half of it in all."""
_ROUNDING = 1e-9
_LEAST_COST = 1e-9


class _Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoissonGaussianEvent(_Event):
    """Private rounds: each unit takes part with a probability of its own, then Gaussian noise.

    Each unit's vector has L2 norm at most ``clip_norm``; the noise's standard deviation is
    ``noise_multiplier * clip_norm``. Exact under ``replace_with_null`` and ``add_or_remove``.
    """

    kind: Literal["poisson_gaussian"] = "poisson_gaussian"
    sampling_probability: Annotated[float, Field(gt=0, le=1)]
    noise_multiplier: Multiplier
    count: Count


class GaussianEvent(_Event):
    """Gaussian releases; ``noise_multiplier`` = standard deviation / L2 sensitivity.

    The sensitivity is the one under the stage's relation, so that the cost is a plain Gaussian's.
    """

    kind: Literal["gaussian"] = "gaussian"
    noise_multiplier: Multiplier
    count: Count = 1


class LaplaceEvent(_Event):
    """Laplace releases; ``noise_multiplier`` = scale / L1 sensitivity under the relation."""

    kind: Literal["laplace"] = "laplace"
    noise_multiplier: Multiplier
    count: Count = 1


class DiscreteLaplaceEvent(_Event):
    """Integer releases, P(k) proportional to exp(-``parameter`` |k|), integer L1 sensitivity."""

    kind: Literal["discrete_laplace"] = "discrete_laplace"
    parameter: Annotated[float, Field(ge=1e-18, le=1e9)]
    sensitivity: Annotated[int, Field(gt=0, le=10**15)]
    count: Count = 1

    @model_validator(mode="after")
    def _has_a_cost(self) -> Self:
        if not _LEAST_COST <= self.parameter * self.sensitivity <= 1 / _LEAST_COST:
            raise ValueError("parameter x sensitivity must lie between 1e-9 and 1e9")
        return self


class DiscreteGaussianEvent(_Event):
    """Integer vectors, P(k) proportional to exp(-|k|^2 / (2 s^2)) about the exact integers.

    ``sensitivity`` is the L2 sensitivity of the integers under the stage's relation, in steps of
    one, and s = ``noise_multiplier * sensitivity``. A release satisfies rho-zCDP with
    rho = 1 / (2 noise_multiplier^2); see `atoms` for what bounds its privacy loss distribution.
    """

    kind: Literal["discrete_gaussian"] = "discrete_gaussian"
    noise_multiplier: Multiplier
    sensitivity: Annotated[float, Field(gt=0, le=1e15)]
    count: Count = 1


class BoundedRangeEvent(_Event):
    """Choices whose privacy loss between two neighbours stays in a range of length ``epsilon``.

    The range [t - epsilon, t] holds 0; where it lies may depend on the neighbours, in both
    directions, and on what was released before. The exponential mechanism, which picks a candidate
    with probability proportional to exp(score / scale), has epsilon = 2 D / scale, where one unit
    moves each score by D at most under the stage's relation, up or down. A choice is
    (epsilon, 0)-DP and satisfies rho-zCDP with rho = epsilon^2 / 8; see `atoms` for what bounds its
    privacy loss distribution.

    Reference: Dong, Durfee and Rogers 2020 (range); Cesar and Rogers 2021 (zCDP).
    """

    kind: Literal["bounded_range"] = "bounded_range"
    epsilon: Annotated[float, Field(ge=1e-18, le=1e9)]
    count: Count = 1


class PureDpEvent(_Event):
    """(epsilon, 0) mechanisms; ``derivation`` holds what is needed to recompute epsilon.

    One whose mechanism is ``permute_and_flip`` or ``stable_prefix`` cannot state less than its
    derivation gives.
    """

    kind: Literal["pure_dp"] = "pure_dp"
    epsilon: Cost
    count: Count = 1
    derivation: dict[str, str | int | float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _no_less_than_derived(self) -> Self:
        if self.derivation.get("mechanism") == PERMUTE_AND_FLIP:
            sensitivity, scale = (self.derivation.get(name) for name in ("sensitivity", "scale"))
            if not (isinstance(sensitivity, float) and isinstance(scale, float)):
                raise ValueError("permute_and_flip needs the numbers sensitivity and scale")
            if not (scale > 0 and self.epsilon >= (1 - _ROUNDING) * 2 * sensitivity / scale > 0):
                raise ValueError("epsilon must be at least 2 sensitivity / scale, above zero")
        if self.derivation.get("mechanism") == STABLE_PREFIX:
            derived = stable_prefix_epsilon(self.derivation)
            if not self.epsilon >= (1 - _ROUNDING) * derived > 0:
                raise ValueError(f"epsilon must be at least {derived!r}, as derived")
            stable_prefix_failure(self.derivation)
        return self


def stable_prefix_epsilon(derivation: Mapping[str, str | int | float]) -> float:
    """Return what one released prefix costs beside its failure: draw, threshold and queries.

    Args:
        derivation: ``variant`` (``tight``: a query's noise pays for one shift of 1, counts being
            monotone; ``paper``: for two), ``stable_count``, ``minimum_probability``,
            ``threshold_scale`` and ``query_scale``.

    Raises:
        ValueError: a number is missing or allows no guarantee at all.

    Reference: Expert-level DP, lemma 5.1 and algorithm 2.
    """
    names = ("stable_count", "minimum_probability", "threshold_scale", "query_scale")
    numbers = [derivation.get(name) for name in names]
    variant = derivation.get("variant")
    if variant not in ("tight", "paper") or not all(isinstance(one, float) for one in numbers):
        raise ValueError(f"stable_prefix needs a variant, tight or paper, and {', '.join(names)}")
    stable, probability, threshold_scale, query_scale = (float(one or 0.0) for one in numbers)
    least = stable * probability / (1 + PREFIX_ROUNDING)
    if not (least > 1 and 0 < probability <= 1 and threshold_scale > 0 and query_scale > 0):
        raise ValueError("stable_prefix needs stable_count x minimum_probability > 1, scales > 0")
    shifts = 1 if variant == "tight" else 2
    return -math.log1p(-1 / least) + 1 / threshold_scale + shifts / query_scale


def stable_prefix_failure(derivation: Mapping[str, str | int | float]) -> float:
    """Return the probability that a draw releases a prefix that is not stable, at most.

    Args:
        derivation: as for `stable_prefix_epsilon`, and ``margin``, ``failure`` (of one query) and
            ``max_length``: ``paper`` adds up the failures of all steps.

    Raises:
        ValueError: a number is missing, or the margin does not give that failure.

    Reference: Expert-level DP, algorithm 2; `sparse_vector`, steps 3 and 4 of its proof.
    """
    epsilon = stable_prefix_epsilon(derivation)
    margin, failure, longest = (derivation.get(n) for n in ("margin", "failure", "max_length"))
    if not (isinstance(margin, float) and isinstance(failure, float) and isinstance(longest, int)):
        raise ValueError("stable_prefix needs the numbers margin, failure and max_length")
    if not (margin > 0 and 1 <= longest <= LONGEST_PREFIX):
        raise ValueError(f"stable_prefix needs margin > 0, max_length 1 to {LONGEST_PREFIX}")
    scales = (float(derivation["threshold_scale"]), float(derivation["query_scale"]))
    tight = derivation["variant"] == "tight"
    queries = 1 / scales[0] + (1 if tight else 2) / scales[1]
    most = math.exp(-queries) * -math.expm1(-epsilon)
    if not wrong_answer(margin, *scales) <= failure * (1 + _ROUNDING) <= most * (1 + _ROUNDING):
        raise ValueError(f"failure={failure!r} is not what margin={margin!r} gives")
    return failure * (1 if tight else longest)


def check_failures_charged(events: Sequence["Event"]) -> None:
    """Check that what stable prefixes may fail by stands beside them as ``approximate_dp``.

    Args:
        events: of one stage, or of one branch.

    Raises:
        ValueError: it does not.
    """
    failures = charged = 0.0
    for event in events:
        if isinstance(event, PureDpEvent) and event.derivation.get("mechanism") == STABLE_PREFIX:
            failures += event.count * stable_prefix_failure(event.derivation)
        elif isinstance(event, ApproximateDpEvent):
            charged += event.count * event.delta
        elif isinstance(event, RepeatAndSelectEvent):
            check_failures_charged(event.events)
        elif isinstance(event, ParallelEvent):
            for branch in event.branches:
                check_failures_charged(branch)
    if charged < failures * (1 - _ROUNDING):
        raise ValueError(
            f"stable_prefix needs approximate_dp events with delta {failures!r} in all, as derived,"
            f" beside it, got {charged!r}"
        )


class ApproximateDpEvent(_Event):
    """(epsilon, delta) mechanisms; epsilon 0 states a probability of failure alone."""

    kind: Literal["approximate_dp"] = "approximate_dp"
    epsilon: Cost
    delta: Annotated[float, Field(ge=0, lt=1)]
    count: Count = 1


class ParallelEvent(_Event):
    """Branches that see disjoint sets of units: the cost is the largest branch's.

    Under ``replace_one`` a unit of one branch may become a unit of another: one loses a unit and
    one gains one. The largest branch still bounds the cost where a unit that is added or removed
    moves a release by at most half of what one that is replaced does, squared (Gaussian, discrete
    or not), or half (Laplace, likewise): true of sums. Other events have no
    parallel form under ``replace_one``.
    """

    kind: Literal["parallel"] = "parallel"
    branches: Annotated[tuple[tuple["Event", ...], ...], Field(min_length=1)]


class RepeatAndSelectEvent(_Event):
    """A random number of independent runs of ``events``, of which the best alone is released.

    ``shape`` belongs to ``negative_binomial`` (1: geometric, 0: logarithmic).
    """

    kind: Literal["repeat_and_select"] = "repeat_and_select"
    distribution: Literal["negative_binomial", "poisson"]
    shape: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    mean: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    events: Annotated[tuple["Event", ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _shape_of_the_distribution(self) -> Self:
        if (self.shape is None) != (self.distribution == "poisson"):
            raise ValueError("shape goes with negative_binomial, and is null for poisson")
        return self


Event = Annotated[
    PoissonGaussianEvent
    | GaussianEvent
    | LaplaceEvent
    | DiscreteLaplaceEvent
    | DiscreteGaussianEvent
    | BoundedRangeEvent
    | PureDpEvent
    | ApproximateDpEvent
    | ParallelEvent
    | RepeatAndSelectEvent,
    Field(discriminator="kind"),
]

ParallelEvent.model_rebuild()
RepeatAndSelectEvent.model_rebuild()

EVENTS: TypeAdapter[tuple[Event, ...]] = TypeAdapter(tuple[Event, ...])


def drawn_from_floats(events: Sequence[Event]) -> bool:
    """Say whether noise of float64 numbers stands behind one of ``events``.

    Integers, choices and stable prefixes are drawn exactly. What is not known to be counts as
    drawn from floats.
    """
    for event in events:
        if isinstance(event, DiscreteLaplaceEvent | DiscreteGaussianEvent | BoundedRangeEvent):
            continue
        if isinstance(event, PureDpEvent) and _is_exact(event):
            continue
        if isinstance(event, ApproximateDpEvent) and event.epsilon == 0:
            continue
        inner = [event.events] if isinstance(event, RepeatAndSelectEvent) else ()
        branches = event.branches if isinstance(event, ParallelEvent) else inner
        if not branches or any(drawn_from_floats(branch) for branch in branches):
            return True
    return False


def _is_exact(event: PureDpEvent) -> bool:
    mechanism, noise = event.derivation.get("mechanism"), event.derivation.get("noise")
    return mechanism == PERMUTE_AND_FLIP or (
        mechanism == STABLE_PREFIX and noise == DiscreteLaplaceEvent.model_fields["kind"].default
    )


ROUNDS = "rounds"
TRAJECTORIES = "trajectories"
POLICIES = "policies"


def charged_rounds(
    events: Sequence[Event],
    *,
    trajectories: tuple[int, int | None] | None = None,
    policies: str | None = None,
) -> dict[str, Any]:
    """Return what a ledger keeps of a run: the events of one round; it counts the rounds itself.

    Args:
        events: of one round.
        trajectories: of each unit that the run may read: the first, and the one after the last
            (None: whatever follows). Not given: all.
        policies: digest of the policies that the run hosts; stays in the ledger.
    """
    kept: dict[str, Any] = {
        "kind": ROUNDS,
        "events": [one.model_dump(mode="json") for one in events],
    }
    if trajectories is not None:
        kept[TRAJECTORIES] = list(trajectories)
    if policies is not None:
        kept[POLICIES] = policies
    return kept


def repeated(event: Event, times: int) -> Event:
    """Return the event of ``times`` rounds in which ``event`` happens.

    A unit is in the same branch of a `ParallelEvent` in every round, so the counts inside grow.

    Example:
        >>> repeated(GaussianEvent(noise_multiplier=2.0), 3).count
        3
    """
    if isinstance(event, ParallelEvent):
        branches = tuple(tuple(repeated(e, times) for e in branch) for branch in event.branches)
        return ParallelEvent(branches=branches)
    if isinstance(event, RepeatAndSelectEvent):
        raise ConfigError("repeat_and_select happens once: it cannot be repeated by rounds")
    return event.model_copy(update={"count": event.count * times})
