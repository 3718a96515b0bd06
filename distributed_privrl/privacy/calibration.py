"""The least noise that keeps a budget: private rounds, single releases, whole schedules."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.accounting import Accountant
from distributed_privrl.privacy.events import (
    Event,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
)
from distributed_privrl.privacy.exact_releases import (
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)
from distributed_privrl.privacy.least_noise import least_multiplier, rounded_up
from distributed_privrl.privacy.noise import FloatArray, NoiseSource, lattice_granularity
from distributed_privrl.privacy.units import PrivacyBudget, Relation

SUM_SLACK = 0.008
"""Part of the clip norm by which float32 rounding may move a round's sum beyond one unit's vector.

Micro-batches are summed in float32, and so small that this bounds their rounding whatever the order
of additions (`updates.exact_sums`); between micro-batches sums are exact. Updates whose units'
vectors are rounded to the noise's lattice one by one need none of it.
"""


@dataclass(frozen=True, kw_only=True)
class PrivateRound:
    """One calibrated round: Poisson-sampled units, their clipped sum, Gaussian noise once.

    Args:
        clip_norm: L2 norm that no unit's vector exceeds.
        noise_multiplier: standard deviation / sensitivity.
        sampling_probability: with which each unit takes part, independently.
        relation: ``replace_with_null``, ``add_or_remove`` or ``policy_level``.
        sum_slack: part of the clip norm that rounding of sums may add; 0 where each unit's vector
            is rounded to the lattice by itself.

    Raises:
        ConfigError: a value is out of range.
        UnsafeError: ``replace_one``, for which Poisson-sampled rounds have no accounting here.

    Privacy:
        Unit: whatever contributes one clipped vector. Relation: ``relation``. Sensitivity:
        ``clip_norm``, enlarged by ``sum_slack`` for sums rounded in float32 and by sqrt(N) g for
        rounding to the lattice of spacing g. Event:
        ``poisson_gaussian``, one count for every call of `add_noise`.
    """

    clip_norm: float
    noise_multiplier: float
    sampling_probability: float
    relation: Relation = Relation.REPLACE_WITH_NULL
    sum_slack: float = SUM_SLACK

    def __post_init__(self) -> None:
        check_positive("clip_norm", self.clip_norm)
        if not 0 <= self.sum_slack <= 1:
            raise ConfigError(f"sum_slack must lie in [0, 1], got {self.sum_slack!r}")
        check_positive("noise_multiplier", self.noise_multiplier)
        check_probability("sampling_probability", self.sampling_probability)
        if self.relation is Relation.REPLACE_ONE:
            raise UnsafeError(
                "relation='replace_one' moves a clipped sum by twice clip_norm and has no"
                " accounting here: use replace_with_null or add_or_remove"
            )

    def sensitivity(self, dimension: int) -> float:
        """Return how far one unit moves a rounded sum of ``dimension`` coordinates, in L2."""
        granularity = lattice_granularity(self.clip_norm, dimension)
        return self.clip_norm * (1 + self.sum_slack) + math.sqrt(dimension) * granularity

    def standard_deviation(self, dimension: int) -> float:
        """Return the noise's standard deviation for a sum of ``dimension`` coordinates."""
        return self.noise_multiplier * self.sensitivity(dimension)

    def event(self, rounds: int) -> PoissonGaussianEvent:
        """Return what ``rounds`` rounds are charged as."""
        return PoissonGaussianEvent(
            sampling_probability=self.sampling_probability,
            noise_multiplier=self.noise_multiplier,
            count=rounds,
        )

    def add_noise(
        self,
        clipped_sum: NDArray[np.floating],
        source: NoiseSource,
        *,
        round_index: int,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return the sum over all workers with the round's noise, drawn once.

        Args:
            clipped_sum: ``(N,)``, the sum of the sampled units' clipped vectors; finite, because
                clipping turns what is not into zeros.
            source: draws the noise.
            round_index: matters to sources for tests alone.
            out: ``(N,)``, where to write the result; may be ``clipped_sum``.

        Returns:
            ``(N,)``
        """
        return source.add_gaussian(
            cast(FloatArray, clipped_sum),
            standard_deviation=self.standard_deviation(clipped_sum.size),
            granularity=lattice_granularity(self.clip_norm, clipped_sum.size),
            tag=round_index,
            out=out,
        )


def calibrate_private_round(
    *,
    budget: PrivacyBudget,
    sampling_probability: float,
    rounds: int,
    clip_norm: float,
    accountant: Accountant = "pld",
    other_events: Sequence[Event] = (),
    sum_slack: float = SUM_SLACK,
) -> PrivateRound:
    """Return the round with the least noise whose ``rounds`` repetitions keep the budget.

    Args:
        budget: what the whole stage may cost.
        sampling_probability: with which each unit takes part in a round.
        rounds: rounds to pay for, spare ones included.
        clip_norm: L2 norm that no unit's vector exceeds.
        accountant: ``pld`` or ``rdp``.
        other_events: what else the stage releases, composed with the rounds.
        sum_slack: see `PrivateRound`.

    Returns:
        a round whose certified epsilon is at most ``budget.epsilon``, with a noise multiplier at
        most 0.1 % above the least.

    Raises:
        ConfigError: an argument is out of range, or ``other_events`` alone exceed the budget.
        UnsafeError: ``replace_one``, or probabilities of failure that exceed delta.
    """
    check_probability("sampling_probability", sampling_probability)
    check_positive("rounds", rounds)

    def round_of(noise_multiplier: float) -> PrivateRound:
        return PrivateRound(
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            sampling_probability=sampling_probability,
            relation=budget.relation,
            sum_slack=sum_slack,
        )

    def events_of(noise_multiplier: float) -> list[Event]:
        return [round_of(noise_multiplier).event(rounds), *other_events]

    return round_of(least_multiplier(events_of, budget, accountant, other_events))


def calibrate_schedule(
    events_of: Callable[[float], Sequence[Event]],
    budget: PrivacyBudget,
    accountant: Accountant = "pld",
) -> float:
    """Return the least factor of the noise at which a whole schedule of events keeps the budget.

    Args:
        events_of: gives all events of the schedule at a factor m; no event may cost more at a
            larger one. With m the scales of all noise grow, say: a noise multiplier is m times, the
            epsilon of a choice 1 / m times what it is at 1.
        budget: what the whole schedule may cost.
        accountant: ``pld`` or ``rdp``, or ``pure`` where delta is 0.

    Returns:
        a factor, at least 2^-6, at which the certified epsilon is at most ``budget.epsilon``, and
        at most 0.1 % above the least one.

    Raises:
        ConfigError: no factor up to 2^29 keeps the budget, or within the events' bounds, or the
            accountant cannot take the events.
        ValidationError: no such events at factor 1.
        UnsafeError: probabilities of failure exceed delta, or the relation has no accounting.

    Example:
        >>> budget = PrivacyBudget(epsilon=2.0, delta=0.0, unit="trajectory")
        >>> round(calibrate_schedule(lambda m: [LaplaceEvent(noise_multiplier=m, count=4)], budget))
        2
    """
    events_of(1.0)
    try:
        least = least_multiplier(events_of, budget, accountant)
    except ValidationError as error:
        raise ConfigError(
            "no factor within the bounds of the events keeps this budget: raise epsilon or delta,"
            " or lower what part of the schedule costs whatever the factor"
        ) from error
    return rounded_up(least, events_of, budget, accountant)


def gaussian_multiplier(budget: PrivacyBudget, count: int = 1) -> float:
    """Return the least noise multiplier of which ``count`` Gaussian releases keep the budget.

    Args:
        budget: what all of them may cost; delta > 0.
        count: releases to pay for.

    Raises:
        ConfigError: an argument is out of range.

    Reference: Balle and Wang 2018, theorem 8 (analytic Gaussian mechanism).
    """
    check_positive("count", count)
    if budget.delta == 0:
        raise ConfigError("Gaussian noise needs a budget with delta > 0")
    from dp_accounting import get_sigma_gaussian

    sigma = float(get_sigma_gaussian(budget.epsilon, budget.delta))

    def events_of(noise_multiplier: float) -> list[Event]:
        return [GaussianEvent(noise_multiplier=noise_multiplier, count=count)]

    return rounded_up(sigma * math.sqrt(count), events_of, budget)


def laplace_multiplier(budget: PrivacyBudget, count: int = 1) -> float:
    """Return the least noise multiplier of which ``count`` Laplace releases keep the budget.

    Args:
        budget: what all of them may cost; delta 0 sums pure epsilons.
        count: releases to pay for.

    Raises:
        ConfigError: an argument is out of range.
    """
    check_positive("count", count)

    def events_of(noise_multiplier: float) -> list[Event]:
        return [LaplaceEvent(noise_multiplier=noise_multiplier, count=count)]

    least = count / budget.epsilon
    if budget.delta > 0 and count > 1:
        least = min(least, least_multiplier(events_of, budget, "pld", ()))
    return rounded_up(least, events_of, budget)


def calibrate_discrete_gaussian(
    *, budget: PrivacyBudget, sensitivity: float, dimension: int, count: int = 1
) -> DiscreteGaussianRelease:
    """Return the exact Gaussian release with the least noise of which ``count`` keep the budget.

    The noise multiplier for sensitivity 1 and dimension 1 keeps it for all others, too: lattices
    are no coarser there.

    Args:
        budget: what all of them may cost; delta > 0.
        sensitivity: L2 sensitivity of each, under the budget's relation.
        dimension: of the vector that each releases.
        count: releases to pay for.

    Raises:
        ConfigError: an argument is out of range.
    """
    release = DiscreteGaussianRelease(
        sensitivity=sensitivity,
        noise_multiplier=gaussian_multiplier(budget, count),
        dimension=dimension,
        count=count,
    )
    return _within(release, budget)


def calibrate_discrete_laplace(
    *, budget: PrivacyBudget, sensitivity: float, dimension: int, count: int = 1
) -> FixedPointLaplaceRelease:
    """Return the exact Laplace release with the least noise of which ``count`` keep the budget.

    Args:
        budget: what all of them may cost; delta 0 sums pure epsilons.
        sensitivity: L1 sensitivity of each, under the budget's relation.
        dimension: of the vector that each releases.
        count: releases to pay for.

    Raises:
        ConfigError: an argument is out of range.
    """
    release = FixedPointLaplaceRelease(
        sensitivity=sensitivity,
        noise_multiplier=laplace_multiplier(budget, count),
        dimension=dimension,
        count=count,
    )
    return _within(release, budget)


_Exact = TypeVar("_Exact", DiscreteGaussianRelease, FixedPointLaplaceRelease)


def _within(release: _Exact, budget: PrivacyBudget) -> _Exact:
    """Return the release with what rounding its multiplier may have lost."""

    def events_of(noise_multiplier: float) -> list[Event]:
        return [replace(release, noise_multiplier=noise_multiplier).event]

    return replace(
        release, noise_multiplier=rounded_up(release.noise_multiplier, events_of, budget)
    )
