"""Configuration of DP-APVI and DP-VAPVI."""

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from distributed_privrl.core.config import (
    EvaluationConfig,
    PolicyOutputConfig,
    PositiveFloat,
    PositiveInt,
    Probability,
    ReleasePrivacyConfig,
    RunConfig,
    StrictModel,
)
from distributed_privrl.methods.value_iteration import linear_settings, pessimism

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Preset = Literal["practical", "theory", "none"]


class FiniteModelConfig(StrictModel):
    """What is public about a problem with finitely many states and actions."""

    horizon: PositiveInt = Field(description="time steps H; later ones of a trajectory are cut")
    reward_range: tuple[float, float] | None = Field(
        default=None,
        description="lowest and highest reward of a step; rewards are clipped to it (default: the"
        " environment's)",
    )
    max_trajectories_per_unit: PositiveInt = Field(
        default=1, description="trajectories of a unit that count; noise grows with it"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.reward_range is not None and not self.reward_range[0] < self.reward_range[1]:
            raise ValueError("reward_range must be [low, high] with low < high")
        return self


class TabularModelConfig(FiniteModelConfig):
    """Which cells DP-APVI counts (paper 002, section 3)."""

    reward: Literal["known", "estimated"] = Field(
        default="estimated",
        description="known: of the environment or of facts; estimated: from noisy sums, charged",
    )
    facts: Path | None = Field(
        default=None,
        description="npz file of public arrays: rewards (S, A) or (H, S, A), arrival_rewards (S,),"
        " terminal (S,), clusters (S,), each optional",
    )
    pooled: bool = Field(default=False, description="one model for all time steps, released once")
    visits: Literal["every", "first"] = Field(
        default="every",
        description="first: of each trajectory only its first visit to each state and action, with"
        " less noise; needs pooled: true",
    )
    stationary: bool = Field(
        default=False,
        description="one rule for all time steps, that of the first; needs pooled: true",
    )

    @model_validator(mode="after")
    def _pooled_where_needed(self) -> Self:
        if not self.pooled and (self.visits == "first" or self.stationary):
            raise ValueError("visits: first and stationary: true need pooled: true")
        return self


class PessimismConfig(StrictModel):
    """The penalty of algorithm 1; a preset, and constants that replace its own."""

    preset: Preset = Field(
        default="practical", description="theory: the paper's constants, which often say nothing"
    )
    kind: Literal["bernstein", "hoeffding"] = Field(default="bernstein", description="its form")
    variance_constant: NonNegative | None = Field(default=None, description="C1")
    privacy_constant: NonNegative | None = Field(default=None, description="C2")
    sampling_constant: NonNegative | None = Field(default=None, description="C3, without noise")
    unvisited_constant: Annotated[float, Field(gt=1)] | None = Field(
        default=None, description="C, for pairs that are hardly visited"
    )
    failure_probability: Probability | None = Field(
        default=None, description="of all bounds together"
    )
    noise_deviations: PositiveFloat | None = Field(
        default=None, description="E / 2 in standard deviations of the noise"
    )

    def build(self) -> pessimism.Pessimism:
        """Return the penalty."""
        base = pessimism.Pessimism.preset(self.preset, self.kind)
        own = self.model_dump(exclude={"preset", "kind"}, exclude_none=True)
        return pessimism.Pessimism(**{**vars(base), **own})


class ReleaseTrainingConfig(StrictModel):
    """How statistics are released."""

    spare: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="steps paid for so that a crash does not end the run (default: one, or none"
        " where there is a single step)",
    )

    def spare_steps(self, steps: int) -> int:
        """Return the spare steps of a run of ``steps`` steps."""
        return int(steps > 1) if self.spare is None else self.spare


class TabularTrainingConfig(ReleaseTrainingConfig):
    """How DP-APVI releases its counts."""

    mechanism: Literal["gaussian", "laplace"] = Field(
        default="gaussian", description="laplace: pure differential privacy, with delta 0"
    )
    pessimism: PessimismConfig = PessimismConfig()


class PolicyEvaluationConfig(EvaluationConfig):
    """Exact values in a known environment, and the price of privacy there, by simulation."""

    seeds: PositiveInt = Field(default=3, description="simulated runs of each cell")
    study_units: tuple[PositiveInt, ...] = Field(
        default=(), description="numbers of units to simulate; empty: no study"
    )
    study_epsilons: tuple[PositiveFloat, ...] = Field(
        default=(0.5, 1.0, 4.0), description="epsilons to simulate, beside no privacy"
    )


class ApviConfig(RunConfig):
    """DP-APVI: a policy from noisy counts (paper 002, algorithm 1); without epsilon APVI."""

    method: Literal["apvi"] = "apvi"
    privacy: ReleasePrivacyConfig
    model: TabularModelConfig
    training: TabularTrainingConfig = TabularTrainingConfig()
    output: PolicyOutputConfig = PolicyOutputConfig()
    evaluation: PolicyEvaluationConfig = PolicyEvaluationConfig()

    @model_validator(mode="after")
    def _noise_fits_delta(self) -> Self:
        if (self.privacy.delta == 0) != (self.training.mechanism == "laplace"):
            raise ValueError(
                "training.mechanism=gaussian needs privacy.delta > 0, and laplace delta 0"
            )
        return self


