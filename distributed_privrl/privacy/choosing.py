"""Drawing one of several candidates, and who may draw.

Permute-and-flip is never further off than the exponential mechanism at the same pure epsilon. The
exponential mechanism has a bounded range, and is cheaper where many choices compose.

`SecureChooser` is the only one whose choices can be certified.

Reference: McKenna and Sheldon 2020 (permute-and-flip); McSherry and Talwar 2007 (exponential
    mechanism).
"""

import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

LARGEST_DISTANCE = 2**62
LARGEST_SCORE = 2**62


def rounded_up(value: Fraction) -> float:
    """Return the least float that is not below ``value``: a scale that loses nothing."""
    rounded = float(value)
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)


class Chooser(Protocol):
    """Draws one of several candidates, the better ones with a higher probability."""

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate.

        Candidates are looked at in random order, and one at distance d is taken with probability
        exp(-(d - smallest) / scale).

        Args:
            distances: integers, 0 to 2^62.
            scale: > 0.
            tag: what the draw is for; matters to choosers for tests alone.

        Privacy:
            Unit and relation: the caller's, through the amount D by which one unit moves a
            distance. Event: ``pure_dp`` with epsilon 2 D / scale.
        """
        ...

    def choose_exponential(self, scores: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate, drawn by the exponential mechanism.

        One of score s is drawn with probability proportional to exp(s / scale).

        Args:
            scores: integers, -2^62 to 2^62; larger ones are likelier.
            scale: > 0.
            tag: what the draw is for; matters to choosers for tests alone.

        Privacy:
            Unit and relation: the caller's, through the width W of the interval in which one
            unit's changes of all scores lie: 2 D where each moves by D up or down. Event:
            ``bounded_range`` with epsilon W / scale.
        """
        ...


class SecureChooser:
    """OpenDP's exact sampler, fed by the operating system's entropy."""

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose`."""
        from opendp.measures import max_divergence  # its prelude takes two seconds

        noisy = _noisy_max("u64", max_divergence(), scale=scale, negate=True)
        return int(noisy(list(distances)))

    def choose_exponential(self, scores: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose_exponential`.

        The largest of the scores with Gumbel noise of that scale each, in exact arithmetic, has the
        law of the exponential mechanism.
        """
        from opendp.measures import zero_concentrated_divergence

        noisy = _noisy_max("i64", zero_concentrated_divergence(), scale=scale)
        return int(noisy(list(scores)))


def _noisy_max(kind: str, measure: Any, **options: Any) -> Any:
    """Return OpenDP's report-noisy-max of numbers of one kind."""
    from opendp import domains, measurements, metrics, mod

    mod.enable_features("contrib")
    space = domains.vector_domain(domains.atom_domain(T=kind)), metrics.linf_distance(T=kind)
    return measurements.make_noisy_max(*space, measure, **options)


class SeededChooser:
    """The same law in floating point, for tests alone: anyone can repeat it.

    Args:
        seed: the same seed and tag give the same choice.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose`."""
        generator = self._generator("choose", tag)
        smallest = min(distances)
        order: list[int] = generator.permutation(len(distances)).tolist()
        coins = generator.random(len(distances)).tolist()
        return next(
            position
            for position, coin in zip(order, coins, strict=True)
            if coin < math.exp((smallest - distances[position]) / scale)
        )

    def choose_exponential(self, scores: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose_exponential`."""
        noise = self._generator("choose_exponential", tag).gumbel(size=len(scores))
        best = max(scores)
        return int(np.argmax(np.array([(score - best) / scale for score in scores]) + noise))

    def _generator(self, purpose: str, tag: int) -> np.random.Generator:
        key = hashlib.sha256(f"{self._seed}/{purpose}/{tag}".encode()).digest()
        return np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
