"""What draws the noise of votes, and the event that it is charged as: one object."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.methods.dprft.votes import VoteRule, embedding_sensitivity
from distributed_privrl.privacy.calibration import gaussian_multiplier
from distributed_privrl.privacy.events import DiscreteGaussianEvent, Event, repeated
from distributed_privrl.privacy.least_noise import rounded_up
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.units import PrivacyBudget, Relation


@dataclass(frozen=True, kw_only=True)
class VoteRelease:
    """Adds noise to sums of votes, or to a sum of vectors.

    Args:
        noise_multiplier: standard deviation / sensitivity, of each round.
        sensitivity: how far one unit moves what a round releases, in L2: one sample's sum of votes,
            or all sums of a query.
        each_sample: whether each sum is a round of its own.

    Privacy: unit and relation: the caller's, through ``sensitivity``. Event: one
        ``discrete_gaussian`` a round. A vector of B samples that are charged one by one is B
        releases: a unit moves each by ``sensitivity`` at most, and each has noise of its own. By
        Gaussian DP each costs 1 / noise_multiplier^2 of mu^2, so that T queries of B samples cost
        what T Gaussian releases of the whole vector do, whose sensitivity is sqrt(B) times as
        large (paper 003, appendix D); any other division into queries costs as much.
    """

    noise_multiplier: float
    sensitivity: float
    each_sample: bool = False

    def rounds_of(self, size: int) -> int:
        """Return how many rounds ``size`` sums are charged as."""
        return size if self.each_sample else 1

    @property
    def _mechanism(self) -> IntegerGaussianRelease:
        return IntegerGaussianRelease(
            sensitivity=self.sensitivity, noise_multiplier=self.noise_multiplier
        )

    @property
    def event(self) -> DiscreteGaussianEvent:
        """What one round is charged as."""
        return self._mechanism.event

    @property
    def standard_deviation(self) -> float:
        """Of the noise of each sum, in whole numbers."""
        return self._mechanism.standard_deviation

    def release(
        self, total: NDArray[np.int64], source: NoiseSource, *, tag: int
    ) -> NDArray[np.int64]:
        """Return sums with fresh noise; see `QueryRelease.release`."""
        return self._mechanism.release(total, source, tag=tag)


def vote_release(rule: VoteRule, *, budget: PrivacyBudget, rounds: int) -> VoteRelease:
    """Return the release of votes with the least noise of which ``rounds`` keep the budget.

    Args:
        rule: of votes.
        budget: what all rounds may cost; delta > 0.
        rounds: samples to score where each is charged, queries otherwise; spare ones included.
    """
    return _within(rule.sensitivity, budget, rounds, each_sample=rule.each_sample)


def embedding_release(*, budget: PrivacyBudget) -> VoteRelease:
    """Return the release of the sum of vectors, once, with the least noise."""
    return _within(embedding_sensitivity, budget, 1)


def _within(
    sensitivity: Callable[[Relation], float],
    budget: PrivacyBudget,
    rounds: int,
    *,
    each_sample: bool = False,
) -> VoteRelease:
    moved = sensitivity(budget.relation)

    def events_of(noise_multiplier: float) -> list[Event]:
        one = VoteRelease(noise_multiplier=noise_multiplier, sensitivity=moved).event
        return [repeated(one, rounds)]

    least = rounded_up(gaussian_multiplier(budget, rounds), events_of, budget)
    return VoteRelease(noise_multiplier=least, sensitivity=moved, each_sample=each_sample)
