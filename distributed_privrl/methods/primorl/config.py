"""Configuration of PriMORL."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from distributed_privrl.core.config import (
    Epsilon,
    EvaluationConfig,
    PolicyOutputConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    StrictModel,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig

LONGEST_ROLLOUT = 200
"""Steps of a rollout at most, where nothing says so."""
_LARGEST_LOG_VARIANCE = 50.0
"""Its exponential, and its inverse, are far within float32."""


def _rising(value: tuple[float, float]) -> tuple[float, float]:
    if not -_LARGEST_LOG_VARIANCE <= value[0] < value[1] <= _LARGEST_LOG_VARIANCE:
        raise ValueError("must be two rising numbers from -50 to 50")
    return value


class DynamicsConfig(StrictModel):
    """The ensemble of Gaussian models of the next state and the reward (PriMORL, section 4.2)."""

    members: PositiveInt = Field(default=3, description="models of the ensemble (N)")
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        default=(64, 64), description="widths of each model's hidden layers"
    )
    log_variance_range: Annotated[tuple[float, float], AfterValidator(_rising)] = Field(
        default=(-6.0, 1.0),
        description="public bounds of the predicted log-variance of standardised targets, from -50"
        " to 50; local steps overshoot where it may fall far",
    )
    difference_share: PositiveFloat | tuple[PositiveFloat, ...] = Field(
        default=0.1,
        description="about how much of an observation's range one step moves, of all columns or of"
        " each; scales what the models predict, and is public",
    )


class LocalTrainingConfig(StrictModel):
    """What one trajectory does to the ensemble (PriMORL, algorithm 2, lines 7 to 15)."""

    epochs: PositiveInt = Field(default=1, description="passes over the trajectory (E)")
    steps: PositiveInt | None = Field(
        default=None,
        description="steps drawn anew from the trajectory in each round, with replacement, where"
        " long ones cost too much (default: all, each once)",
    )
    batch_size: PositiveInt = Field(default=50, description="steps of the trajectory a batch (B)")
    learning_rate: PositiveFloat = Field(default=1e-3, description="of plain gradient descent")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.0, description="decoupled, inside the local steps"
    )
    clipping: Literal["concatenated", "flat", "per_layer"] = Field(
        default="concatenated",
        description="the whole ensemble's vector at C, each model's at C / sqrt(N), or each layer's"
        " at C / sqrt(N L): the sensitivity is C each time",
    )
    projection: Literal["end", "batch"] = Field(
        default="end", description="clip after the last batch, or after each (the paper)"
    )
    shuffle: bool = Field(
        default=False, description="draw the order of the steps instead of the recorded one"
    )


class NoisyStarts(StrictModel):
    """No simulator is public: fit a Gaussian to noisy moments of the first observations."""

    epsilon: Epsilon = Field(description="epsilon spent on both moments")
    clip_norm: PositiveFloat | None = Field(
        default=None,
        description="L2 bound of a unit's standardised first observation (default: the root of"
        " their number); a small one means little noise where all start near the middle",
    )


class PolicyTrainingConfig(StrictModel):
    """SAC inside the pessimistic model (PriMORL, algorithm 4)."""

    steps: PositiveInt = Field(default=6000, description="gradient steps")
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        default=(128, 128), description="widths of the hidden layers of actor and critics"
    )
    batch_size: PositiveInt = Field(default=128, description="rows a gradient step")
    learning_rate: PositiveFloat = Field(default=1e-3, description="of actor, critics, temperature")
    schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="the learning rates stay, or fall to 0 along a cosine"
    )
    discount: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.99, description="of future rewards"
    )
    polyak: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.02, description="step of the target critics"
    )
    target_entropy: float | None = Field(
        default=None, description="that the temperature holds (default: -A; paper: -3)"
    )
    rollouts: PositiveInt = Field(default=32, description="rollouts of the model in parallel")
    horizon: PositiveInt | None = Field(
        default=None,
        description="steps of a rollout (H; default: 200, or data.max_length where that is less)",
    )
    gradient_steps: PositiveInt = Field(
        default=1, description="gradient steps for each time that all rollouts act"
    )
    action_repeat: PositiveInt = Field(
        default=1,
        description="steps of the model that an action is held for in training; discounts count"
        " held actions. The policy that is released acts at every step",
    )
    reward_offset: float = Field(
        default=0.0,
        description="added to rewards in training: values start near 0 and are learned sooner where"
        " that is what the best policy earns; changes no optimum where nothing terminates",
    )
    penalty: Literal["max_pairwise_difference", "max_aleatoric", "none"] = Field(
        default="max_pairwise_difference", description="uncertainty that lowers the reward (u)"
    )
    penalty_weight: Annotated[float, Field(ge=0)] = Field(
        default=0.5, description="by how much (lambda)"
    )
    starts: PositiveInt | NoisyStarts = Field(
        default=1000,
        description="where rollouts begin: so many resets of data.environment, or {epsilon: E}: a"
        " Gaussian of first observations, found with noise",
    )
    restarts: PositiveInt = Field(
        default=1,
        description="trainings that differ in their public seed alone; the policy that the models"
        " promise the most is released, which costs time and no epsilon",
    )


class PrimorlTraining(RoundsConfig):
    """Private rounds over trajectories, then a policy."""

    rounds: PositiveInt = Field(default=250, description="private rounds (T)")
    expected_batch_size: PositiveInt = Field(
        default=600, description="units that take part in a round on average (q x units)"
    )
    clip_norm: PositiveFloat = Field(
        default=0.005, description="L2 bound of a unit's change of the ensemble (C)"
    )
    clip: bool = Field(
        default=True, description="false: no clipping, for runs without privacy alone (NO CLIP)"
    )
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=2e-2, schedule="cosine", ema_decay=0.95
    )
    local: LocalTrainingConfig = LocalTrainingConfig()
    policy: PolicyTrainingConfig = PolicyTrainingConfig()


class PolicyEvaluationConfig(EvaluationConfig):
    """How the policy is tried in ``data.environment``, a public simulator."""

    episodes: Annotated[int, Field(ge=0)] = Field(
        default=20, description="episodes of each evaluation; 0: none"
    )
    every: PositiveInt = Field(
        default=500, description="gradient steps of the policy between evaluations"
    )
    horizon: PositiveInt = Field(
        default=50, description="steps over which the model's error is measured there"
    )


class EnsembleOutputConfig(PolicyOutputConfig):
    """What the run releases: the policy in two forms, and the ensemble."""

    torchscript: Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.pt$")] = Field(
        default="policy.pt", description="file of the policy as TorchScript"
    )
    ensemble: Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.safetensors$")] = Field(
        default="ensemble.safetensors", description="file of the dynamics models"
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files that are released, the policy first."""
        return (self.policy, self.torchscript, self.ensemble)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.policy == self.ensemble:
            raise ValueError("policy and ensemble must be different files")
        return self


