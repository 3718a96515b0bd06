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
from distributed_privrl.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent
from distributed_privrl.privacy.noise import NoiseSource


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
        _check_vector(values)
        return source.add_discrete_laplace(values, scale=self.scale, tag=tag)


@dataclass(frozen=True, kw_only=True)
class IntegerGaussianRelease:
    """Releases of integers with bounded L2 sensitivity; exact, nothing is rounded.

    Args:
        sensitivity: the largest L2 distance between the integers of two neighbouring datasets.
        noise_multiplier: standard deviation / sensitivity.
        count: releases that `event` states; `release` makes one.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity``.
        Event: ``discrete_gaussian``.
    """

    sensitivity: float
    noise_multiplier: float
    count: int = 1

    def __post_init__(self) -> None:
        _check(self.sensitivity, self.noise_multiplier, self.count)

    @property
    def standard_deviation(self) -> float:
        """The noise's standard deviation, rounded up."""
        return math.nextafter(self.noise_multiplier * self.sensitivity, math.inf)

    @property
    def event(self) -> DiscreteGaussianEvent:
        """What ``count`` releases are charged as."""
        return DiscreteGaussianEvent(
            noise_multiplier=self.noise_multiplier, sensitivity=self.sensitivity, count=self.count
        )

    def release(
        self, values: NDArray[np.int64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` with fresh noise; see `DiscreteLaplaceRelease.release`."""
        _check_vector(values)
        return source.add_discrete_gaussian(
            values, standard_deviation=self.standard_deviation, tag=tag
        )


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


def _check_vector(values: NDArray[np.int64]) -> None:
    if values.ndim != 1 or values.size == 0:
        raise ConfigError(f"values must have shape (N,) with N > 0, got {values.shape}")
