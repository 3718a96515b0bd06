"""The noise of a step, and the one kind of releases that draws it."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.events import Event, GaussianEvent, LaplaceEvent
from distributed_privrl.privacy.exact_releases import (
    EXACT_CELLS,
    DiscreteGaussianRelease,
    FixedPointLaplaceRelease,
)

Law: TypeAlias = Literal["gaussian", "laplace"]
Release: TypeAlias = DiscreteGaussianRelease | FixedPointLaplaceRelease


def exact_noise(cells: int | None) -> bool:
    """Say whether vectors of ``cells`` values get exact integer noise; unknown: they are to."""
    return cells is None or cells < EXACT_CELLS


@dataclass(frozen=True, kw_only=True)
class StepNoise:
    """The noise of a step as the plan drew it up: what is drawn and what is charged.

    Args:
        noise_multiplier: standard deviation (Laplace: scale) over the sensitivity, of all that one
            unit's data enter in a step.
        law: of the noise.
        exact: integers; otherwise float64 noise on a lattice.

    Raises:
        ConfigError: the noise multiplier is not above zero.
    """

    noise_multiplier: float
    law: Law = "gaussian"
    exact: bool = True

    def __post_init__(self) -> None:
        check_positive("noise_multiplier", self.noise_multiplier)

    @property
    def event(self) -> Event:
        """What a step is charged as; exact noise as on the coarsest lattice that there is."""
        if self.exact:
            return self.release(sensitivity=1.0, dimension=1).event
        if self.law == "laplace":
            return LaplaceEvent(noise_multiplier=self.noise_multiplier)
        return GaussianEvent(noise_multiplier=self.noise_multiplier)

    def release(self, *, sensitivity: float, dimension: int) -> Release:
        """Return the release of a vector with this noise.

        Args:
            sensitivity: L2 (Laplace: L1).
            dimension: of the vector.
        """
        if self.law == "gaussian":
            return self.gaussian(sensitivity=sensitivity, dimension=dimension)
        return FixedPointLaplaceRelease(
            sensitivity=sensitivity,
            noise_multiplier=self.noise_multiplier,
            dimension=dimension,
            float_noise=not self.exact,
        )

    def gaussian(self, *, sensitivity: float, dimension: int) -> DiscreteGaussianRelease:
        """Return the Gaussian release of a vector; arguments as of `release`."""
        return DiscreteGaussianRelease(
            sensitivity=sensitivity,
            noise_multiplier=self.noise_multiplier,
            dimension=dimension,
            float_noise=not self.exact,
        )


def check_cells(noise: StepNoise, cells: int) -> None:
    """Check that the noise is drawn as vectors of ``cells`` values ask for.

    Raises:
        UnsafeError: it was planned for vectors of another size.
    """
    if noise.exact != exact_noise(cells):
        raise UnsafeError(
            f"the noise was not planned for releases of {cells} numbers: plan with the dataset's"
            " own numbers of states and actions"
        )
