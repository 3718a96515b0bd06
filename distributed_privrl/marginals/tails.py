"""How the weight of a number falls off beyond what stands out from noise.

A tail of many cells drowns in their noise one by one, and its sum does as well. But all columns of
a table count the same rows, so that what all of them weigh is known well, and with it what is left
for a tail: its weight is not lost, and not made up. Its cells say how far it reaches, as far as
they say anything. All of it is post-processing of one noisy release.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SHAPES = (0.0, 0.25)
"""Of generalised Pareto distributions: an exponential one, and one with a heavier tail."""
_SCALES, _FINEST = 80, 0.1
"""Scales that are tried: from this part of the first cell to the width of the tail."""
_UNSURE = 0.7
"""Deviation of the logarithms of a tail's rate, and of its density where it begins, from those of
the body beside it."""


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A weight and the deviation of its noise."""

    value: float
    deviation: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Tail:
    """Cells at one end of a column, in which nothing stands out.

    Args:
        low: ``(n,)``, how far from the body each cell begins.
        high: ``(n,)``, and where it ends.
        noisy: ``(n,)``, released weights.
        deviation: of their noise.
        density: of the body where the tail begins; 0: nothing is known of it.
        rate: at which the logarithm of density falls in the body beside it; 0: likewise.
    """

    low: NDArray[np.float64]
    high: NDArray[np.float64]
    noisy: NDArray[np.float64]
    deviation: float
    density: float = 0.0
    rate: float = 0.0

    def masses(self, rest: Weight | None) -> NDArray[np.float64]:
        """Return the expected weight of each cell ``(n,)``, at least zero.

        It is the mean over scales and shapes of a generalised Pareto distribution, each as likely
        as the noisy cells, what is left for all of them, and the body make it.

        Args:
            rest: what is left for the tail, of the weight of all rows; None: nobody knows.
        """
        shares, rates, within = self._shares()
        precise = (shares**2).sum(axis=1) / self.deviation**2
        aim = shares @ self.noisy / self.deviation**2
        if rest is not None:
            precise = precise + rest.deviation**-2
            aim = aim + rest.value / rest.deviation**2
        amounts = [np.maximum(aim / np.maximum(precise, 1e-300), 0.0)]
        if self.density:
            amounts.append(self.density * within / rates)
        expected = np.concatenate([one[:, None] * shares for one in amounts])
        misfit = ((self.noisy - expected) ** 2).sum(axis=1) / (2 * self.deviation**2)
        weights, scales = np.concatenate(amounts), np.tile(rates, len(amounts))
        if rest is not None:
            misfit += (weights - rest.value) ** 2 / (2 * rest.deviation**2)
        if self.density:
            begins = weights * scales / np.tile(within, len(amounts))
            misfit += _unlike(begins, self.density)
        if self.rate:
            misfit += _unlike(scales, self.rate)
        likely = np.exp(misfit.min() - misfit)
        return np.asarray(likely @ expected / likely.sum(), np.float64)

    def _shares(self) -> tuple[NDArray[np.float64], ...]:
        """Return the share of each cell ``(G, n)``, the rate, and how much lies within ``(G,)``."""
        first = max(float(self.high.min()), 1e-300)
        scales = np.geomspace(_FINEST * first, float(self.high.max()), _SCALES)
        found = [
            _beyond(self.low, scales[:, None], shape) - _beyond(self.high, scales[:, None], shape)
            for shape in _SHAPES
        ]
        every = np.concatenate(found)
        within = every.sum(axis=1)
        shares = every / np.maximum(within, 1e-300)[:, None]
        return shares, 1 / np.tile(scales, len(_SHAPES)), within


def _beyond(
    away: NDArray[np.float64], scales: NDArray[np.float64], shape: float
) -> NDArray[np.float64]:
    """Return the share of a generalised Pareto distribution that lies beyond ``away``."""
    if shape == 0:
        return np.asarray(np.exp(-away / scales), np.float64)
    return np.asarray((1 + shape * away / scales) ** (-1 / shape), np.float64)


def _unlike(values: NDArray[np.float64], known: float) -> NDArray[np.float64]:
    """Return the misfit of values to a known one, by their logarithms."""
    logs = np.log(np.maximum(values, 1e-300) / known)
    return np.asarray(logs**2 / (2 * _UNSURE**2), np.float64)
