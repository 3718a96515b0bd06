"""The noise of counted votes, and how many votes a budget pays for.

**What a unit moves.** Each unit sits with one teacher. A unit that comes, goes or becomes null
changes what one teacher votes, and no other: of T teachers, n_1 say that a sample is real and
n_0 = T - n_1 that it is not, so one changed vote moves (n_0, n_1) by 2 in L1. The paper adds noise
to both numbers and pays for those 2. But n_0 follows from n_1, and T is public: n_1 alone is
released here, which moves by 1. A unit that becomes another one, of another id, may leave one
teacher and join another: n_1 moves by 2 (by 4 in L1 over both numbers).

**What votes cost.** All K samples of a step are voted on by the same teachers, so a unit may move
every one of the K counts: each is an event of its own, and what K of them cost is what K releases
of one count cost, one after the other. Under Laplace noise of scale b a count is a pure atom of
sensitivity / b, and PLD composes them; under Gaussian noise they compose to one Gaussian. At the
same standard deviation s a Laplace atom costs root 2 times as much of mu as a Gaussian one where
there are many, (root 2 / s against 1 / s), and less where there are few. So ``cheaper`` computes
both.

The paper's accountant is not used: its moments depend on how far teachers agree, so that its
epsilon is itself a function of the rows, which nobody released with noise.

Reference: Jordon, Yoon and van der Schaar 2019, sections 3 and 4; Papernot and others 2017.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import Event, repeated
from distributed_privrl.privacy.least_noise import least_multiplier, rounded_up
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease, IntegerGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.units import PrivacyBudget, Relation

_ROOT_OF_TWO = 2**0.5


@dataclass(frozen=True, kw_only=True)
class VoteRelease:
    """Adds noise to counts of teachers that take samples for real.

    Args:
        mechanism: of one count.

    Privacy: unit and relation: the caller's, through the mechanism's sensitivity, which is
        `count_sensitivity`. Each count has noise of its own; K counts are K releases, whose events
        are `events`.
    """

    mechanism: DiscreteLaplaceRelease | IntegerGaussianRelease

    @property
    def event(self) -> Event:
        """What one count is charged as."""
        return self.mechanism.event

    def events(self, counts: int) -> tuple[Event, ...]:
        """Return what so many counts are charged as."""
        return (repeated(self.event, counts),)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a count, in votes; of Laplace noise from above."""
        if isinstance(self.mechanism, IntegerGaussianRelease):
            return self.mechanism.standard_deviation
        return _ROOT_OF_TWO * self.mechanism.scale

    @property
    def in_words(self) -> str:
        """The noise, in words."""
        gaussian = isinstance(self.mechanism, IntegerGaussianRelease)
        kind = "Gaussian" if gaussian else "Laplace"
        return f"{kind} integers, deviation {self.deviation:.4g} of a count of votes"

    def release(
        self, counts: NDArray[np.int64], source: NoiseSource, *, tag: int
    ) -> NDArray[np.int64]:
        """Return the counts ``(K,)`` with fresh noise, each its own."""
        return self.mechanism.release(counts, source, tag=tag)


def count_sensitivity(relation: Relation) -> int:
    """Return by how much a unit moves the number of teachers that take a sample for real."""
    return relation.contributions


def laplace_votes(deviation: float, relation: Relation) -> VoteRelease:
    """Return votes with Laplace noise of a standard deviation, in votes."""
    return VoteRelease(
        mechanism=DiscreteLaplaceRelease(
            sensitivity=count_sensitivity(relation), scale=deviation / _ROOT_OF_TWO
        )
    )


def gaussian_votes(deviation: float, relation: Relation) -> VoteRelease:
    """Return votes with Gaussian noise of a standard deviation, in votes."""
    moved = count_sensitivity(relation)
    return VoteRelease(
        mechanism=IntegerGaussianRelease(sensitivity=moved, noise_multiplier=deviation / moved)
    )


MAKERS: dict[str, Callable[[float, Relation], VoteRelease]] = {
    "laplace": laplace_votes,
    "gaussian": gaussian_votes,
}
"""Of votes, by the name of their noise."""


def affordable(release: VoteRelease, budget: PrivacyBudget, *, votes: int, most: int) -> int:
    """Return how many steps of ``votes`` counts each a budget pays for, ``most`` at most.

    Args:
        release: of a count.
        budget: what they may cost together.
        votes: counts of a step.
        most: steps that nobody needs more of.

    Returns:
        the largest such number whose certified cost is within the budget.
    """

    def paid(steps: int) -> bool:
        cost = epsilon(release.events(steps * votes), delta=budget.delta, relation=budget.relation)
        return cost <= budget.epsilon

    low, high = 0, 1
    while high <= most and paid(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:  # low is paid for, high is not, or is beyond what is asked for
        middle = (low + high) // 2
        low, high = (middle, high) if paid(middle) else (low, middle)
    return low


def least_noise(
    make: Callable[[float, Relation], VoteRelease], budget: PrivacyBudget, counts: int
) -> VoteRelease:
    """Return the release with the least noise of which so many counts keep a budget.

    Args:
        make: of `MAKERS`.
        budget: what they may cost together.
        counts: of all steps.
    """

    def events_of(deviation: float) -> tuple[Event, ...]:
        return make(deviation, budget.relation).events(counts)

    least = least_multiplier(events_of, budget, "pld")
    return make(rounded_up(least, events_of, budget), budget.relation)
