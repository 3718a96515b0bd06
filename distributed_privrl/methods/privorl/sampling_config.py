"""Configuration of how PrivORL's releases are drawn."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from distributed_privrl.core.config import Epsilon, PositiveFloat, PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.rollouts import RolloutConfig

if TYPE_CHECKING:
    from distributed_privrl.models.edm import SamplerConfig


class PrecisionConfig(StrictModel):
    """Whatever the sampler is."""

    precision: Literal["auto", "fp32", "bf16"] = Field(
        default="auto", description="auto: bf16 where the processor or GPU multiplies it natively"
    )


class SamplingConfig(PrecisionConfig):
    """The stochastic sampler of the release."""

    steps: PositiveInt = Field(default=32, description="noise levels (paper: 128)")
    churn: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="fresh noise in all (paper: 80)"
    )
    churn_min: PositiveFloat = Field(default=0.05, description="lowest noise level with churn")
    churn_max: PositiveFloat = Field(default=50.0, description="highest noise level with churn")
    churn_noise: PositiveFloat = Field(default=1.003, description="deviation of the fresh noise")
    chunk_rows: PositiveInt = Field(default=1024, description="rows drawn at once")

    def sampler(self) -> "SamplerConfig":
        """Return the sampler's constants."""
        from distributed_privrl.models.edm import SamplerConfig

        return SamplerConfig(
            steps=self.steps,
            churn=self.churn,
            churn_min=self.churn_min,
            churn_max=self.churn_max,
            churn_noise=self.churn_noise,
        )


class DrawingConfig(StrictModel):
    """Drawing the release from the autoregressive model."""

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.003,
        description="bins of an observation's number that are less likely than this share of the"
        " likeliest are not drawn",
    )
    chunk_rows: PositiveInt = Field(default=4096, description="rows drawn at once")


class StitchingConfig(PrecisionConfig, RolloutConfig):
    """Sampling of whole trajectories, fragment after fragment."""

    steps: PositiveInt | None = Field(
        default=20, description="evaluations of the network a fragment; null: every noise level"
    )
    stochasticity: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="fresh noise: 0 is DDIM, 1 the ancestral sampler"
    )
    chunk_trajectories: PositiveInt = Field(default=256, description="trajectories drawn at once")


class NoisySupport(StrictModel):
    """Draw again what leaves the cells that sensitive units visit; finding them is charged."""

    epsilon: Epsilon = Field(description="epsilon spent on finding the visited cells")
    columns: tuple[Annotated[int, Field(ge=0)], ...] = Field(
        min_length=1,
        max_length=3,
        description="numbers of an observation, by their place in it from 0 (not by name)",
    )
    cells: Annotated[int, Field(ge=2, le=256)] = Field(
        default=24, description="cells of each column, of equal width over its public range"
    )
    attempts: PositiveInt = Field(
        default=20, description="times that a trajectory is drawn again before it is kept"
    )

    def threshold(self, sensitivity: float) -> float:
        """Return the noisy weight from which a cell counts as visited.

        Of all cells, if none were visited, about one would count as such.

        Args:
            sensitivity: how far one unit moves the histogram, in L1.
        """
        return sensitivity / self.epsilon * math.log(max(2.0, self._size / 2))

    def check_units(self, units: int, relation: Relation) -> None:
        """Refuse cells that the units, evenly spread over all of them, could not fill.

        Raises:
            ConfigError: there are too many.
        """
        needed = self._needed(relation)
        if units < needed:
            raise ConfigError(
                f"training.sampling.support: {self._size} cells of {units} units would be mostly"
                f" noise, {needed} units are needed: raise its epsilon or take fewer columns, or"
                f" cells ({self._fitting(units, relation)} fit); a count that was paid for may be"
                " given as data.units"
            )

    def _fitting(self, units: int, relation: Relation) -> int:
        """Return how many cells a column may have."""
        fit = [
            cells
            for cells in range(2, self.cells)
            if self.model_copy(update={"cells": cells})._needed(relation) <= units
        ]
        return max(fit, default=0)

    def _needed(self, relation: Relation) -> int:
        return math.ceil(self.threshold(relation.contributions) * self._size)

    @field_validator("columns")
    @classmethod
    def _differ(cls, columns: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError("columns must differ")
        return columns

    @property
    def _size(self) -> int:
        return int(self.cells ** len(self.columns))


class FlooredRolloutConfig(RolloutConfig):
    """Whole trajectories, token after token, from bins."""

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.003,
        description="bins of an observation's number that are less likely than this share of the"
        " likeliest are not drawn",
    )


class StepRolloutConfig(FlooredRolloutConfig):
    """The same for the autoregressive model."""

    support: NoisySupport | None = Field(
        default=None,
        description="draw trajectories again that leave the cells which sensitive units visit;"
        " {epsilon: E, columns: [0, 1]} finds those with noise",
    )
