"""What joint counts say of the columns that they count.

The count of a column by itself is of its public cells: a tail of sixty of them has the noise of
sixty. A joint count of the same rows in parts has a part for the tail, and the noise of few cells.
All of it is post-processing of released counts.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.tables import JointCount, Margin, all_but

_EXACT = 1e-3
"""Part of a bin's deviation that the weight of all rows, which is known, is taken to be off."""


@dataclass(frozen=True, eq=False)
class PartSums:
    """Sums of a joint count over all columns but one.

    Args:
        sums: ``(P,)`` of the column's parts, with the noise of the cells that they add up.
        deviation: of each.
        parts: ``(K,)``, the part of each bin.
    """

    sums: NDArray[np.float64]
    deviation: float
    parts: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class NoisyCount:
    """A joint count as it was released.

    Args:
        count: what was counted.
        counts: integers with noise, of the shape of what was counted.
        deviation: of the noise of each.
    """

    count: JointCount
    counts: NDArray[np.int64]
    deviation: float

    def sums_of(self, place: int, bins: Bins) -> PartSums:
        """Return the sums of a column's parts, as of all rows.

        Args:
            place: of a column of the count.
            bins: of the columns.
        """
        axis = self.count.clique.index(place)
        scale = bins.total / bins.weight_of(self.count.clique)
        sums = self.counts.sum(axis=all_but(axis, self.counts.ndim)) * scale
        cells = self.counts.size / len(sums)
        deviation = scale * self.deviation * math.sqrt(cells)
        return PartSums(sums, deviation, bins.maps(self.count)[axis])


def combined(margin: Margin, told: Iterable[PartSums]) -> Margin:
    """Return what is known of a number's bins with what joint counts say of its parts.

    Least squares, weighted by the noise of each, with the weight of all rows held: what a part has
    more goes to its bins in proportion to how uncertain they are. A bin without weight stays so.

    Args:
        margin: of the column's own count.
        told: sums of joint counts.

    Reference: Gauss and Markov; Hay, Rastogi, Miklau and Suciu 2010 (section 4, consistency).
    """
    told = list(told)
    total, seen = margin.masses.sum(), margin.masses > 0
    if not told or seen.sum() < 2:
        return margin
    whole = PartSums(
        np.array([total]),
        _EXACT * float(margin.deviations[seen].min()),
        np.zeros(len(seen), np.int64),
    )
    masses, covariance = margin.masses[seen], np.diag(margin.deviations[seen] ** 2)
    for one in (*told, whole):
        adds = np.eye(len(one.sums))[one.parts[seen]]
        noise = one.deviation**2 * np.eye(len(one.sums))
        gain = np.linalg.solve(adds.T @ covariance @ adds + noise, adds.T @ covariance).T
        masses = masses + gain @ (one.sums - adds.T @ masses)
        covariance = covariance - gain @ adds.T @ covariance
    found, deviations = margin.masses.copy(), margin.deviations.copy()
    found[seen] = np.maximum(masses, 0.0)
    if found.sum() <= 0:  # noise alone was told
        return margin
    deviations[seen] = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    return replace(margin, masses=found * (total / found.sum()), deviations=deviations)
