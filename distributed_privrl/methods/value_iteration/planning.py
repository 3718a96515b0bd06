"""What a run of DP-APVI or DP-VAPVI releases and costs, from public facts alone."""

from dataclasses import replace
from typing import Any

from distributed_privrl.core.config import ReleasePrivacyConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig, rho_of
from distributed_privrl.methods.value_iteration.problem import linear_reward_range, tabular_facts
from distributed_privrl.methods.value_iteration.resolution import (
    linear_count_noise,
    linear_resolution,
    tabular_count_noise,
    tabular_resolution,
)
from distributed_privrl.privacy.calibration import calibrate_gaussian, calibrate_laplace
from distributed_privrl.privacy.events import Event, GaussianEvent, LaplaceEvent, ParallelEvent
from distributed_privrl.privacy.units import (
    TRAJECTORY,
    TRANSITION,
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.rounds.charging import declared_units
from distributed_privrl.rounds.plan import left_for_rounds
from distributed_privrl.rounds.releases import ReleasePlan

FLOAT64_SUMS = "float64_sums"
"""Sums of float64 features are not exact: one unit may move them by rounding, too."""


def plan_tabular(config: ApviConfig) -> ReleasePlan:
    """Return what a run would do and cost, from the configuration alone; opens no data.

    Raises:
        ConfigError: the number of units is not declared, or a value is impossible.
        UnsafeError: delta is not below 1/units.
    """
    plan = tabular_plan(config, declared_units(config.data))
    tabular_facts(config.model, config.data)
    if (z := plan.about.get("noise_multiplier")) is None:
        return plan
    seen = tabular_resolution(config, tabular_count_noise(config, z))
    return replace(plan, about={**plan.about, **seen.facts()})


def plan_linear(config: VapviConfig) -> ReleasePlan:
    """Return what a run would do and cost, from the configuration alone; opens no data.

    Raises:
        ConfigError: the number of units is not declared, or a value is impossible.
        UnsafeError: delta is not below 1/units.
    """
    plan = linear_plan(config, declared_units(config.data))
    linear_reward_range(config.model, config.data)
    if (z := plan.about.get("noise_multiplier")) is None:
        return plan
    seen = linear_resolution(config, linear_count_noise(config, z))
    return replace(plan, about={**plan.about, **seen.facts()})


def tabular_plan(config: ApviConfig, units: UnitCount, *, spent: float = 0.0) -> ReleasePlan:
    """Return the plan for ``units``: one release of counts a time step, or one in all.

    Args:
        config: of the run.
        units: how many there are.
        spent: epsilon that the run spends elsewhere.
    """
    model = config.model
    return _plan(
        config,
        units,
        spent=spent,
        steps=1 if model.pooled else model.horizon,
        laplace=config.training.mechanism == "laplace",
        halves=False,
        assumed=(),
        about={
            "horizon": model.horizon,
            "pooled": model.pooled,
            "visits": model.visits,
            "stationary": model.stationary,
            "reward": model.reward,
        },
    )


def linear_plan(config: VapviConfig, units: UnitCount, *, spent: float = 0.0) -> ReleasePlan:
    """Return the plan for ``units``: the statistics of one time step a step.

    A step's statistics are one Gaussian release of noise multiplier z for each half of the units:
    they are drawn one after the other, with multipliers z_i and sum 1 / z_i^2 = 1 / z^2, which
    adaptive Gaussian composition makes equal.

    Args:
        config: of the run.
        units: how many there are.
        spent: epsilon that the run spends elsewhere.
    """
    model = config.model
    return _plan(
        config,
        units,
        spent=spent,
        steps=model.horizon,
        laplace=False,
        halves=config.halves,
        assumed=(FLOAT64_SUMS,),
        about={"horizon": model.horizon, "regression": model.regression, "split": model.split},
    )


def _plan(
    config: ApviConfig | VapviConfig,
    units: UnitCount,
    *,
    spent: float,
    steps: int,
    laplace: bool,
    halves: bool,
    assumed: tuple[str, ...],
    about: dict[str, Any],
) -> ReleasePlan:
    privacy, spare = config.privacy, config.training.spare_steps(steps)
    _check(config, halves=halves)
    if privacy.epsilon is None:
        return ReleasePlan(
            units=units, budget=None, accountant="pld", steps=steps, spare=spare, about=about
        )
    if privacy.delta:
        check_delta_for_units(privacy.delta, units)
    budget = _budget(privacy, config.data.unit, spent)
    event: Event
    if laplace:
        z = calibrate_laplace(budget=budget, sensitivity=1.0, count=steps + spare).noise_multiplier
        event = LaplaceEvent(noise_multiplier=z)
        noise = f"Laplace, scale {z:.4g} sensitivities a step"
    else:
        z = calibrate_gaussian(budget=budget, sensitivity=1.0, count=steps + spare).noise_multiplier
        event = GaussianEvent(noise_multiplier=z)
        noise = (
            f"Gaussian, {z:.4g} sensitivities a step: {rho_of(z, steps):.4g}-zCDP in {steps} steps"
        )
        about = {**about, "rho": rho_of(z, steps)}
    return ReleasePlan(
        units=units,
        budget=budget,
        spent=spent,
        accountant="pld",
        steps=steps,
        spare=spare,
        step_events=(ParallelEvent(branches=((event,), (event,))),) if halves else (event,),
        assumed=assumed,
        about={**about, "noise_multiplier": z},
        noise=noise,
    )


def _check(config: ApviConfig | VapviConfig, *, halves: bool) -> None:
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
