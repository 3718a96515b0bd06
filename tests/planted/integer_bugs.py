"""Bugs in exact integer noise: too little of it, rounding that is not paid for, a wrong event."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distributed_privrl.methods.primorl.start_states import MomentsRelease
from distributed_privrl.privacy import noise
from distributed_privrl.privacy.events import GaussianEvent
from distributed_privrl.privacy.exact_releases import (
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.noise import SecureNoise

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_spread(name: str, factor: float) -> Plant:
    """OpenDP is asked for another spread than was calibrated."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(noise, name)
        patch.setattr(noise, name, lambda spread: right(factor * spread))

    return plant


def sensitivity_left_out(patch: pytest.MonkeyPatch) -> None:
    """Integers that one unit moves by several steps have noise for a single step."""
    patch.setattr(
        IntegerGaussianRelease, "standard_deviation", property(lambda self: self.noise_multiplier)
    )


def charged_as_gaussian(patch: pytest.MonkeyPatch) -> None:
    """Integers are drawn, and a continuous Gaussian is charged."""
    patch.setattr(
        DiscreteGaussianRelease,
        "event",
        property(lambda self: GaussianEvent(noise_multiplier=self.noise_multiplier)),
    )


def drawn_from_floats(patch: pytest.MonkeyPatch) -> None:
    """Noise is rounded float64 noise, and exact integers are charged."""

    def rounded(self: SecureNoise, values: Any, *, standard_deviation: float, tag: int = 0) -> Any:
        drawn = self.add_gaussian(
            np.zeros(len(values)), standard_deviation=standard_deviation, granularity=1.0
        )
        return values + drawn.astype(np.int64)

    patch.setattr(SecureNoise, "add_discrete_gaussian", rounded)


def rounding_is_free(kind: type[Any]) -> Plant:
    """A unit's rounding is not in the sensitivity."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            kind, "sensitivity_steps", property(lambda self: int(self.sensitivity / self.lattice))
        )

    return plant


rounding_is_free_gaussian = rounding_is_free(DiscreteGaussianRelease)
rounding_is_free_laplace = rounding_is_free(FixedPointLaplaceRelease)


def rounded_after_the_sum(patch: pytest.MonkeyPatch) -> None:
    """Vectors are added up as floats, and the sum is rounded to the lattice."""

    def totals(self: MomentsRelease, vectors: Any, mechanism: Any) -> Any:
        return np.rint(self.parts(vectors).sum(axis=0) / mechanism.lattice).astype(np.int64)

    patch.setattr(MomentsRelease, "totals", totals)
