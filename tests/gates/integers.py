"""Gates on exact integer noise: rounding a unit, the integers' law, what is charged for them."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.methods.primorl.start_states import MomentsRelease
from distributed_privrl.privacy.events import DiscreteGaussianEvent, DiscreteLaplaceEvent, Event
from distributed_privrl.privacy.exact_releases import (
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease, noisy_count
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.units import Relation
from tests.gates.bounds import ALPHA, assert_dispersion
from tests.gates.system import System

VALUES = 4_000
RELEASES = (
    DiscreteGaussianRelease(sensitivity=3.0, noise_multiplier=1.3, dimension=VALUES),
    FixedPointLaplaceRelease(sensitivity=3.0, noise_multiplier=1.3, dimension=VALUES),
)


@dataclass
class Draws:
    """Integers that went into exact noise and came out of it, one entry a draw."""

    raw: list[NDArray[np.int64]] = field(default_factory=list)
    noisy: list[NDArray[np.int64]] = field(default_factory=list)
    lattice: int = 0

    @property
    def noise(self) -> NDArray[np.float64]:
        (raw,), (noisy,) = self.raw, self.noisy
        return np.asarray(noisy - raw, np.float64)


@contextmanager
def observed() -> Iterator[Draws]:
    """Record every draw of this process: exact integers, and how often the lattice was used."""
    seen = Draws()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("add_discrete_gaussian", "add_discrete_laplace"):
            right = getattr(SecureNoise, name)

            def spy(self: SecureNoise, values: Any, *, right: Any = right, **rest: Any) -> Any:
                seen.raw.append(np.array(values))
                noisy = right(self, values, **rest)
                seen.noisy.append(np.array(noisy))
                return noisy

            patch.setattr(SecureNoise, name, spy)
        for name in ("add_gaussian", "add_laplace"):
            right = getattr(SecureNoise, name)

            def counted(self: SecureNoise, values: Any, *, right: Any = right, **rest: Any) -> Any:
                seen.lattice += 1
                return right(self, values, **rest)

            patch.setattr(SecureNoise, name, counted)
        yield seen


def gate_integer_noise(system: System) -> None:
    """What is drawn are integers of exactly the law that is charged."""
    for release in RELEASES:
        with observed() as seen:
            released = release.release(np.arange(VALUES, dtype=np.int64), SecureNoise())
        _check_law(seen, release.event, type(release).__name__)
        np.testing.assert_array_equal(released, seen.noisy[0] * release.lattice)
    integers = IntegerGaussianRelease(sensitivity=math.sqrt(3) * 2**20, noise_multiplier=1.3)
    with observed() as seen:
        released = integers.release(np.arange(VALUES, dtype=np.int64), SecureNoise())
    _check_law(seen, integers.event, type(integers).__name__)
    np.testing.assert_array_equal(released, seen.noisy[0])
    count = noisy_count(epsilon=0.05)
    with observed() as seen:
        for _ in range(VALUES // 4):
            count.release(np.array([1000], np.int64), SecureNoise())
    together = Draws([np.concatenate(seen.raw)], [np.concatenate(seen.noisy)], seen.lattice)
    _check_law(together, count.event, "a count")


def _check_law(seen: Draws, event: Event, what: str) -> None:
    assert seen.lattice == 0, f"{what} is drawn from float64"
    noise = seen.noise
    if isinstance(event, DiscreteGaussianEvent):
        spread = event.noise_multiplier * event.sensitivity
        assert_dispersion(
            float((noise / spread) @ (noise / spread)), noise.size, f"{what}: variance"
        )
        assert stats.kstest(noise / spread, "norm").pvalue > ALPHA, f"{what}: not Gaussian"
        return
    assert isinstance(event, DiscreteLaplaceEvent), f"{what}: integers are charged as {event.kind}"
    sizes = 2 * float(np.abs(noise).sum()) * event.parameter
    # |noise| of discrete Laplace is no continuous variable: its mean is 1 / sinh(a), not 1 / a.
    sizes *= math.sinh(event.parameter) / event.parameter
    assert_dispersion(sizes, 2 * noise.size, f"{what}: size of the noise")


def furthest_apart(
    release: DiscreteGaussianRelease | FixedPointLaplaceRelease,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two units' vectors (N,) at the sensitivity, where rounding pulls all values apart.

    Each value differs by a hair more than whole steps, and both round away from each other; the
    first one takes what is left of the sensitivity.
    """
    hair, size = 2.0**-20, release.dimension
    gaussian = isinstance(release, DiscreteGaussianRelease)
    whole = math.floor(
        release.sensitivity / (math.sqrt(size) if gaussian else size) / release.lattice
    )
    steps = np.full(size, whole - 1 + hair)
    power = 2 if gaussian else 1
    left = (release.sensitivity / release.lattice) ** power - (steps[1:] ** power).sum()
    steps[0] = left ** (1 / power) * (1 - 2.0**-40)
    other = np.full(size, (1 - hair) / 2)
    one = steps + other
    exact = [Fraction(x) - Fraction(y) for x, y in zip(one, other, strict=True)]
    distance = sum(d**power for d in exact)
    assert distance <= (Fraction(release.sensitivity) / Fraction(release.lattice)) ** power
    return one * release.lattice, other * release.lattice


def gate_paid_rounding(system: System) -> None:
    """Neighbours that rounding pulls apart as far as it can stay within what is paid for."""
    for release in RELEASES:
        one, other = furthest_apart(release)
        moved = (release.to_steps(one) - release.to_steps(other)).astype(object)
        gaussian = isinstance(release, DiscreteGaussianRelease)
        size = math.sqrt(sum(m * m for m in moved)) if gaussian else sum(map(abs, moved))
        paid = release.event.sensitivity  # type: ignore[union-attr]
        what, bare = type(release).__name__, release.sensitivity / release.lattice
        assert size <= paid, f"{what}: a unit moves the sum by {size:g} steps, {paid:g} are paid"
        assert size > bare, "rounding pulls nothing apart: the gate sees nothing"
        assert paid <= bare * (1 + 2.0**-15) + 1, f"{what}: {paid:g} steps are paid for {size:g}"


def gate_exact_sums(system: System) -> None:
    """A unit moves the sum by its own steps, whoever else is there, in any order."""
    release = MomentsRelease(
        width=3, clip_norm=2.0, epsilon=1.0, relation=Relation.REPLACE_WITH_NULL
    )
    mechanism = release.mechanism("trajectory")
    rows = np.random.default_rng(0).normal(0.0, 0.7, (500, 3))
    rows[::50] = 1e300
    total = release.totals(rows, mechanism)
    assert total.dtype == np.int64, "sums are no integers"
    assert (release.totals(rows[::-1], mechanism) == total).all(), "a sum depends on its order"
    for unit in range(0, 500, 23):
        rest = release.totals(np.delete(rows, unit, axis=0), mechanism)
        own = release.totals(rows[unit : unit + 1], mechanism)
        assert (total - rest == own).all(), "a unit moves a sum by more than its own steps"
        paid = mechanism.event.sensitivity  # type: ignore[union-attr]
        assert np.abs(own).sum() <= paid, "a unit's steps are not paid for"
