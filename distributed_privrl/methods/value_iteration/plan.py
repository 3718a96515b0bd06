"""What a run of DP-APVI or DP-VAPVI releases and costs, from public facts alone."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from distributed_privrl.core.config import ReleasePrivacyConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig, rho_of
from distributed_privrl.methods.value_iteration.problem import (
    feature_map,
    linear_cells,
    tabular_cells,
)
from distributed_privrl.methods.value_iteration.step_noise import Law, StepNoise, exact_noise
from distributed_privrl.privacy.calibration import (
    calibrate_discrete_gaussian,
    calibrate_discrete_laplace,
)
from distributed_privrl.privacy.events import Event, ParallelEvent
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import (
    TRAJECTORY,
    TRANSITION,
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.plan import left_for_rounds
from distributed_privrl.stages.release_plan import ReleasePlan

Sizes = tuple[int, int]
EXACT_NUMBER, ROUNDED_NUMBER = 150_000, 1_000
"""Weights of a drawn row that take as long as one number of a release, its use included: with noise
of exact integers, and of floats. Measured in ICU-Sepsis."""


@dataclass(frozen=True, kw_only=True)
class StatisticsPlan(ReleasePlan):
    """A plan whose noise is a field: what the program is built from, and what is charged.

    Args:
        step_noise: of each step; None without privacy, and then alone.

    Raises:
        UnsafeError: a budget without noise, noise without a budget, or another event than the
            noise's.
    """

    step_noise: StepNoise | None

    def __post_init__(self) -> None:
        super().__post_init__()
        noise = self.step_noise
        if (noise is None) != (self.budget is None):
            raise UnsafeError("budget and step_noise go together: give both, or none")
        if noise is not None and any(_single(step) != {noise.event} for step in self.schedule):
            raise UnsafeError("schedule must charge what step_noise draws")


def _single(events: Iterable[Event]) -> set[Event]:
    """Return the events, with those of all branches in place of parallel ones."""
    return {
        one
        for event in events
        for one in (chain(*event.branches) if isinstance(event, ParallelEvent) else (event,))
    }


def tabular_plan(
    config: ApviConfig, units: UnitCount, *, sizes: Sizes | None, spent: float = 0.0
) -> StatisticsPlan:
    """Return the plan for ``units``: one release of counts a time step, or one in all.

    Args:
        config: of the run.
        units: how many there are.
        sizes: numbers of states and actions; None: not known yet, taken to be few.
        spent: epsilon that the run spends elsewhere.
    """
    model = config.model
    return _plan(
        config,
        units,
        spent=spent,
        steps=1 if model.pooled else model.horizon,
        law=config.training.mechanism,
        exact=exact_noise(None if sizes is None else tabular_cells(config, *sizes)),
        halves=False,
        details={
            "horizon": model.horizon,
            "pooled": model.pooled,
            "visits": model.visits,
            "stationary": model.stationary,
            "reward": model.reward,
        },
    )


def linear_plan(
    config: VapviConfig, units: UnitCount, *, sizes: Sizes | None, spent: float = 0.0
) -> StatisticsPlan:
    """Return the plan for ``units``: the statistics of one time step a step.

    A step's statistics are one Gaussian release of noise multiplier z for each half of the units:
    they are drawn one after the other, with multipliers z_i and sum 1 / z_i^2 = 1 / z^2, which
    adaptive Gaussian composition makes equal.

    Args:
        config: of the run.
        units: how many there are.
        sizes: numbers of states and actions; None: not known yet, taken to be few.
        spent: epsilon that the run spends elsewhere.
    """
    model = config.model
    return _plan(
        config,
        units,
        spent=spent,
        steps=model.horizon,
        law="gaussian",
        exact=exact_noise(None if sizes is None else linear_cells(config, *sizes)),
        halves=config.halves,
        details={
            "algorithm": config.algorithm,
            "horizon": model.horizon,
            "regression": model.regression,
            "split": model.split,
        },
    )


def tabular_effort(config: ApviConfig, plan: StatisticsPlan, sizes: Sizes | None) -> Effort:
    """Return the work of DP-APVI: its steps, and the numbers that they release.

    Args:
        config: of the run.
        plan: of its steps.
        sizes: as in `tabular_plan`.
    """
    return _effort(plan, 0 if sizes is None else tabular_cells(config, *sizes))


def linear_effort(config: VapviConfig, plan: StatisticsPlan, sizes: Sizes | None) -> Effort:
    """Return the work of DP-VAPVI: its steps, their Gram matrices, and what pairs are worth.

    Args:
        config: of the run.
        plan: of its steps.
        sizes: as in `linear_plan`.
    """
    if sizes is None:
        return _effort(plan, 0)
    features = feature_map(config.model, config.data, *sizes)
    grams = 1 if config.model.regression == "pevi" or config.model.reuse_gram else 2
    pairs = plan.rounds * math.prod(sizes) * features.width**2
    return _effort(plan, features.gram_size, releases=grams) + Effort(drawn_rows=pairs)


def _effort(plan: StatisticsPlan, numbers: int, releases: int = 1) -> Effort:
    """Return the work of steps that release so many numbers, which times; rows are read once."""
    each = EXACT_NUMBER if exact_noise(numbers) else ROUNDED_NUMBER
    return Effort(rounds=plan.rounds, drawn_rows=plan.rounds * releases * numbers * each)


def _plan(
    config: ApviConfig | VapviConfig,
    units: UnitCount,
    *,
    spent: float,
    steps: int,
    law: Law,
    exact: bool,
    halves: bool,
    details: dict[str, Any],
) -> StatisticsPlan:
    privacy, spare = config.privacy, config.training.spare_steps(steps)
    if privacy.epsilon is None:
        return StatisticsPlan(
            units=units,
            budget=None,
            accountant="pld",
            steps=steps,
            spare=spare,
            details=details,
            step_noise=None,
        )
    if privacy.delta:
        check_delta_for_units(privacy.delta, units)
    budget = _budget(privacy, config.data.unit, spent)
    calibrate = calibrate_discrete_laplace if law == "laplace" else calibrate_discrete_gaussian
    z = calibrate(budget=budget, sensitivity=1.0, dimension=1, count=steps + spare).noise_multiplier
    step_noise = StepNoise(noise_multiplier=z, law=law, exact=exact)
    kind = "exact integers" if exact else "float64 on a lattice"
    if law == "laplace":
        noise = f"Laplace, scale {z:.4g} sensitivities a step, {kind}"
    else:
        rho = rho_of(z, steps)
        noise = f"Gaussian, {z:.4g} sensitivities a step, {kind}: {rho:.4g}-zCDP in {steps} steps"
        details = {**details, "rho": rho}
    event = step_noise.event
    released = ParallelEvent(branches=((event,), (event,))) if halves else event
    return StatisticsPlan(
        units=units,
        budget=budget,
        spent=spent,
        accountant="pld",
        steps=steps,
        spare=spare,
        schedule=same_each_step([released], steps + spare),
        details={**details, "noise_multiplier": z},
        noise=noise,
        step_noise=step_noise,
    )


def check_config(config: ApviConfig | VapviConfig, *, halves: bool) -> None:
    """Check units, relation and keys against what value iteration knows.

    Args:
        config: of the run.
        halves: whether units are divided between two branches.

    Raises:
        ConfigError: a unit, key or accountant that has no meaning here.
        UnsafeError: halves that a removed unit would shift.
    """
    numbered = config.data.unit == TRAJECTORY
    if halves and numbered and Relation(config.privacy.relation) is Relation.ADD_OR_REMOVE:
        raise UnsafeError(
            "privacy.relation=add_or_remove with model.split and data.unit=trajectory: trajectories"
            " are numbered, and removing one would move the others between the halves; set"
            " model.split to false, the relation to replace_one, or the unit to a column"
        )
    if config.data.unit == TRANSITION:
        raise ConfigError(
            "data.unit=transition: value iteration protects whole trajectories; set data.unit to"
            " trajectory or to a column such as patient_id"
        )
    if config.data.bounds is not None or config.data.public:
        raise ConfigError(
            f"data.bounds and data.public have no meaning for {config.method}: leave them out;"
            " model.reward_range bounds the reward"
        )
    if config.privacy.accountant != "pld":
        raise ConfigError(
            f"privacy.accountant={config.privacy.accountant}: plain releases are accounted exactly;"
            " leave it out"
        )


def _budget(privacy: ReleasePrivacyConfig, unit: str, spent: float) -> PrivacyBudget:
    assert privacy.epsilon is not None
    return PrivacyBudget(
        epsilon=left_for_rounds(privacy.epsilon, spent),
        delta=privacy.delta,
        unit=unit,
        relation=Relation(privacy.relation),
    )
