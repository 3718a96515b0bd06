"""Configuration of PrivORL: of rows (-n, -AR), then of whole trajectories (-j, -AR-j)."""

import math
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    StrictModel,
    TrajectoryOutputConfig,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import TRAJECTORY
from distributed_privrl.marginals.config import TableConfig
from distributed_privrl.marginals.plan import SelectionConfig
from distributed_privrl.models.ddpm import DDPM
from distributed_privrl.models.edm import EDM, SamplerConfig
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.optimiser import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig


class CodingConfig(StrictModel):
    """How a transition's columns are coded for, and shown to, a model of continuous numbers."""

    next_observation: Literal["absolute", "difference"] = Field(
        default="difference", description="code s' as it is, or as s' - s"
    )
    reward_levels: Literal["public"] | tuple[float, ...] = Field(
        default="public",
        description="values of a reward that takes two to eight, coded as levels: those of the"
        " public datasets, a list, or [] for a reward of any value",
    )
    action_margin: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=0.2,
        description="code an action at its bound beyond it by this share of half its range",
    )
    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=4, description="sines and cosines of each column that the network is shown"
    )


class DenoiserConfig(CodingConfig):
    """The residual MLP and its diffusion (PrivORL, appendix F-A: width 1024, depth 6)."""

    width: PositiveInt = Field(default=256, description="width of the residual blocks")
    depth: PositiveInt = Field(default=5, description="number of residual blocks")
    time_width: PositiveInt = Field(default=128, description="width of the noise level's embedding")
    fourier_features: PositiveInt = Field(default=16, description="of the noise level")
    activation: Literal["relu", "silu"] = Field(default="silu", description="nonlinearity")
    normalise: bool = Field(
        default=True, description="LayerNorm without parameters before each nonlinearity"
    )
    sigma_data: PositiveFloat = Field(default=1.0, description="standard deviation of the rows")
    p_mean: float = Field(default=-1.2, description="mean of log noise level in training")
    p_std: PositiveFloat = Field(default=1.2, description="deviation of log noise level")

    def diffusion(self) -> EDM:
        """Return the diffusion's constants."""
        return EDM(sigma_data=self.sigma_data, p_mean=self.p_mean, p_std=self.p_std)


class PretrainingConfig(StrictModel):
    """Curiosity-driven pre-training on public rows (PrivORL, algorithm 1, lines 2 to 12)."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=5000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    batch_size: PositiveInt = Field(default=1024, description="public rows a step (B)")
    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.3, description="share of a batch replaced by novel rows (p); 0: PDP-Diffusion"
    )
    curiosity_sampler_steps: PositiveInt = Field(
        default=3, description="noise levels of the cheap sampler that makes rows to score"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-3, schedule="cosine")

    @property
    def released(self) -> "MarginalRowsConfig | None":
        """What rows to pre-train on are drawn from; None: public datasets."""
        return None


class MarginalRowsConfig(StrictModel):
    """Rows to pre-train on, drawn from marginals that the run releases first."""

    share: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.5,
        description="part of epsilon and delta that marginals cost; the rounds have the rest",
    )
    rows: PositiveInt = Field(default=100_000, description="rows drawn to pre-train on")
    table: TableConfig = TableConfig()
    selection: SelectionConfig = SelectionConfig()


class SourcedPretrainingConfig(PretrainingConfig):
    """Pre-training on public rows, or on rows that the run releases as marginals."""

    source: Literal["public", "marginals"] = Field(
        default="public",
        alias="from",
        description="public: rows of data.public; marginals: rows drawn from marginals of the"
        " sensitive ones, which the run releases first, for part of its budget",
    )
    marginals: MarginalRowsConfig = MarginalRowsConfig()

    @property
    def released(self) -> MarginalRowsConfig | None:
        """What rows to pre-train on are drawn from; None: public datasets."""
        return self.marginals if self.source == "marginals" else None


RowPart = Literal["observation", "action", "reward", "next_observation", "terminal"]
"""The last one says whether a row ends its trajectory, and a step also whether it is cut there."""
END: RowPart = "terminal"


class AutoregressiveConfig(CodingConfig):
    """Bins and factors of the autoregressive model."""

    column_frequencies: Annotated[int, Field(ge=0)] = Field(
        default=6, description="sines and cosines of each column that the networks are shown"
    )
    bins: Annotated[int, Field(ge=2)] = Field(
        default=128, description="bins of a number at most, half of them even, half by public rows"
    )
    hidden: tuple[PositiveInt, ...] = Field(
        default=(128, 128), description="widths of the hidden layers of each variable's network"
    )
    public_parts: tuple[RowPart, ...] = Field(
        default=(),
        description="parts of a row that public data alone teach: where sensitive ones follow the"
        " same rules, e.g. [next_observation] for the same physics",
    )


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

    def sampler(self) -> SamplerConfig:
        """Return the sampler's constants."""
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


class PrivorlTraining(RoundsConfig):
    """Pre-training and private rounds."""

    noise_multiplicity: PositiveInt = Field(
        default=1, description="noise levels drawn for each unit and averaged before clipping"
    )
    curiosity_rate: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0,
        description="share of a private round's expected batch that is novel samples of the model"
        " itself (p); units are sampled and charged with (1 - p) q",
    )
    pretraining: PretrainingConfig = PretrainingConfig()

    @property
    def gradients_a_unit(self) -> int:
        """One for each noise level."""
        return self.noise_multiplicity


class PrivorlConfig(RunConfig):
    """What all variants have."""

    model: CodingConfig
    training: PrivorlTraining
    output: OutputConfig


class PrivorlNTraining(PrivorlTraining):
    """Pre-training, private rounds, sampling."""

    sampling: SamplingConfig = SamplingConfig()


class PrivorlNConfig(PrivorlConfig):
    """PrivORL-n: private synthetic transitions."""

    method: Literal["privorl_n"] = "privorl_n"
    model: DenoiserConfig = DenoiserConfig()
    training: PrivorlNTraining = PrivorlNTraining()
    output: OutputConfig


class ArPretrainingConfig(SourcedPretrainingConfig):
    """The same with larger steps, and no novel rows."""

    steps: Annotated[int, Field(ge=0)] = Field(
        default=4000, description="gradient steps; 0 trains on sensitive rows alone (DPDM)"
    )
    curiosity_rate: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.0, description="share of a batch replaced by novel rows (p); 0: PDP-Diffusion"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=2e-3, schedule="cosine")


class PrivorlArTraining(PrivorlTraining):
    """Pre-training, private rounds, drawing."""

    rounds: PositiveInt = Field(default=1000, description="private rounds (T)")
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=3e-3, schedule="cosine")
    pretraining: ArPretrainingConfig = ArPretrainingConfig()
    sampling: DrawingConfig = DrawingConfig()


class PrivorlArConfig(PrivorlConfig):
    """PrivORL with an autoregressive model: private synthetic transitions."""

    method: Literal["privorl_ar"] = "privorl_ar"
    model: AutoregressiveConfig = AutoregressiveConfig()
    training: PrivorlArTraining = PrivorlArTraining()
    output: OutputConfig


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
