"""How a row of noisy cells divides into runs of even density: the best way, and all of them.

Where noise is small beside the cells, both say the same. Where it is large, the best division has
few runs, and often one: a column that falls steadily would be flat. The mean over all divisions,
each as likely as the cells make it, falls with it. All of it is post-processing of noisy counts.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

SURE = 3.0
"""Deviations of its noise from which a weight is taken as it was released."""
_RUN = 2.0
"""What a further run costs: squared errors, in logarithms of the number of cells."""


def cost_of_run(cells: int) -> float:
    """Return what a further run costs in a column of so many cells, in squared errors."""
    return _RUN * math.log(max(cells, 2))


def shrunk(mass: NDArray[Any] | float, deviation: NDArray[Any] | float) -> NDArray[np.float64]:
    """Return weights of runs, the less of each the more of it may be noise.

    Empty runs of many cells would fill up with what their noise adds up to.

    Example:
        >>> shrunk(np.array([9.0, 2.0, -4.0]), 2.0)
        array([9., 1., 0.])
    """
    left = np.maximum(mass, 0.0)
    less = left**3 / np.maximum(left**2 + np.square(deviation), 1e-300)
    return np.asarray(np.where(left >= SURE * np.asarray(deviation), left, less), np.float64)


@dataclass(frozen=True, eq=False)
class Divisions:
    """All divisions of a row of cells into runs, in each of which density is even.

    Args:
        noisy: ``(n,)`` released weights of the cells.
        widths: ``(n,)``; a single value has none.
        deviation: of the noise of a cell.
        cost: of a run, in squared errors over the noise's variance.
    """

    noisy: NDArray[np.float64]
    widths: NDArray[np.float64]
    deviation: float
    cost: float

    def best(self) -> Iterator[slice]:
        """Yield the runs of the division with the least squared error and cost, in order.

        Found by dynamic programming (optimal partitioning).

        Reference: Jackson et al. 2005.
        """
        count = len(self.noisy)
        least, before = np.zeros(count + 1), np.zeros(count + 1, np.int64)
        for stop in range(1, count + 1):
            errors = least[:stop] + self._errors[:stop, stop]
            before[stop] = int(np.argmin(errors))
            least[stop] = errors[before[stop]]
        stops, stop = [], count
        while stop > 0:
            stops.append(stop)
            stop = int(before[stop])
        start = 0
        for stop in stops[::-1]:
            yield slice(start, stop)
            start = stop

    def mean(self) -> NDArray[np.float64]:
        """Return the mean weight of each cell ``(n,)`` over all divisions, at least zero.

        Each division is as likely as its squared error and cost make it; a run's weight is shrunk.
        Found by sums over all beginnings and all ends (forward and backward).

        Reference: Fearnhead 2006.
        """
        count = len(self.noisy)
        likely = -self._errors / 2
        begun, ended = np.zeros(count + 1), np.zeros(count + 1)
        for stop in range(1, count + 1):
            begun[stop] = logsumexp(begun[:stop] + likely[:stop, stop])
        for start in range(count - 1, -1, -1):
            ended[start] = logsumexp(likely[start, start + 1 :] + ended[start + 1 :])
        share = np.exp(begun[:, None] + likely + ended[None, :] - begun[count])
        dense = share * self._densities
        # A run adds its density to its first cell and those after, and takes it away behind.
        density = np.cumsum(dense.sum(axis=1) - dense.sum(axis=0))[:-1]
        return np.asarray(np.maximum(density, 0.0) * self._scaled * self.deviation, np.float64)

    @cached_property
    def _scaled(self) -> NDArray[np.float64]:
        mean = max(float(self.widths.mean()), 1e-300)
        return np.asarray(np.maximum(self.widths / mean, 1e-3), np.float64)

    @cached_property
    def _norms(self) -> NDArray[np.float64]:
        """Sum of squared widths of the run of cells from i to j - 1, ``(n + 1, n + 1)``."""
        return np.where(_is_run(len(self.noisy)), _runs(self._scaled**2), 1.0)

    @cached_property
    def _errors(self) -> NDArray[np.float64]:
        """Squared error and cost of the run of cells from i to j - 1, ``(n + 1, n + 1)``."""
        counts = self.noisy / self.deviation
        found = _runs(counts**2) - _runs(counts * self._scaled) ** 2 / self._norms + self.cost
        return np.where(_is_run(len(counts)), found, np.inf)

    @cached_property
    def _densities(self) -> NDArray[np.float64]:
        """Its density, in deviations a mean width."""
        counts = self.noisy / self.deviation
        count = len(counts)
        lengths = np.arange(count + 1) - np.arange(count + 1)[:, None]
        inside = _is_run(count)
        masses, noise = _runs(counts), np.sqrt(np.where(inside, lengths, 1))
        kept = shrunk(masses, noise) / np.where(masses > 0, masses, 1.0)
        dense = np.maximum(_runs(counts * self._scaled) / self._norms, 0.0)
        return np.where(inside & (masses > 0), dense * kept, 0.0)


def _runs(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return sums of values ``(n,)`` over the run from i to j - 1, ``(n + 1, n + 1)``."""
    sums = np.append(0.0, np.cumsum(values))
    return np.asarray(sums[None, :] - sums[:, None], np.float64)


def _is_run(count: int) -> NDArray[np.bool_]:
    return np.triu(np.ones((count + 1, count + 1), np.bool_), 1)