class LinearModelConfig(FiniteModelConfig):
    """The features of DP-VAPVI (paper 002, section 4)."""

    features: Literal["environment", "one_hot"] | Path = Field(
        default="environment",
        description="environment: the problem's own; one_hot: a state of its own each; or a"
        " safetensors file written by FeatureMap.save",
    )
    regression: Literal["vapvi", "pevi"] = Field(
        default="vapvi", description="weigh rows by their variance (vapvi), or not (pevi)"
    )
    split: bool = Field(
        default=True, description="variance and values from disjoint halves of the units"
    )
    reuse_gram: bool = Field(
        default=False, description="one Gram matrix for both regressions; needs split: false"
    )
    pool_grams: bool = Field(
        default=False,
        description="average the Gram matrices over time steps, where the data's law hardly"
        " changes; with pevi or reuse_gram",
    )
    centre_values: bool = Field(
        default=True, description="regress differences to the middle of the value's range"
    )
    early_termination: bool = Field(
        default=True, description="whether episodes can end before the horizon"
    )
    largest_return: PositiveFloat | None = Field(
        default=None, description="public bound on the return of any trajectory, if below H high"
    )


class SharesConfig(StrictModel):
    """How a step's budget is divided, in proportion."""

    variance_gram: PositiveFloat = Field(default=0.03, description="of the variance's Gram matrix")
    squares: PositiveFloat = Field(default=0.03, description="of phi V^2")
    values: PositiveFloat = Field(default=0.03, description="of phi V")
    gram: PositiveFloat = Field(default=0.3, description="of the weighted Gram matrix")
    targets: PositiveFloat = Field(default=1.0, description="of phi (r + V)")


class RidgeConfig(StrictModel):
    """How a noisy Gram matrix is made positive definite."""

    projection: bool = Field(default=True, description="negative eigenvalues become zero")
    shift: bool = Field(default=False, description="add E / 2, as the paper does")
    noise_factor: NonNegative = Field(
        default=2.0, description="ridge in norms of the noise's spectral norm"
    )
    penalty: PositiveFloat = Field(default=1.0, description="lambda")


class LinearPessimismConfig(StrictModel):
    """The penalty of algorithm 2."""

    constant: NonNegative | None = Field(
        default=None,
        description="C of vapvi (default .3), c of pevi (default .001); the paper's theory: 1",
    )
    offset: NonNegative = Field(default=0.0, description="D, divided by the number of units")
    noise_constant: NonNegative = Field(
        default=0.0, description="times the deviation that the noise alone gives to a value"
    )


class LinearTrainingConfig(ReleaseTrainingConfig):
    """How DP-VAPVI releases its statistics."""

    shares: SharesConfig = SharesConfig()
    ridge: RidgeConfig = RidgeConfig()
    pessimism: LinearPessimismConfig = LinearPessimismConfig()
    failure_probability: Probability = Field(default=0.1, description="of all bounds together")


class VapviConfig(RunConfig):
    """DP-VAPVI: a policy from noisy regressions (paper 002, algorithm 2); or private PEVI."""

    method: Literal["vapvi"] = "vapvi"
    privacy: ReleasePrivacyConfig
    model: LinearModelConfig
    training: LinearTrainingConfig = LinearTrainingConfig()
    output: PolicyOutputConfig = PolicyOutputConfig()
    evaluation: PolicyEvaluationConfig = PolicyEvaluationConfig()

    @model_validator(mode="after")
    def _gaussian(self) -> Self:
        if self.privacy.delta == 0:
            raise ValueError("privacy.delta must be above 0: DP-VAPVI has Gaussian noise")
        return self

    @property
    def halves(self) -> bool:
        """Whether variance and values come from disjoint halves of the units."""
        return self.model.split and self.model.regression == "vapvi"

    def shares(self) -> linear_settings.Shares:
        """Return the division of a step's budget."""
        return linear_settings.Shares(**self.training.shares.model_dump())

    def ridge(self) -> linear_settings.Ridge:
        """Return how Gram matrices are made positive definite."""
        return linear_settings.Ridge(**self.training.ridge.model_dump())

    def pessimism(self) -> linear_settings.Pessimism:
        """Return the penalty."""
        values = self.training.pessimism.model_dump()
        if values["constant"] is None:
            values["constant"] = 0.3 if self.model.regression == "vapvi" else 0.001
        return linear_settings.Pessimism(**values)


def rho_of(noise_multiplier: float, releases: int) -> float:
    """Return the zCDP of ``releases`` Gaussian releases: releases / (2 z^2).

    Example:
        >>> rho_of(2.0, 8)
        1.0
    """
    return releases / (2 * noise_multiplier**2) if noise_multiplier > 0 else math.inf
