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
from distributed_privrl.methods.value_iteration.linear_presets import (
    published_ridge,
    theory_pessimism,
)

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
    """Which cells DP-APVI counts (DP-VAPVI, section 3)."""

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
    """DP-APVI: a policy from noisy counts (DP-VAPVI, algorithm 1); without epsilon APVI."""

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
    """The features of DP-VAPVI (DP-VAPVI, section 4), and which algorithm uses them."""

    as_published: bool = Field(
        default=False,
        description="algorithm 2 as the paper prints it, with sensitivities that hold; false: our"
        " redesign of DP-VAPVI (centred targets, ridge matched to the noise, budget shares)",
    )
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
        default=True,
        description="regress differences to the middle of the value's range; never as_published",
    )
    early_termination: bool = Field(
        default=True, description="whether episodes can end before the horizon"
    )
    largest_return: PositiveFloat | None = Field(
        default=None, description="public bound on the return of any trajectory, if below H high"
    )


class SharesConfig(StrictModel):
    """How a step's budget is divided, in proportion; as_published it is in equal parts."""

    variance_gram: PositiveFloat = Field(default=0.03, description="of the variance's Gram matrix")
    squares: PositiveFloat = Field(default=0.03, description="of phi V^2")
    values: PositiveFloat = Field(default=0.03, description="of phi V")
    gram: PositiveFloat = Field(default=0.3, description="of the weighted Gram matrix")
    targets: PositiveFloat = Field(default=1.0, description="of phi (r + V)")


class RidgeConfig(StrictModel):
    """How a noisy Gram matrix is made positive definite; as_published by the shift alone."""

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
        description="C of vapvi (default .3), c of pevi (default .001); as_published: 1",
    )
    offset: NonNegative | None = Field(
        default=None,
        description="D, divided by the number of units (default 0; as_published: the theorem's)",
    )
    noise_constant: NonNegative = Field(
        default=0.0, description="times the deviation that the noise alone gives to a value"
    )
    coverage: Probability | None = Field(
        default=None,
        description="kappa in the theorem's D, assumed (default: 1/d, the largest there can be)",
    )


class LinearTrainingConfig(ReleaseTrainingConfig):
    """How DP-VAPVI releases its statistics."""

    shares: SharesConfig = SharesConfig()
    ridge: RidgeConfig = RidgeConfig()
    pessimism: LinearPessimismConfig = LinearPessimismConfig()
    failure_probability: Probability = Field(default=0.1, description="of all bounds together")


class VapviConfig(RunConfig):
    """A redesign of DP-VAPVI: a policy from noisy regressions; or private PEVI.

    ``model.as_published`` runs DP-VAPVI's algorithm 2 instead, with sensitivities that hold.
    """

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

    @model_validator(mode="after")
    def _nothing_of_ours_as_published(self) -> Self:
        ours = {
            "model.reuse_gram": (self.model.reuse_gram, False),
            "model.pool_grams": (self.model.pool_grams, False),
            "model.centre_values": (self.model.centre_values, True),
            "model.largest_return": (self.model.largest_return, None),
            "training.shares": (self.training.shares, SharesConfig()),
            "training.ridge": (
                self.training.ridge,
                RidgeConfig(penalty=self.training.ridge.penalty),
            ),
            "training.pessimism.noise_constant": (self.training.pessimism.noise_constant, 0.0),
        }
        changed = [name for name, (value, default) in ours.items() if value != default]
        if self.model.as_published and changed:
            raise ValueError(
                f"model.as_published has no {', '.join(changed)}: leave it out (of training.ridge"
                " all but the penalty)"
            )
        if not self.model.as_published and self.training.pessimism.coverage is not None:
            raise ValueError("training.pessimism.coverage belongs to model.as_published: true")
        return self

    @property
    def algorithm(self) -> str:
        """What runs, in words: for plans and reports."""
        if self.model.regression == "pevi":
            name, published = "private PEVI", "PEVI with the noise of DP-VAPVI's lines 9 and 10"
        else:
            name, published = "DP-VAPVI", "DP-VAPVI"
        if self.model.as_published:
            return f"{published} as published, with sensitivities that hold"
        centred = "centred targets, " if self.model.centre_values else ""
        return f"a redesign of {name}: {centred}ridge matched to the noise, budget shares"

    @property
    def halves(self) -> bool:
        """Whether variance and values come from disjoint halves of the units."""
        return self.model.split and self.model.regression == "vapvi"

    @property
    def centre_values(self) -> bool:
        """Whether differences to the middle of the value's range are regressed."""
        return self.model.centre_values and not self.model.as_published

    def shares(self) -> linear_settings.Shares:
        """Return the division of a step's budget; published, rho_0 is one for all (line 2)."""
        if self.model.as_published:
            return linear_settings.Shares()
        return linear_settings.Shares(**self.training.shares.model_dump())

    def ridge(self) -> linear_settings.Ridge:
        """Return how Gram matrices are made positive definite; published, lines 2, 4 and 9."""
        if self.model.as_published:
            return published_ridge(self.training.ridge.penalty)
        return linear_settings.Ridge(**self.training.ridge.model_dump())

    def pessimism(self, dimension: int, rho: float | None) -> linear_settings.Pessimism:
        """Return the penalty; published, line 11.

        Args:
            dimension: d.
            rho: what a run's steps cost; None without privacy.
        """
        given, regression = self.training.pessimism, self.model.regression
        constant, offset = 0.3 if regression == "vapvi" else 0.001, 0.0
        if self.model.as_published:
            theory = theory_pessimism(
                regression,
                dimension=dimension,
                horizon=self.model.horizon,
                rho=rho,
                coverage=given.coverage or 1 / dimension,
            )
            constant, offset = theory.constant, theory.offset
        return linear_settings.Pessimism(
            constant=constant if given.constant is None else given.constant,
            offset=offset if given.offset is None else given.offset,
            noise_constant=given.noise_constant,
        )


def rho_of(noise_multiplier: float, releases: int) -> float:
    """Return the zCDP of ``releases`` Gaussian releases: releases / (2 z^2).

    Example:
        >>> rho_of(2.0, 8)
        1.0
    """
    return releases / (2 * noise_multiplier**2) if noise_multiplier > 0 else math.inf  # lemma 2.6
