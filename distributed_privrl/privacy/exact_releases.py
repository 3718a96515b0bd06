"""Releases of real vectors by integers: rounded a unit, summed exactly, noise drawn exactly.

How a caller releases a statistic that is a sum over units of one vector each:

1. ``release.to_steps(term)`` of each unit's whole vector, before anything is added up: integers.
2. The sum of these integers over units, as 64-bit integers: exact, in any order.
3. ``release.release(total, source)``: noise of integers, and the way back to real numbers.

Rounding a unit's vector moves each coordinate by half a step at most, so that two neighbours' sums
are further apart than before by N steps in L1 and sqrt(N) in L2 at most, whatever the relation:
under each, they differ by two units' vectors at most. The noise pays for that, 2^-16 of it. Sums
stay below 2^62 steps for 2^62 / (sensitivity in steps) units: 3 10^7 where a million cells are
released with Laplace noise, more with fewer cells or Gaussian noise.
"""

import abc
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import (
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    LaplaceEvent,
)
from distributed_privrl.privacy.noise import (
    LARGEST_SPREAD,
    LATTICE_SLACK,
    NoiseSource,
    lattice_granularity,
)

EXACT_CELLS = 1_000_000
"""From so many values on, OpenDP would take half a minute: float64 lattice noise, named as such."""
FLOAT_SLACK = 2.0**-32
"""Share of the sensitivity by which two vectors may be further apart for having been computed."""
ROUNDING_SHARE = 2.0**-16
"""Share of the sensitivity that rounding one vector of each of two units adds at most."""
_MOST_ROUNDING = 2.0**-8


