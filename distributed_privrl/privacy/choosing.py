"""Drawing one of several candidates by permute-and-flip, and who may draw.

`SecureChooser` is the only one whose choices can be certified.

Reference: McKenna and Sheldon 2020 (never further off than the exponential mechanism at the same
    epsilon).
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np

LARGEST_DISTANCE = 2**62


class Chooser(Protocol):
    """Draws one of several candidates, the nearer ones with a higher probability."""

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


class SecureChooser:
    """OpenDP's exact sampler, fed by the operating system's entropy."""

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose`."""
        import opendp.prelude as dp  # takes two seconds: only where something is chosen

        dp.enable_features("contrib")
        space = dp.vector_domain(dp.atom_domain(T="u64")), dp.linf_distance(T="u64")
        noisy = dp.m.make_noisy_max(*space, dp.max_divergence(), scale=scale, negate=True)
        return int(noisy(list(distances)))


class SeededChooser:
    """The same law in floating point, for tests alone: anyone can repeat it.

    Args:
        seed: the same seed and tag give the same choice.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choose(self, distances: Sequence[int], *, scale: float, tag: int = 0) -> int:
        """Return the position of a candidate; see `Chooser.choose`."""
        key = hashlib.sha256(f"{self._seed}/choose/{tag}".encode()).digest()
        generator = np.random.Generator(np.random.Philox(key=int.from_bytes(key[:16], "big")))
        smallest = min(distances)
        order: list[int] = generator.permutation(len(distances)).tolist()
        coins = generator.random(len(distances)).tolist()
        return next(
            position
            for position, coin in zip(order, coins, strict=True)
            if coin < math.exp((smallest - distances[position]) / scale)
        )
