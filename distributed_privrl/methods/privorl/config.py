"""Configuration of PrivORL-n."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    StrictModel,
)
from distributed_privrl.models.edm import EDM, SamplerConfig
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


class ArPretrainingConfig(PretrainingConfig):
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