@dataclass(frozen=True, kw_only=True)
class _FixedPointRelease(abc.ABC):
    """What both kinds share: the lattice, and how a unit's vector gets there.

    Args:
        sensitivity: the largest distance between the sums of two neighbouring datasets.
        noise_multiplier: of the noise, relative to the sensitivity.
        dimension: values of the vector (N).
        count: releases that `event` states; `release` makes one.
        float_noise: noise as from `EXACT_CELLS` values on, because a longer vector of the same
            charge has it.
    """

    sensitivity: float
    noise_multiplier: float
    dimension: int
    count: int = 1
    float_noise: bool = False

    def __post_init__(self) -> None:
        for name in ("sensitivity", "noise_multiplier", "dimension", "count"):
            check_positive(name, getattr(self, name))
        self._check_lattice()

    @property
    @abc.abstractmethod
    def lattice(self) -> float:
        """The public spacing g of one step, a power of two."""

    @property
    def exact(self) -> bool:
        """Whether the noise is exact integers, or rounded from float64."""
        return self.dimension < EXACT_CELLS and not self.float_noise

    def _check_lattice(self) -> None:
        _ = self.lattice

    def to_steps(self, values: ArrayLike) -> NDArray[np.int64]:
        """Return values of one unit's vector as whole numbers of steps.

        Args:
            values: of any shape: one unit's vector, many units' in rows, or some cells of one, as
                long as no unit has two values for one cell. Cut to +-``sensitivity``, which moves
                no two vectors further apart; a value that is no number counts as zero.

        Returns:
            of the same shape, to be summed over units.
        """
        most = math.ceil(self.sensitivity / self.lattice)
        with np.errstate(over="ignore"):
            steps = np.rint(np.asarray(values, np.float64) / self.lattice)
        bounded = np.clip(np.nan_to_num(steps, nan=0.0, posinf=most, neginf=-most), -most, most)
        return np.asarray(bounded, np.int64)

    def _checked(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        if steps.shape != (self.dimension,) or steps.dtype != np.int64:
            raise ConfigError(
                f"steps must be an int64 vector ({self.dimension},), got {steps.dtype} of shape"
                f" {steps.shape}"
            )
        return steps


class DiscreteGaussianRelease(_FixedPointRelease):
    """Gaussian releases of a sum over units with bounded L2 sensitivity.

    ``noise_multiplier`` is standard deviation / sensitivity; arguments as for all releases here.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity_steps``
        in steps of ``lattice``: ``sensitivity`` (1 + `FLOAT_SLACK`), and sqrt(N) for rounding each
        unit's vector. Event: ``discrete_gaussian``; from `EXACT_CELLS` values on ``gaussian``,
        under the assumption ``float64_lattice_noise``.
    """

    @property
    def lattice(self) -> float:
        """The public spacing g of one step: sqrt(N) g is 2^-16 of the sensitivity at most."""
        share = ROUNDING_SHARE / LATTICE_SLACK
        return lattice_granularity(share * self.sensitivity, self.dimension)

    @property
    def sensitivity_steps(self) -> float:
        """How far one unit moves the summed steps, in L2."""
        steps = self.sensitivity / self.lattice
        return steps * (1 + FLOAT_SLACK) + math.sqrt(self.dimension)

    @property
    def standard_deviation(self) -> float:
        """The noise's standard deviation, in the values' own unit."""
        return self._standard_deviation_steps * self.lattice

    @property
    def _standard_deviation_steps(self) -> float:
        return math.nextafter(self.noise_multiplier * self.sensitivity_steps, math.inf)

    @property
    def event(self) -> DiscreteGaussianEvent | GaussianEvent:
        """What ``count`` releases are charged as."""
        if not self.exact:
            return GaussianEvent(noise_multiplier=self.noise_multiplier, count=self.count)
        return DiscreteGaussianEvent(
            noise_multiplier=self.noise_multiplier,
            sensitivity=self.sensitivity_steps,
            count=self.count,
        )

    def release(
        self, steps: NDArray[np.int64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return the sum with fresh noise, in the values' own unit.

        Args:
            steps: ``(N,)``, the sum over units of `to_steps`.
            source: draws the noise.
            tag: what the draw is for; matters to sources for tests alone.

        Returns:
            ``(N,)``
        """
        total, spread = self._checked(steps), self._standard_deviation_steps
        if self.exact:
            noisy = source.add_discrete_gaussian(total, standard_deviation=spread, tag=tag)
        else:
            noise = source.add_gaussian(
                np.zeros(self.dimension), standard_deviation=spread, granularity=1.0, tag=tag
            )
            noisy = total + noise.astype(np.int64)
        return noisy.astype(np.float64) * self.lattice


class FixedPointLaplaceRelease(_FixedPointRelease):
    """Laplace releases of a sum over units with bounded L1 sensitivity.

    ``noise_multiplier`` is scale / sensitivity; arguments as for all releases here.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit and relation: the caller's, through ``sensitivity``. Sensitivity: ``sensitivity_steps``
        in steps of ``lattice``: ``sensitivity`` (1 + `FLOAT_SLACK`), rounded up, and N for rounding
        each unit's vector. Event: ``discrete_laplace``; from `EXACT_CELLS` values on ``laplace``,
        under the assumption ``float64_lattice_noise``.
    """

    @property
    def lattice(self) -> float:
        """The public spacing g of one step: N g is 2^-16 of the sensitivity at most.

        Float64 noise of millions of values must fit into 53 bits: there it may be more, to 2^-8.
        """
        share = ROUNDING_SHARE / LATTICE_SLACK
        spacing = lattice_granularity(share * self.sensitivity, self.dimension**2)
        while not self.exact and 2 * self.noise_multiplier * self.sensitivity > (
            LARGEST_SPREAD * spacing
        ):
            spacing *= 2
        return spacing

    def _check_lattice(self) -> None:
        if self.dimension * self.lattice > _MOST_ROUNDING * self.sensitivity:
            raise ConfigError(
                f"{self.dimension} values with noise_multiplier={self.noise_multiplier:.4g} have no"
                " lattice: release fewer at once, with less noise, or with Gaussian noise"
            )

    @property
    def sensitivity_steps(self) -> int:
        """How far one unit moves the summed steps, in L1."""
        steps = self.sensitivity / self.lattice
        return math.ceil(steps * (1 + FLOAT_SLACK)) + self.dimension

    @property
    def scale(self) -> float:
        """The noise's scale, in the values' own unit."""
        return self._scale_steps * self.lattice

    @property
    def _scale_steps(self) -> float:
        return self.noise_multiplier * self.sensitivity_steps

    @property
    def event(self) -> DiscreteLaplaceEvent | LaplaceEvent:
        """What ``count`` releases are charged as."""
        if not self.exact:
            return LaplaceEvent(noise_multiplier=self.noise_multiplier, count=self.count)
        return DiscreteLaplaceEvent(
            parameter=1 / self._scale_steps, sensitivity=self.sensitivity_steps, count=self.count
        )

    def release(
        self, steps: NDArray[np.int64], source: NoiseSource, *, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return the sum with fresh noise; see `DiscreteGaussianRelease.release`."""
        total = self._checked(steps)
        scale = math.nextafter(self._scale_steps, math.inf)
        if self.exact:
            noisy = source.add_discrete_laplace(total, scale=scale, tag=tag)
        else:
            noise = source.add_laplace(
                np.zeros(self.dimension), scale=scale, granularity=1.0, tag=tag
            )
            noisy = total + noise.astype(np.int64)
        return noisy.astype(np.float64) * self.lattice
