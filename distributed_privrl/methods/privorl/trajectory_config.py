"""Configuration of PrivORL-j and PrivORL-j-U."""

import math
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveFloat,
    PositiveInt,
    StrictModel,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import TRAJECTORY
from distributed_privrl.methods.privorl.config import (
    AutoregressiveConfig,
    CodingConfig,
    PrecisionConfig,
    PretrainingConfig,
    PrivorlConfig,
    PrivorlTraining,
)
from distributed_privrl.models.ddpm import DDPM
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.optimiser import OptimiserConfig


class FragmentModelConfig(CodingConfig):
    """Fragments of trajectories and the diffusion of them (PrivORL, section VI, appendix F-A)."""

    next_observation: Literal["absolute", "difference"] = Field(
        default="absolute", description="code s' as it is, or as s' - s"
    )
    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=0, description="sines and cosines of each column that the network is shown"
    )
    horizon: Literal[8, 16, 32, 64, 128] = Field(default=32, description="steps of a fragment (H)")
    width: PositiveInt = Field(default=64, description="width of a token, or of the finest level")
    diffusion_steps: Annotated[int, Field(ge=2)] = Field(
        default=200, description="noise levels of the diffusion (T)"
    )
    schedule: Literal["cosine", "linear"] = Field(
        default="cosine", description="how the noise grows with its level"
    )
    prediction: Literal["velocity", "noise"] = Field(
        default="velocity", description="what the network predicts; the paper's is noise"
    )
    loss: Literal["l2", "huber", "l1"] = Field(
        default="l2", description="of the prediction; the paper's l1 learns medians, not means"
    )

    def ddpm(self) -> DDPM:
        """Return the diffusion."""
        return DDPM(steps=self.diffusion_steps, schedule=self.schedule, prediction=self.prediction)


