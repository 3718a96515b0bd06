"""Releases that know their sensitivity: each draws its noise and states its event.

Noise and event come from the same frozen object, so the two cannot disagree.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import DiscreteLaplaceEvent, GaussianEvent, LaplaceEvent
from distributed_privrl.privacy.noise import LARGEST_SPREAD, NoiseSource, lattice_granularity

_MOST_ROUNDING = 2.0**-8
"""Share of the sensitivity that rounding may add; the noise pays for it."""


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """Gaussian releases of a vector with bounded L2 sensitivity.

    Args:
        sensitivity: the largest L2 distance between the vectors of two neighbouring datasets.
        noise_multiplier: standard deviation / sensitivity.
        count: releases that `event` states; `release` makes one.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity``,
        enlarged by sqrt(N) g for rounding to the lattice of spacing g. Event: ``gaussian``.
    """

    sensitivity: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self.sensitivity, self.noise_multiplier, self.count)

    @property
    def event(self) -> GaussianEvent:
        """What ``count`` releases are charged as."""
        return GaussianEvent(noise_multiplier=self.noise_multiplier, count=self.count)

    def standard_deviation(self, dimension: int) -> float:
        """Return the noise's standard deviation for a vector of ``dimension`` values."""
        granularity = lattice_granularity(self.sensitivity, dimension)
        return self.noise_multiplier * (self.sensitivity + math.sqrt(dimension) * granularity)

    def release(
        self, values: NDArray[np.float64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return ``values`` with fresh noise.

        Args:
            values: ``(N,)``, the sensitive vector.
            source: draws the noise.
            tag: what the draw is for; matters to sources for tests alone.

        Returns:
            ``(N,)``
        """
        dimension = _dimension(values)
        return source.add_gaussian(
            values,
            standard_deviation=self.standard_deviation(dimension),
            granularity=lattice_granularity(self.sensitivity, dimension),
            tag=tag,
        )


@dataclass(frozen=True, kw_only=True)
class LaplaceRelease:
    """Laplace releases of a vector with bounded L1 sensitivity.

    Args:
        sensitivity: the largest L1 distance between the vectors of two neighbouring datasets.
        noise_multiplier: scale / sensitivity.
        count: releases that `event` states; `release` makes one.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity``,
        enlarged by N g for rounding to the lattice of spacing g. Event: ``laplace``.
    """

    sensitivity: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self.sensitivity, self.noise_multiplier, self.count)

    @property
    def event(self) -> LaplaceEvent:
        """What ``count`` releases are charged as."""
        return LaplaceEvent(noise_multiplier=self.noise_multiplier, count=self.count)

    def scale(self, dimension: int) -> float:
        """Return the noise's scale for a vector of ``dimension`` values."""
        return self.noise_multiplier * (self.sensitivity + dimension * self._granularity(dimension))

    def _granularity(self, dimension: int) -> float:
        # N g, not sqrt(N) g, is what rounding can add to an L1 distance.
        granularity = lattice_granularity(self.sensitivity, dimension**2)
        # The noise of millions of values must still fit the lattice's 53 bits.
        while 2 * self.noise_multiplier * self.sensitivity > LARGEST_SPREAD * granularity:
            granularity *= 2
        if dimension * granularity > _MOST_ROUNDING * self.sensitivity:
            raise ConfigError(
                f"{dimension} values with noise_multiplier={self.noise_multiplier:.4g} have no"
                " lattice: release fewer at once, with less noise, or with Gaussian noise"
            )
        return granularity

    def release(
        self, values: NDArray[np.float64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return ``values`` with fresh noise.

        Args:
            values: ``(N,)``, the sensitive vector.
            source: draws the noise.
            tag: what the draw is for; matters to sources for tests alone.

        Returns:
            ``(N,)``
        """
        dimension = _dimension(values)
        return source.add_laplace(
            values,
            scale=self.scale(dimension),
            granularity=self._granularity(dimension),
            tag=tag,
        )


@dataclass(frozen=True, kw_only=True)
class DiscreteLaplaceRelease:
    """Releases of integers with bounded L1 sensitivity; exact, nothing is rounded.

    Args:
        sensitivity: the largest L1 distance between the integers of two neighbouring datasets.
        scale: of the noise, P(k) proportional to exp(-|k| / scale).
        count: releases that `event` states; `release` makes one.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity``.
        Event: ``discrete_laplace`` with parameter 1 / scale, rounded up.
    """

    sensitivity: int
    scale: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self.sensitivity, self.scale, self.count)
        if self.sensitivity != int(self.sensitivity):
            raise ConfigError(f"sensitivity must be an integer, got {self.sensitivity!r}")

    @property
    def event(self) -> DiscreteLaplaceEvent:
        """What ``count`` releases are charged as."""
        return DiscreteLaplaceEvent(
            parameter=_inverse(self.scale), sensitivity=self.sensitivity, count=self.count
        )

    def release(
        self, values: NDArray[np.int64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` with fresh noise.

        Args:
            values: ``(N,)``, the sensitive integers.
            source: draws the noise.
            tag: what the draw is for; matters to sources for tests alone.

        Returns:
            ``(N,)``
        """
        _dimension(values)
        return source.add_discrete_laplace(values, scale=self.scale, tag=tag)


def noisy_count(*, epsilon: float) -> DiscreteLaplaceRelease:
    """Return the release that counts the units of a dataset whose size is not public.

    Args:
        epsilon: what the count costs.

    Raises:
        ConfigError: ``epsilon`` is out of range.

    Privacy:
        Unit: whatever is counted. Relation: any; one unit moves the count by 1 at most.
        Sensitivity: 1. Event: ``discrete_laplace`` with parameter ``epsilon``.
    """
    return integer_laplace_release(epsilon=epsilon, sensitivity=1)


def integer_laplace_release(*, epsilon: float, sensitivity: int) -> DiscreteLaplaceRelease:
    """Return the release of integers with the least noise that costs ``epsilon`` at most.

    Args:
        epsilon: what one release costs.
        sensitivity: the largest L1 distance between the integers of two neighbouring datasets.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Event: ``discrete_laplace``.
    """
    check_positive("sensitivity", sensitivity)
    scale = sensitivity / check_positive("epsilon", epsilon)
    while _inverse(scale) * sensitivity > epsilon:
        scale = math.nextafter(scale, math.inf)
    return DiscreteLaplaceRelease(sensitivity=sensitivity, scale=scale)


def _inverse(scale: float) -> float:
    """Return 1 / scale, rounded up."""
    rounded = 1 / scale
    return rounded if Fraction(rounded) * Fraction(scale) >= 1 else math.nextafter(rounded, 1e300)


def _check(sensitivity: float, spread: float, count: int) -> None:
    check_positive("sensitivity", sensitivity)
    check_positive("noise_multiplier or scale", spread)
    check_positive("count", count)


def _dimension(values: NDArray[np.float64] | NDArray[np.int64]) -> int:
    if values.ndim != 1 or values.size == 0:
        raise ConfigError(f"values must have shape (N,) with N > 0, got {values.shape}")
    return int(values.size)
