"""Events, counted: what accountants compose once parallel branches are expanded.

How a discrete Gaussian enters. For Renyi DP it is rho-zCDP, rho = 1 / (2 z^2) (Canonne, Kamath and
Steinke 2020, theorem 14, for vectors of integers). Privacy loss distributions take the continuous
Gaussian of variance s^2 - `ROUNDING_VARIANCE` in its place, s in integer steps, which dominates:

1. Let w(t) = exp(-t^2 / 18) and W(x) the sum of w(k - x) over all integers k. Round a real x to the
   integer y with probability w(y - x) / W(x), each coordinate for itself. By Poisson's summation
   formula W(x) = sqrt(18 pi) (1 + a) with |a| <= eta = 2 sum_j exp(-18 pi^2 j^2) < 1.5e-77.
2. Applied to a Gaussian of integer mean m and variance s^2 - 9 the rounding gives y with
   probability g(y - m) b, where g is the density of variance s^2 (Gaussians convolve) and
   1 / (1 + eta) <= b <= 1 / (1 - eta). The discrete Gaussian's is g(y - m) / (1 + c), with
   0 <= c <= eta: the same, up to a factor within exp(+-3e-77) a coordinate, whatever m is.
3. So discrete releases of any shift of integers, composed adaptively, are what a post-processing of
   the Gaussian ones would be, up to exp(+-n 3e-77) for n coordinates in all. With n <= 1e40 that
   changes epsilon and delta by less than 1e-36, far below what accountants add for rounding.

Reference for the rounding: Peikert 2010, theorem 3.1 (convolution of discrete Gaussians).

How a choice of bounded range enters. For Renyi DP it is rho-zCDP, rho = epsilon^2 / 8 (Cesar and
Rogers 2021). Privacy loss distributions take the one of density exp(x / 2) / (4 sinh(epsilon / 2))
on [-epsilon, epsilon] in its place, which dominates it. Write c = 1 - exp(-epsilon).

1. Let the loss lie in [t - epsilon, t]. The divergence at x is the mean of (r - exp(x))_+ under the
   second neighbour, with r = exp(loss) of mean 1: convex in r, so largest where r is at one of its
   ends. Loss t then has probability q = (exp(-t) - exp(-epsilon)) / c under the second neighbour,
   exp(t) q under the first.
2. For t - epsilon <= x <= t the divergence is q (exp(t) - exp(x))
   = (1 + exp(x - epsilon) - exp(x - t) - exp(t - epsilon)) / c, largest at t = (x + epsilon) / 2:
   delta(x) = (1 - exp((x - epsilon) / 2))^2 / c for |x| <= epsilon. Beyond that no pair has
   another one than 0 and 1 - exp(x).
3. delta is a supremum of divergences, so convex in exp(x), like each of them: the divergence of
   some pair (Zhu, Dong and Wang 2022, proposition 8), which dominates every choice of that range.
   Dominating pairs compose adaptively (the same, theorem 10), also where t depends on earlier
   answers. The pair's loss has density delta''(x) - delta'(x) = exp((x - epsilon) / 2) / (2 c).
4. 1 - exp(x) (1 - delta(-x)) = delta(x): the pair is its own reverse, one distribution serves both
   directions.

No single t attains delta everywhere. For small epsilon the pair's loss has a variance of about
epsilon^2 / 3, a choice's has epsilon^2 / 4 at most. So Renyi DP may be lower for many choices and
little else; the lower of the two figures counts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.events import (
    ApproximateDpEvent,
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    RepeatAndSelectEvent,
)
from distributed_privrl.privacy.units import Relation

_BRANCH_CHOICES = 256
ROUNDING_VARIANCE = 9.0
"""What a discrete Gaussian's variance is lowered by, in squared steps; see the module's proof."""


_SUMS = (GaussianEvent, LaplaceEvent, DiscreteGaussianEvent, DiscreteLaplaceEvent)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A random number of runs of ``base``, of which the best is released.

    ``shape`` is the negative binomial's (1: geometric, 0: logarithmic), infinite for Poisson.
    """

    base: "Atoms"
    mean: float
    shape: float


@dataclass(kw_only=True)
class Atoms:
    """A sequence of events without parallel branches, equal atoms counted.

    ``mu_squared`` is the sum of 1/noise_multiplier^2 over Gaussian releases, which compose to one
    Gaussian release exactly; discrete ones enter by the Gaussian that dominates them, infinite
    where there is none. ``concentrated`` is the same sum with their own multipliers: 2 rho of zCDP.
    ``failure`` is the sum of the deltas of (epsilon, delta) events.
    """

    mu_squared: float = 0.0
    concentrated: float = 0.0
    poisson: Counter[tuple[float, float]] = field(default_factory=Counter)
    laplace: Counter[float] = field(default_factory=Counter)
    discrete_laplace: Counter[tuple[float, int]] = field(default_factory=Counter)
    bounded_range: Counter[float] = field(default_factory=Counter)
    pure: Counter[float] = field(default_factory=Counter)
    failure: float = 0.0
    selections: list[Selection] = field(default_factory=list)

    @property
    def pure_epsilon(self) -> float | None:
        """The sum of pure epsilons, if nothing else is there."""
        if self.mu_squared or self.poisson or self.selections:
            return None
        return math.fsum(
            [count / multiplier for multiplier, count in self.laplace.items()]
            + [count * a * shift for (a, shift), count in self.discrete_laplace.items()]
            + [count * value for value, count in self.bounded_range.items()]
            + [count * value for value, count in self.pure.items()]
        )

    @property
    def is_gaussian(self) -> bool:
        """Gaussian releases alone."""
        noisy = self.poisson or self.laplace or self.discrete_laplace
        return not (noisy or self.bounded_range or self.pure or self.selections)