class TransformerConfig(FragmentModelConfig):
    """The transformer of PrivORL-j (paper: width 256, six blocks, four heads)."""

    depth: PositiveInt = Field(default=4, description="number of blocks")
    heads: PositiveInt = Field(
        default=4, validate_default=True, description="attention heads; must divide the width"
    )

    @field_validator("heads")
    @classmethod
    def _divides(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            raise ValueError(f"must divide model.width={width}")
        return heads


class UNetConfig(FragmentModelConfig):
    """The temporal U-Net of PrivORL-j-U."""

    depth: PositiveInt = Field(default=3, description="number of levels")


class StepModelConfig(AutoregressiveConfig):
    """Bins and factors of a step, given the step before it."""

    horizon: Literal[8, 16, 32, 64, 128] = Field(
        default=32, description="steps whose mean loss is one row's (H)"
    )
    bins: Annotated[int, Field(ge=2)] = Field(
        default=64, description="bins of a number at most, half of them even, half by public rows"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(32, 32), description="widths of the hidden layers of each variable's network"
    )
    first_weight: PositiveFloat = Field(
        default=1.0,
        description="weight of an episode's first observation, where a step has 1/H",
    )


class FragmentPretrainingConfig(PretrainingConfig):
    """Pre-training on public fragments (PrivORL, algorithm 2, lines 8 to 18)."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=4000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    batch_size: PositiveInt = Field(default=64, description="public rows a step (B)")


class RolloutConfig(StrictModel):
    """Drawing whole trajectories, step after step."""

    max_length: PositiveInt | None = Field(
        default=None,
        description="steps of a synthetic trajectory at most (default: data.max_length, if a"
        " trajectory is the unit)",
    )
    chunk_trajectories: PositiveInt = Field(default=1024, description="trajectories drawn at once")


class StitchingConfig(PrecisionConfig, RolloutConfig):
    """Sampling of whole trajectories, fragment after fragment."""

    steps: PositiveInt | None = Field(
        default=20, description="evaluations of the network a fragment; null: every noise level"
    )
    stochasticity: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="fresh noise: 0 is DDIM, 1 the ancestral sampler"
    )
    chunk_trajectories: PositiveInt = Field(default=256, description="trajectories drawn at once")


class TrajectoriesTraining(PrivorlTraining):
    """Pre-training, private rounds over trajectories, sampling."""

    ROWS_AT_ONCE = 32

    rounds: PositiveInt = Field(default=500, description="private rounds (T)")
    expected_batch_size: PositiveInt = Field(
        default=256, description="units that take part in a round on average (q x units)"
    )
    max_fragments_per_unit: PositiveInt = Field(
        default=32, description="public cap on the fragments of a unit; further ones are left out"
    )
    all_fragments: bool = Field(
        default=True,
        description="every fragment of a unit counts in its vector; false: noise_multiplicity"
        " drawn ones, which costs less",
    )
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-3, schedule="cosine", ema_decay=0.98
    )
    pretraining: FragmentPretrainingConfig = FragmentPretrainingConfig()
    sampling: RolloutConfig


class PrivorlJTraining(TrajectoriesTraining):
    """The same with stitched sampling."""

    sampling: StitchingConfig = StitchingConfig()


class NoisySupport(StrictModel):
    """Draw again what leaves the cells that sensitive units visit; finding them is charged."""

    epsilon: PositiveFloat = Field(description="epsilon spent on finding the visited cells")
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


class StepRolloutConfig(RolloutConfig):
    """The same for the autoregressive model."""

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.003,
        description="bins of an observation's number that are less likely than this share of the"
        " likeliest are not drawn",
    )
    support: NoisySupport | None = Field(
        default=None,
        description="draw trajectories again that leave the cells which sensitive units visit;"
        " {epsilon: E, columns: [0, 1]} finds those with noise",
    )


class PrivorlArJTraining(TrajectoriesTraining):
    """The same with trajectories drawn step after step."""

    rounds: PositiveInt = Field(default=200, description="private rounds (T)")
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-2, schedule="cosine", ema_decay=0.95
    )
    pretraining: FragmentPretrainingConfig = FragmentPretrainingConfig(
        curiosity_rate=0.0,
        optimiser=OptimiserConfig(learning_rate=3e-3, schedule="cosine"),
    )
    sampling: StepRolloutConfig = StepRolloutConfig()


class TrajectoryOutputConfig(OutputConfig):
    """The trajectories that the run releases."""

    COUNTED: ClassVar[str | None] = "trajectories"

    size: PositiveInt = Field(description="synthetic trajectories")
    layout: Literal["episodes"] = Field(
        default="episodes", description="a Minari episode for each trajectory"
    )


class TrajectoriesConfig(PrivorlConfig):
    """What all models have: private synthetic trajectories."""

    model: TransformerConfig | UNetConfig | StepModelConfig
    training: TrajectoriesTraining
    output: TrajectoryOutputConfig

    @property
    def longest(self) -> int | None:
        """Steps of a synthetic trajectory at most; None: not said.

        ``data.max_length`` bounds all rows of a unit, so it stands for one trajectory's steps
        where that is the unit.
        """
        of_one = self.data.max_length if self.data.unit == TRAJECTORY else None
        return self.training.sampling.max_length or of_one


class PrivorlJConfig(TrajectoriesConfig):
    """PrivORL-j: a diffusion transformer of fragments."""

    method: Literal["privorl_j"] = "privorl_j"
    model: TransformerConfig = TransformerConfig()
    training: PrivorlJTraining = PrivorlJTraining()


class PrivorlJUNetConfig(TrajectoriesConfig):
    """PrivORL-j-U: the same with a temporal U-Net."""

    method: Literal["privorl_j_unet"] = "privorl_j_unet"
    model: UNetConfig = UNetConfig()
    training: PrivorlJTraining = PrivorlJTraining()


class PrivorlArJConfig(TrajectoriesConfig):
    """PrivORL-AR-j: whole trajectories from an autoregressive model of steps."""

    method: Literal["privorl_ar_j"] = "privorl_ar_j"
    model: StepModelConfig = StepModelConfig()
    training: PrivorlArJTraining = PrivorlArJTraining()