class PrimorlConfig(RunConfig):
    """PriMORL: a policy from a private ensemble of dynamics models."""

    method: Literal["primorl"] = "primorl"
    model: DynamicsConfig = DynamicsConfig()
    training: PrimorlTraining = PrimorlTraining()
    output: EnsembleOutputConfig = EnsembleOutputConfig()
    evaluation: PolicyEvaluationConfig = PolicyEvaluationConfig()

    @property
    def rollout_horizon(self) -> int:
        """Steps of a rollout (H): by default no more than a unit may have."""
        asked, longest = self.training.policy.horizon, self.data.max_length
        return asked or min(LONGEST_ROLLOUT, longest or LONGEST_ROLLOUT)


class MopoPolicyConfig(PolicyTrainingConfig):
    """SAC inside the model, with recorded rows in every batch."""

    real_share: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.05,
        description="share of a batch that is recorded rows; 0 where actions are held",
    )


class MopoTraining(PrimorlTraining):
    """Minibatches of all rows, then a policy; without privacy."""

    rounds: PositiveInt = Field(default=10_000, description="gradient steps of the ensemble")
    expected_batch_size: PositiveInt = Field(default=256, description="rows a member and step")
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-3, schedule="cosine", ema_decay=0.99
    )
    policy: MopoPolicyConfig = MopoPolicyConfig()


class MopoConfig(PrimorlConfig):
    """MOPO, the reference without privacy: its policy goes to ``private/``."""

    method: Literal["mopo"] = "mopo"  # type: ignore[assignment]
    training: MopoTraining = MopoTraining()
