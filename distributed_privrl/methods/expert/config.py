"""Configuration of the expert level."""

import math
from typing import Annotated, Any, Literal, Self

from pydantic import Field, FiniteFloat, model_validator

from distributed_privrl.core.config import (
    DataConfig,
    DatasetId,
    EvaluationConfig,
    PolicyOutputConfig,
    PositiveFloat,
    PositiveInt,
    PrivacyConfig,
    RunConfig,
    StrictModel,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig

Share = Annotated[float, Field(ge=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]


class ExpertDataConfig(DataConfig):
    """What the run reads."""

    action_levels: tuple[tuple[float, ...], ...] | None = Field(
        default=None,
        description="of Box actions: public levels of each column; an action counts as the nearest"
        " ones, and the policy takes their combinations",
    )


class ExpertPrivacyConfig(PrivacyConfig):
    """What the run may cost each expert."""

    relation: Literal["policy_level"] = Field(  # type: ignore[assignment]
        default="policy_level", description="what neighbouring datasets are"
    )


class FilterConfig(StrictModel):
    """The release of stable prefixes (expert-level DP, algorithm 2)."""

    share: Share = Field(default=0.75, description="of epsilon; 0: no filter, 1: no private rounds")
    delta_share: OpenShare = Field(
        default=0.9, description="of delta, where both the filter and the rounds cost something"
    )
    draws: PositiveInt = Field(default=25, description="experts drawn, a trajectory each (T)")
    minimum_probability: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.02, description="that every expert has for every action, publicly known (p_min)"
    )
    max_length: PositiveInt = Field(
        default=200, description="public bound on the steps of a trajectory (L)"
    )
    variant: Literal["tight", "paper"] = Field(
        default="tight", description="of the accounting; paper: the printed constants"
    )
    release_pool: PositiveInt | None = Field(
        default=None,
        description="trajectories of each expert that the filter alone uses (default: the fewest"
        " that suffice)",
    )
    first_trajectory: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="first one of each expert that the filter uses; earlier ones are another run's",
    )
    spare: Annotated[int, Field(ge=0)] = Field(
        default=1, description="draws paid for so that a crash does not end the run"
    )


class AgentModelConfig(StrictModel):
    """The agent that learns."""

    agent: Literal["discrete_cql", "discrete_bcq"] = Field(
        default="discrete_cql", description="conservative or batch-constrained Q-learning"
    )
    hidden: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = Field(
        default=(64, 64), description="widths of the hidden layers of every network"
    )
    reward_scale: PositiveFloat = Field(
        default=1.0, description="what the largest reward that the bounds allow counts as"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="the agent's other settings; its learning_rate and batch_size are those of the"
        " noiseless steps",
    )


class LocalExpertConfig(StrictModel):
    """What one expert does to the agent, with ``training.local: federated``."""

    epochs: PositiveInt = Field(default=1, description="passes over the drawn transitions (E)")
    batch_size: PositiveInt = Field(default=16, description="transitions of a local batch (B)")
    learning_rate: PositiveFloat = Field(default=1e-2, description="of plain gradient descent")


class ExpertTraining(RoundsConfig):
    """Selective DP-SGD (expert-level DP, algorithm 3): rounds, and noiseless steps between."""

    rounds: PositiveInt = Field(default=500, description="private rounds (K)")
    expected_batch_size: PositiveInt = Field(
        default=256, description="units that take part in a round on average (q x units)"
    )
    rows_per_expert: PositiveInt = Field(
        default=16, description="transitions drawn of an expert that takes part (n); the paper: 1"
    )
    stable_steps: Annotated[int | float, Field(ge=0, allow_inf_nan=False)] = Field(
        default=1,
        description="noiseless steps on the released prefixes after each round, on average: .25 is"
        " one after every fourth",
    )
    skip_trajectories: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="first trajectories of each expert that a run without a filter leaves out, as"
        " another run's filter uses them",
    )
    local: Literal["gradient", "federated"] = Field(
        default="gradient",
        description="an expert's vector: the mean gradient over its transitions, or how far local"
        " training on them goes",
    )
    federated: LocalExpertConfig = LocalExpertConfig()
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-3, schedule="cosine", ema_decay=0.98
    )

    @property
    def noiseless_steps(self) -> int:
        """How many there are after all rounds."""
        return math.floor(self.rounds * self.stable_steps)


class ExpertOutputConfig(PolicyOutputConfig):
    """What the run releases: the policy, and the stable prefixes if a dataset is named."""

    torchscript: Annotated[str, Field(pattern=r"^[\w-][\w.-]*\.pt$")] = Field(
        default="policy.pt", description="file of the policy as TorchScript"
    )
    dataset: DatasetId | None = Field(
        default=None, description="id of the dataset of stable prefixes; null: none is written"
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Names of all files that are released, the policy first."""
        return (self.policy, self.torchscript)

    @property
    def datasets(self) -> tuple[str, ...]:
        """Ids of the datasets that are written beside the policy."""
        return () if self.dataset is None else (self.dataset,)


class ReturnRange(StrictModel):
    """Returns that count as 0 and as 1; a public fact, by the word of who declares it."""

    low: FiniteFloat = Field(description="return that counts as 0, e.g. of uniform actions")
    high: FiniteFloat = Field(description="return that counts as 1, e.g. of a known good policy")

    def share_of(self, value: float) -> float:
        """Return where ``value`` lies between both.

        Example:
            >>> ReturnRange(low=10.0, high=50.0).share_of(30.0)
            0.5
        """
        return (value - self.low) / (self.high - self.low)

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
        return self


class ExpertEvaluationConfig(EvaluationConfig):
    """How the policy is tried in ``data.environment``, a public simulator."""

    episodes: Annotated[int, Field(ge=0)] = Field(
        default=50, description="episodes of the evaluation; 0: none"
    )
    max_steps: PositiveInt | None = Field(
        default=None, description="steps of an episode at most (default: the environment's)"
    )
    reference_returns: ReturnRange | None = Field(
        default=None,
        description="{low: R, high: R}: public returns that count as 0 and 1, never from the"
        " sensitive data (default: those that the environment is registered with)",
    )
    baselines: dict[str, float] = Field(
        default_factory=dict, description="returns that the report shows beside, e.g. {dp_sgd: 310}"
    )


class ExpertConfig(RunConfig):
    """A policy from many experts' trajectories that hides each expert's policy."""

    method: Literal["expert"] = "expert"
    data: ExpertDataConfig
    privacy: ExpertPrivacyConfig
    filter: FilterConfig = FilterConfig()
    model: AgentModelConfig = AgentModelConfig()
    training: ExpertTraining = ExpertTraining()
    output: ExpertOutputConfig = ExpertOutputConfig()
    evaluation: ExpertEvaluationConfig = ExpertEvaluationConfig()

    @property
    def filter_share(self) -> float:
        """Share of epsilon that the filter has; 0 without privacy."""
        return 0.0 if self.privacy.epsilon is None else self.filter.share

    @model_validator(mode="after")
    def _something_releases(self) -> Self:
        if self.output.dataset is not None and not self.filter_share:
            raise ValueError(
                "output.dataset is of stable prefixes, which a filter releases: set it to null, or"
                " privacy.epsilon and filter.share above 0"
            )
        if self.training.skip_trajectories and self.filter_share:
            raise ValueError(
                "training.skip_trajectories is for runs without a filter: rounds leave out what"
                " theirs uses; set filter.share=0, or filter.first_trajectory"
            )
        return self