def atoms_of_every_choice(events: Sequence[Event], relation: Relation) -> Iterator[Atoms]:
    """Yield the counted events for every choice of parallel branches that a unit may be in.

    Raises:
        ConfigError: too many choices, or failures inside a repeated run.
        UnsafeError: Poisson-sampled rounds under ``replace_one``, or parallel branches of others
            than Gaussian and Laplace releases.
    """
    if relation is Relation.REPLACE_ONE:
        _check_replaceable(events)
    for choice in _choices(events):
        atoms = Atoms()
        for event in choice:
            _add(atoms, event, relation)
        yield atoms


def _check_replaceable(events: Sequence[Event]) -> None:
    for event in events:
        for inner in (e for branch in getattr(event, "branches", ()) for e in branch):
            if not isinstance(inner, _SUMS):
                raise UnsafeError(
                    f"relation='replace_one' has no parallel {inner.kind} events: a unit that is"
                    " replaced may change branches; use replace_with_null, or one sequence"
                )


def _choices(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """List what one unit can have been part of: one branch of each parallel event.

    A unit sees one branch alone, whatever the other units do, so the cost of ``events`` is the
    largest cost of a choice.
    """
    options = [_options(event) for event in events]
    if math.prod(len(option) for option in options) > _BRANCH_CHOICES:
        raise ConfigError(
            f"parallel events leave more than {_BRANCH_CHOICES} choices of branches: put the events"
            " of a branch into one parallel event"
        )
    return [tuple(event for part in parts for event in part) for parts in product(*options)]


def _options(event: Event) -> list[tuple[Event, ...]]:
    if isinstance(event, ParallelEvent):
        return [choice for branch in event.branches for choice in _choices(branch)]
    if isinstance(event, RepeatAndSelectEvent):
        return [(event.model_copy(update={"events": c}),) for c in _choices(event.events)]
    return [(event,)]


def _add(atoms: Atoms, event: Event, relation: Relation) -> None:
    if isinstance(event, RepeatAndSelectEvent):
        atoms.selections.append(_selection(event, relation))
        return
    if isinstance(event, ParallelEvent):
        raise TypeError("parallel events are expanded before they are counted")
    if event.count == 0:
        return
    if isinstance(event, PoissonGaussianEvent):
        _add_private_rounds(atoms, event, relation)
    elif isinstance(event, GaussianEvent):
        _add_gaussian(atoms, event.noise_multiplier, event.count)
    elif isinstance(event, DiscreteGaussianEvent):
        atoms.concentrated += event.count / event.noise_multiplier**2
        variance = (event.noise_multiplier * event.sensitivity) ** 2 - ROUNDING_VARIANCE
        mu_squared = event.sensitivity**2 / variance if variance > 0 else math.inf
        atoms.mu_squared += event.count * mu_squared
    elif isinstance(event, LaplaceEvent):
        atoms.laplace[event.noise_multiplier] += event.count
    elif isinstance(event, DiscreteLaplaceEvent):
        atoms.discrete_laplace[event.parameter, event.sensitivity] += event.count
    elif isinstance(event, BoundedRangeEvent):
        atoms.bounded_range[event.epsilon] += event.count
    else:
        if event.epsilon > 0:
            atoms.pure[event.epsilon] += event.count
        if isinstance(event, ApproximateDpEvent):
            atoms.failure += event.delta * event.count


def _add_gaussian(atoms: Atoms, noise_multiplier: float, count: int) -> None:
    atoms.mu_squared += count / noise_multiplier**2
    atoms.concentrated += count / noise_multiplier**2


def _add_private_rounds(atoms: Atoms, event: PoissonGaussianEvent, relation: Relation) -> None:
    if relation is Relation.REPLACE_ONE:
        raise UnsafeError(
            "relation='replace_one' has no accounting for Poisson-sampled rounds, whose noise is"
            " stated for a contribution that becomes zero: use replace_with_null or add_or_remove"
        )
    if event.sampling_probability == 1:
        _add_gaussian(atoms, event.noise_multiplier, event.count)
    else:
        atoms.poisson[event.sampling_probability, event.noise_multiplier] += event.count


def _selection(event: RepeatAndSelectEvent, relation: Relation) -> Selection:
    base = Atoms()
    for inner in event.events:
        _add(base, inner, relation)
    if base.failure:
        raise ConfigError(
            "repeat_and_select cannot hold approximate_dp events: failures of repeated runs are"
            " not additive"
        )
    return Selection(
        base=base, mean=event.mean, shape=math.inf if event.shape is None else event.shape
    )
