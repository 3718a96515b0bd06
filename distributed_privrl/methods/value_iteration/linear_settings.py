"""What DP-VAPVI and DP-PEVI do, as public numbers, and what they release and cost."""

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_sensitivity import (
    gram_sensitivity,
    vector_sensitivity,
)
from distributed_privrl.methods.value_iteration.rows import TrajectorySource
from distributed_privrl.methods.value_iteration.statistics import StatisticsSpec, check_reward_range
from distributed_privrl.methods.value_iteration.step_noise import StepNoise, exact_noise
from distributed_privrl.privacy.exact_releases import ROUNDING_SHARE, DiscreteGaussianRelease
from distributed_privrl.privacy.units import Relation

_MOST_ROUNDING = 2.0**-6
"""Share of the sensitivity that rounding a unit's terms may add."""


class Statistic(StrEnum):
    """The statistics of a time step; algorithm 2, lines 4, 5, 6, 9 and 10."""

    VARIANCE_GRAM = "variance_gram"
    SQUARES = "squares"
    VALUES = "values"
    GRAM = "gram"
    TARGETS = "targets"


VARIANCE_STATISTICS = (Statistic.VARIANCE_GRAM, Statistic.SQUARES, Statistic.VALUES)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How a time step's budget is divided: numbers in proportion to each statistic's rho.

    Only what is released together counts: the statistics of one half, or of both without a split.

    Raises:
        ConfigError: a share is not above zero.
    """

    variance_gram: float = 1.0
    squares: float = 1.0
    values: float = 1.0
    gram: float = 1.0
    targets: float = 1.0

    def __post_init__(self) -> None:
        for part in fields(self):
            check_positive(f"shares.{part.name}", getattr(self, part.name))


@dataclass(frozen=True, kw_only=True)
class Ridge:
    """How a noisy Gram matrix is made positive definite; in this order.

    Args:
        projection: eigenvalues below zero become zero. Without noise there are none.
        shift: E / 2 times the identity is added, the bound that the noise's smallest eigenvalue
            keeps with probability 1 - failure (algorithm 2, K_1 and K_2).
        noise_factor: so many times the noise's spectral norm 2 s sqrt(k) is added (s: standard
            deviation beside the diagonal); ridge matched to the noise.
        penalty: lambda.

    Raises:
        ConfigError: a value is out of range.
    """

    projection: bool = True
    shift: bool = False
    noise_factor: float = 0.0
    penalty: float = 1.0

    def __post_init__(self) -> None:
        check_positive("ridge.penalty", self.penalty)
        if not (math.isfinite(self.noise_factor) and self.noise_factor >= 0):
            raise ConfigError(f"ridge.noise_factor must be at least 0, got {self.noise_factor!r}")


@dataclass(frozen=True, kw_only=True)
class Pessimism:
    """The penalty Gamma(s, a), subtracted before acting greedily.

    vapvi: C sqrt(d) |phi|_{Lambda^-1} + D / K (algorithm 2, line 11). pevi: c d H sqrt(zeta)
    |phi|_{Lambda^-1}, zeta = log(2 d H K / failure) (Jin et al. 2021, theorem 4.4), + D / K.
    Both: + noise_constant times the standard deviation that the noise alone gives to
    <phi, w>, (std_targets^2 + std_gram^2 |w|^2)^(1/2) |Lambda^-1 phi|; our addition.

    Args:
        constant: C or c.
        offset: D.
        noise_constant: 0 leaves that part out.

    Raises:
        ConfigError: a value is below zero.
    """

    constant: float = 1.0
    offset: float = 0.0
    noise_constant: float = 0.0

    def __post_init__(self) -> None:
        for part in fields(self):
            value = getattr(self, part.name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"pessimism.{part.name} must be at least 0, got {value!r}")


@dataclass(frozen=True, kw_only=True)
class LinearSettings:
    """Public settings of a run.

    Args:
        features: the public feature map.
        horizon: time steps H.
        units: declared number of units K.
        method: vapvi weighs rows by their variance; pevi does not and releases no variance
            statistics.
        relation: when two datasets are neighbours.
        max_trajectories_per_unit: public cap m.
        noise_multiplier: z; what one unit's data enter in a time step costs as much as one
            Gaussian release with it, however it is shared out. None: without privacy.
        shares: of the statistics in a time step's budget.
        split: variance and value statistics see disjoint halves of the units, so that the costlier
            half is the cost; pevi has nothing to split.
        reuse_gram: the unweighted Gram matrix serves both regressions, and sigma weighs the penalty
            alone; with vapvi, without a split.
        pool_grams: the average of the unweighted noisy Gram matrices released so far, from step 0
            on, takes the place of the step's own: less noise at no cost, right where the law of
            (s, a) hardly changes with time and biased elsewhere; with reuse_gram or pevi.
        centre_values: regress V - c and r + V - c, with c in the middle of the range that the noisy
            V_{h+1} has over the states: the same model with ridge towards c, and a sensitivity
            that the spread of V decides, not H.
        early_termination: whether a terminated step has value 0 ahead; False ignores the flag,
            where no episode ends early.
        largest_return: public bound on what any trajectory earns in all, in the rewards' own units,
            where that is less than H high; values are clipped to it. Needs a lowest reward of 0.
        reward_range: declared bounds of a reward, mapped to [0, 1]; must hold 0 with
            ``early_termination``.
        uniform_bounds: noise for values of up to H at every time step, and variances at every one,
            the last included, as algorithm 2 has it; not with centred values or a largest return.
        ridge: how Gram matrices are made positive definite.
        pessimism: the penalty.
        failure: probability that the bounds may fail with.

    Raises:
        ConfigError: a value is out of range, or two do not go together.
    """

    features: FeatureMap
    horizon: int
    units: int
    method: Literal["vapvi", "pevi"] = "vapvi"
    relation: Relation = Relation.REPLACE_ONE
    max_trajectories_per_unit: int = 1
    noise_multiplier: float | None = None
    shares: Shares = field(default_factory=Shares)
    split: bool = True
    reuse_gram: bool = False
    pool_grams: bool = False
    centre_values: bool = False
    early_termination: bool = True
    largest_return: float | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    uniform_bounds: bool = False
    ridge: Ridge = field(default_factory=Ridge)
    pessimism: Pessimism = field(default_factory=Pessimism)
    failure: float = 0.1

    def __post_init__(self) -> None:
        check_positive("horizon", self.horizon)
        check_positive("units", self.units)
        check_probability("failure", self.failure)
        check_reward_range(self.reward_range)
        gram_sensitivity(self.relation, max_trajectories_per_unit=self.max_trajectories_per_unit)
        if self.noise_multiplier is not None:
            check_positive("noise_multiplier", self.noise_multiplier)
        low, high = self.reward_range
        if self.early_termination and not low <= 0 <= high:
            raise ConfigError(
                f"reward_range={self.reward_range} must hold 0, what a step after the end earns:"
                " widen it, or set early_termination=False"
            )
        if self.largest_return is not None:
            check_positive("largest_return", self.largest_return)
            if low != 0:
                raise ConfigError(
                    f"largest_return needs a lowest reward of 0, got reward_range={low, high}"
                )
        if self.uniform_bounds and (self.centre_values or self.largest_return is not None):
            raise ConfigError(
                "uniform_bounds has bounds of its own: leave out centre_values and largest_return"
            )
        if self.max_trajectories_per_unit * ROUNDING_SHARE > _MOST_ROUNDING:
            raise ConfigError(
                f"max_trajectories_per_unit={self.max_trajectories_per_unit} is too many to round"
                f" one by one: at most {_MOST_ROUNDING / ROUNDING_SHARE:g}"
            )
        if self.reuse_gram and (self.split or self.method == "pevi"):
            raise ConfigError(
                "reuse_gram needs method=vapvi and split=False, got"
                f" method={self.method}, split={self.split}"
            )
        if self.pool_grams and not (self.reuse_gram or self.method == "pevi"):
            raise ConfigError(
                "pool_grams needs reuse_gram=True or method=pevi: unweighted matrices"
            )

    @property
    def halves(self) -> bool:
        """Whether variance and value statistics see disjoint halves of the units."""
        return self.split and self.method == "vapvi"

    @property
    def exact(self) -> bool:
        """Whether noise is integers: statistics of a run have noise of one kind."""
        return exact_noise(self.features.gram_size)

    def entries(self, statistic: Statistic) -> int:
        """Return how many numbers a statistic has."""
        gram = statistic in (Statistic.GRAM, Statistic.VARIANCE_GRAM)
        return self.features.gram_size if gram else self.features.dimension

    def largest_value(self, steps: int) -> float:
        """Return the largest value with ``steps`` to go, in widths of the reward range."""
        if self.largest_return is None:
            return float(steps)
        return min(steps, self.largest_return / self.reward_range[1])


@dataclass(frozen=True, kw_only=True)
class ValueBounds:
    """Public bounds of what is regressed in a time step: |V| and |r + V|, possibly shifted."""

    values: float
    targets: float


def worst_bounds(settings: LinearSettings, index: int) -> ValueBounds:
    """Return the bounds of step ``index``, H - 1 - index time steps from the first, for any V.

    V_{h+1} lies in [0, H - h] = [0, index], or below the largest return. Algorithm 2 has noise for
    |V| and |r + V| of up to H at every step.
    """
    if settings.uniform_bounds:
        return ValueBounds(values=float(settings.horizon), targets=float(settings.horizon))
    factor = 0.5 if settings.centre_values else 1.0
    ahead = settings.largest_value(index)
    return ValueBounds(values=factor * ahead, targets=factor * (ahead + 1))


def weighs_variances(settings: LinearSettings, index: int, bounds: ValueBounds) -> bool:
    """Say whether step ``index`` estimates variances.

    Not where sigma^2 = max(1, variance) is 1 publicly: at index 0, whose next value is 0, and where
    centred values lie within [-1, 1]; ``uniform_bounds`` releases them there, too.
    """
    within_one = settings.centre_values and bounds.values <= 1
    needed = index > 0 and not within_one
    return settings.method == "vapvi" and (needed or settings.uniform_bounds)


def sensitivity(settings: LinearSettings, statistic: Statistic, bounds: ValueBounds) -> float:
    """Return how far one unit moves a statistic in L2, rounding to the lattice included but once.

    Each of a unit's m terms is rounded for itself, which moves the sum by sqrt(N) g / 2; what is
    released pays sqrt(N) g <= 2^-16 of this for two units of one term each, and this for m - 1
    more: S / (1 - (m - 1) 2^-16).

    Args:
        settings: of the run.
        statistic: which.
        bounds: of what is regressed.
    """
    cap, relation = settings.max_trajectories_per_unit, settings.relation
    magnitudes = {
        Statistic.SQUARES: bounds.values**2,
        Statistic.VALUES: bounds.values,
        Statistic.TARGETS: bounds.targets,
    }
    if statistic in magnitudes:
        moved = vector_sensitivity(
            relation, bound=magnitudes[statistic], max_trajectories_per_unit=cap
        )
    else:
        moved = gram_sensitivity(relation, max_trajectories_per_unit=cap)
    return moved / (1 - (cap - 1) * ROUNDING_SHARE)


def releases(
    settings: LinearSettings, index: int, bounds: ValueBounds | None = None
) -> dict[Statistic, DiscreteGaussianRelease]:
    """Return the releases of step ``index`` (time step H - index of 1 .. H).

    Where no variances are estimated (`weighs_variances`), the value statistics share the budget of
    their half: what a step costs does not depend on it.

    Args:
        settings: with a noise multiplier.
        index: from 0.
        bounds: of what is regressed; None: the largest that can be.

    Raises:
        ConfigError: no noise multiplier, or no such step.

    Privacy:
        Unit: what ``max_trajectories_per_unit`` counts for. Relation: the settings'. Sensitivity:
        `sensitivity` at ``bounds``, which earlier noisy releases alone decide. Event:
        ``discrete_gaussian`` each (``gaussian`` where a Gram matrix has a million numbers);
        together one of noise multiplier z for each half.
    """
    if settings.noise_multiplier is None:
        raise ConfigError("noise_multiplier must be given to release anything, got None")
    if not 0 <= index < settings.horizon:
        raise ConfigError(f"index must lie in [0, horizon={settings.horizon}), got {index}")
    bounds = bounds or worst_bounds(settings, index)
    multipliers = noise_multipliers(
        settings.shares,
        settings.noise_multiplier,
        halves=settings.halves,
        reuse_gram=settings.reuse_gram,
        weighs=weighs_variances(settings, index, bounds),
    )
    return {
        statistic: StepNoise(noise_multiplier=multiplier, exact=settings.exact).gaussian(
            sensitivity=sensitivity(settings, statistic, bounds),
            dimension=settings.entries(statistic),
        )
        for statistic, multiplier in multipliers.items()
    }


def noise_multipliers(
    shares: Shares, step_multiplier: float, *, halves: bool, reuse_gram: bool, weighs: bool
) -> dict[Statistic, float]:
    """Return the noise multiplier of each statistic of a time step.

    Args:
        shares: of the statistics in the step's budget.
        step_multiplier: z of the step.
        halves: whether variance and value statistics see disjoint halves of the units.
        reuse_gram: whether one Gram matrix serves both.
        weighs: whether variances are estimated.
    """
    value = [Statistic.GRAM, Statistic.TARGETS]
    variance = list(VARIANCE_STATISTICS) if weighs else []
    if reuse_gram and variance:
        variance.remove(Statistic.VARIANCE_GRAM)
    together = [variance, value] if halves else [variance + value]
    multipliers = {}
    for group in together:
        total = sum(getattr(shares, statistic) for statistic in group)
        for statistic in group:
            share = getattr(shares, statistic) / total  # rho_0 of algorithm 2, line 2
            multipliers[statistic] = step_multiplier / math.sqrt(share)
    return multipliers


def statistics_spec(settings: LinearSettings, source: TrajectorySource) -> StatisticsSpec:
    """Return what the worker of ``source`` is built from, so that it sums what is charged for."""
    return StatisticsSpec(
        source=source,
        features=settings.features,
        horizon=settings.horizon,
        reward_range=settings.reward_range,
        split=settings.halves,
        max_trajectories_per_unit=settings.max_trajectories_per_unit,
    )
