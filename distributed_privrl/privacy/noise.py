"""Noise for releases, and who may make it.

A caller gets standard deviation and granularity from a calibrated mechanism, never by hand: the
mechanism also yields the event. `SecureNoise` is the only source whose releases can be certified.
"""

import abc
import hashlib
import math
import os
import threading
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.integer_noise import (
    integer_gaussian,
    integer_laplace,
    released,
    seeded_gaussian,
    seeded_laplace,
)
from distributed_privrl.privacy.process_secret import ProcessSecret

_LARGEST_STEPS = 2.0**52
LATTICE_SLACK = 2.0**-20
"""Rounding to a `lattice_granularity` enlarges a sensitivity by this part of itself at most."""

_LARGEST_EXPONENT = 500
FloatArray = NDArray[np.float64] | NDArray[np.float32]


class NoiseSource(Protocol):
    """Adds noise to the sum of clipped contributions: once, after the sum."""

    name: str
    certifiable: bool
    assumptions: tuple[str, ...]
    draws: int

    def add_gaussian(
        self,
        values: FloatArray,
        *,
        standard_deviation: float,
        granularity: float,
        tag: int = 0,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return ``values`` plus Gaussian noise, both rounded to a lattice.

        Args:
            values: ``(N,)``, finite.
            standard_deviation: of the noise, > 0.
            granularity: lattice spacing, a power of two; see `lattice_granularity`.
            tag: what the draw is for; sources for tests give the same noise for the same tag.
            out: ``(N,)``, where to write the result; may be ``values``.

        Returns:
            ``(N,)``; each value is a multiple of ``granularity``.

        Raises:
            ConfigError: an argument is out of range.

        Privacy:
            Unit and relation: the caller's, through ``S``, the L2 sensitivity of ``values``.
            Event: one Gaussian with ``noise_multiplier = standard_deviation / (S + sqrt(N) g)``:
            the result is rint of (rounded sum + noise), a function of a Gaussian release of the
            rounded sum, and rounding moves two neighbouring sums apart by sqrt(N) g at most.
            Assumption ``float64_lattice_noise``: a normal takes one of 2^128 values a pair of
            coordinates, and no radius beyond 9.49, where the ideal has probability 2^-65 a pair.
        """
        ...

    def add_laplace(
        self, values: FloatArray, *, scale: float, granularity: float, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return ``values`` plus Laplace noise, both rounded to a lattice.

        Args:
            values: ``(N,)``, finite.
            scale: of the noise, > 0.
            granularity: lattice spacing, a power of two.
            tag: what the draw is for.

        Returns:
            ``(N,)``; each value is a multiple of ``granularity``.

        Raises:
            ConfigError: an argument is out of range.

        Privacy:
            Unit and relation: the caller's, through ``S``, the L1 sensitivity of ``values``.
            Event: one Laplace with ``noise_multiplier = scale / (S + N g)``; rounding moves two
            neighbours apart by N g in L1, so that ``lattice_granularity(S, N**2)`` costs
            `LATTICE_SLACK`. Assumption ``float64_lattice_noise``: noise never exceeds 45.1 scales,
            which the ideal does with probability 2^-65.
        """
        ...

    def add_discrete_laplace(
        self, values: NDArray[np.int64], *, scale: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus integers k drawn with P(k) proportional to exp(-|k| / scale).

        Args:
            values: ``(N,)``.
            scale: > 0.
            tag: what the draw is for.

        Returns:
            ``(N,)``; sums beyond 64 bits stop at the largest or smallest integer.

        Raises:
            ConfigError: ``scale`` is out of range.

        Privacy:
            Unit and relation: the caller's, through the integer L1 sensitivity of ``values``.
            Event: one discrete Laplace with ``parameter = 1 / scale``, exact.
        """
        ...

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus integers k, P(k) proportional to exp(-(k / s)^2 / 2).

        Args:
            values: ``(N,)``.
            standard_deviation: s, > 0; that of the noise is a hair below it, where s is small.
            tag: what the draw is for.

        Returns:
            ``(N,)``; sums beyond 64 bits stop at the largest or smallest integer.

        Raises:
            ConfigError: ``standard_deviation`` is out of range.

        Privacy:
            Unit and relation: the caller's, through S, the L2 sensitivity of the integers.
            Event: one discrete Gaussian with ``noise_multiplier = s / S``, exact.
        """
        ...


LARGEST_SPREAD = 2.0**47
"""Largest noise in lattice steps: 64 scales fit into the 53 bits of exact integers."""


def lattice_granularity(sensitivity: float, dimension: int) -> float:
    """Return the largest power of two g with ``sqrt(dimension) * g <= 2**-20 * sensitivity``.

    Args:
        sensitivity: L2 sensitivity of the vector before rounding, > 0.
        dimension: number of coordinates.

    Raises:
        ConfigError: an argument is out of range.

    Example:
        >>> lattice_granularity(1.0, 4) == 2.0**-21
        True
    """
    check_positive("sensitivity", sensitivity)
    check_positive("dimension", dimension)
    _, exponent = math.frexp(LATTICE_SLACK * sensitivity / math.sqrt(dimension))
    if abs(exponent) > _LARGEST_EXPONENT:
        raise ConfigError(f"sensitivity={sensitivity:g} has no lattice: choose another unit for it")
    return math.ldexp(1.0, exponent - 1)


def most_exact_units(clip_norm: float, dimension: int) -> int:
    """Return how many clipped vectors float64 adds without rounding on their lattice.

    The sum stays below 2^52 steps in each coordinate; float64 holds integers up to twice as many,
    which covers what ``sum_slack`` pays for.

    Args:
        clip_norm: L2 bound of a vector.
        dimension: number of coordinates.

    Example:
        >>> f"{most_exact_units(1.0, 6_000_000):,}"
        '1,048,575'
    """
    steps = clip_norm / lattice_granularity(clip_norm, dimension) + 1  # each is rounded to one
    return int(_LARGEST_STEPS / steps)


def _check_lattice(values: FloatArray, spread_name: str, spread: float, granularity: float) -> None:
    if values.ndim != 1 or values.dtype not in (np.float32, np.float64):
        raise ConfigError(
            f"values must be a float vector (N,), got {values.dtype} of shape {values.shape}"
        )
    check_positive(spread_name, spread)
    check_positive("granularity", granularity)
    mantissa, exponent = math.frexp(granularity)
    if mantissa != 0.5 or abs(exponent) > _LARGEST_EXPONENT:
        raise ConfigError(
            f"granularity must be a power of two, got {granularity!r}: use lattice_granularity"
        )
    if spread / granularity > LARGEST_SPREAD:
        raise ConfigError(
            f"{spread_name}={spread:g} is more than 2**47 times granularity={granularity:g}"
        )


def _lattice_out(values: FloatArray, out: NDArray[np.float64] | None) -> NDArray[np.float64]:
    if out is None:
        return np.empty(len(values))
    if out.shape != values.shape or out.dtype != np.float64 or not out.flags.c_contiguous:
        raise ConfigError(
            f"out must be a contiguous float64 vector {values.shape}, got {out.dtype} {out.shape}"
        )
    return out


class _LatticeNoise(abc.ABC):
    """What sources of lattice noise share: everything but where their keystream comes from."""

    draws = 0

    def add_gaussian(
        self,
        values: FloatArray,
        *,
        standard_deviation: float,
        granularity: float,
        tag: int = 0,
        out: NDArray[np.float64] | None = None,
    ) -> NDArray[np.float64]:
        """Return ``values`` plus Gaussian noise; see `NoiseSource.add_gaussian`."""
        _check_lattice(values, "standard_deviation", standard_deviation, granularity)
        result = _lattice_out(values, out)
        self.draws += 1
        factor = standard_deviation / granularity
        contiguous = values if values.flags.c_contiguous else values.copy()
        self._add_normals(tag, contiguous, result, factor, granularity)
        return result

    def add_laplace(
        self, values: FloatArray, *, scale: float, granularity: float, tag: int = 0
    ) -> NDArray[np.float64]:
        """Return ``values`` plus Laplace noise; see `NoiseSource.add_laplace`."""
        _check_lattice(values, "scale", scale, granularity)
        size_words, sign_words = self._laplace_words(tag, 2 * len(values)).reshape(2, -1)
        size = -np.log((size_words.astype(np.float64) + 0.5) * 2.0**-64)
        noise = np.copysign(size * (scale / granularity), sign_words.view(np.int64))
        steps = np.rint(values.astype(np.float64) / granularity) + np.rint(noise)
        return np.asarray((steps + 0.0) * granularity, np.float64)  # + 0: see add_on_lattice

    @abc.abstractmethod
    def _add_normals(
        self,
        tag: int,
        values: FloatArray,
        out: NDArray[np.float64],
        factor: float,
        granularity: float,
    ) -> None: ...

    @abc.abstractmethod
    def _laplace_words(self, tag: int, count: int) -> NDArray[np.uint64]: ...


class SecureNoise(_LatticeNoise, ProcessSecret):
    """Noise keyed from the operating system's entropy, in this process only.

    Args:
        draw_ahead: dimension of the vectors whose normals a thread prepares while the caller
            computes; None draws when asked. Of use only where a core is idle.
    """

    name = "float64_lattice"
    certifiable = True
    assumptions: tuple[str, ...] = ("float64_lattice_noise",)

    def __init__(self, *, draw_ahead: int | None = None) -> None:
        from distributed_privrl.privacy.noise_kernel import DrawnAhead, KeyedStream

        super().__init__()
        if draw_ahead is not None:
            check_positive("draw_ahead", draw_ahead)
        self._lock = threading.Lock()
        self._stream = KeyedStream(os.urandom(32))
        self._ahead = DrawnAhead(os.urandom(32), draw_ahead) if draw_ahead is not None else None

    def add_discrete_laplace(
        self, values: NDArray[np.int64], *, scale: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus discrete Laplace noise from OpenDP's exact sampler.

        See `NoiseSource.add_discrete_laplace`.
        """
        check_positive("scale", scale)
        self._check_usable()
        return released(integer_laplace(scale), values)

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus discrete Gaussian noise from OpenDP's exact sampler.

        See `NoiseSource.add_discrete_gaussian`.
        """
        check_positive("standard_deviation", standard_deviation)
        self._check_usable()
        self.draws += 1
        return released(integer_gaussian(standard_deviation), values)

    def close(self) -> None:
        """Drop the keys; the source cannot be used any more."""
        if self._gone is None:
            with self._lock:
                if self._ahead is not None:
                    self._ahead.close()
                self._forget("is closed")

    def _add_normals(
        self,
        tag: int,
        values: FloatArray,
        out: NDArray[np.float64],
        factor: float,
        granularity: float,
    ) -> None:
        self._check_usable()
        with self._lock:
            source = self._ahead if self._ahead and self._ahead.fits(len(values)) else self._stream
            source.add(values, out, factor, granularity)

    def _laplace_words(self, tag: int, count: int) -> NDArray[np.uint64]:
        self._check_usable()
        with self._lock:
            return self._stream.words(count)

    def _forget(self, reason: str) -> None:
        if self._gone is None:
            del self._stream, self._ahead
        super()._forget(reason)


class SeededNoise(_LatticeNoise):
    """Noise that anyone can repeat, for tests alone: its certificates are invalid.

    Args:
        seed: the same seed and tag give the same noise, whatever was drawn before.
    """

    name = "insecure_seeded"
    certifiable = False
    assumptions: tuple[str, ...] = ()

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def add_discrete_laplace(
        self, values: NDArray[np.int64], *, scale: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus discrete Laplace noise in floating point: the same law."""
        check_positive("scale", scale)
        generator = self._generator("discrete_laplace", tag)
        return values + seeded_laplace(generator, len(values), scale)

    def add_discrete_gaussian(
        self, values: NDArray[np.int64], *, standard_deviation: float, tag: int = 0
    ) -> NDArray[np.int64]:
        """Return ``values`` plus discrete Gaussian noise in floating point: the same law."""
        check_positive("standard_deviation", standard_deviation)
        self.draws += 1
        generator = self._generator("discrete_gaussian", tag)
        return values + seeded_gaussian(generator, len(values), standard_deviation)

    def _add_normals(
        self,
        tag: int,
        values: FloatArray,
        out: NDArray[np.float64],
        factor: float,
        granularity: float,
    ) -> None:
        from distributed_privrl.privacy.noise_kernel import KeyedStream

        KeyedStream(self._key("gaussian", tag)).add(values, out, factor, granularity)

    def _laplace_words(self, tag: int, count: int) -> NDArray[np.uint64]:
        from distributed_privrl.privacy.noise_kernel import KeyedStream

        return KeyedStream(self._key("laplace", tag)).words(count)

    def _generator(self, kind: str, tag: int) -> np.random.Generator:
        key = int.from_bytes(self._key(kind, tag)[:16], "big")
        return np.random.Generator(np.random.Philox(key=key))

    def _key(self, kind: str, tag: int) -> bytes:
        return hashlib.sha256(f"{self._seed}/{kind}/{tag}".encode()).digest()
