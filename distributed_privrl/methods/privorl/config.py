"""Configuration of PrivORL: of rows (-n, -AR), then of whole trajectories (-j, -AR-j, tokens)."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveInt,
    RunConfig,
    TrajectoryOutputConfig,
)
from distributed_privrl.methods.privorl.model_config import (
    AutoregressiveConfig,
    DenoiserConfig,
    ModelConfig,
    StepModelConfig,
    TokenModelConfig,
    TransformerConfig,
    UNetConfig,
)
from distributed_privrl.methods.privorl.pretraining_config import (
    ArJPretrainingConfig,
    ArPretrainingConfig,
    FragmentPretrainingConfig,
    PretrainingConfig,
    TokenPretrainingConfig,
)
from distributed_privrl.methods.privorl.sampling_config import (
    DrawingConfig,
    FlooredRolloutConfig,
    SamplingConfig,
    StepRolloutConfig,
    StitchingConfig,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.rollouts import RolloutConfig
from distributed_privrl.stages.round_plan import RoundsConfig


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

    model: ModelConfig
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


class PrivorlArJTraining(TrajectoriesTraining):
    """The same with trajectories drawn step after step."""

    rounds: PositiveInt = Field(default=200, description="private rounds (T)")
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-2, schedule="cosine", ema_decay=0.95
    )
    pretraining: ArJPretrainingConfig = ArJPretrainingConfig()
    sampling: StepRolloutConfig = StepRolloutConfig()


class DpTransformerTraining(TrajectoriesTraining):
    """The same with trajectories drawn token after token."""

    rounds: PositiveInt = Field(default=200, description="private rounds (T)")
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=3e-3, schedule="cosine", ema_decay=0.95
    )
    pretraining: TokenPretrainingConfig = TokenPretrainingConfig()
    sampling: FlooredRolloutConfig = FlooredRolloutConfig()


class TrajectoriesConfig(PrivorlConfig):
    """What all models have: private synthetic trajectories."""

    model: TransformerConfig | UNetConfig | StepModelConfig | TokenModelConfig
    training: TrajectoriesTraining
    output: TrajectoryOutputConfig


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


class DpTransformerConfig(TrajectoriesConfig):
    """DP-Transformer: whole trajectories from a causal transformer of tokens."""

    method: Literal["dp_transformer"] = "dp_transformer"
    model: TokenModelConfig = TokenModelConfig()
    training: DpTransformerTraining = DpTransformerTraining()
