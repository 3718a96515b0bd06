"""A run's configuration and plan, as the settings of its program."""

from typing import TypeAlias

from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig, rho_of
from distributed_privrl.methods.value_iteration.linear_settings import LinearSettings
from distributed_privrl.methods.value_iteration.plan import StatisticsPlan
from distributed_privrl.methods.value_iteration.problem import (
    count_layout,
    feature_map,
    linear_reward_range,
    tabular_facts,
)
from distributed_privrl.methods.value_iteration.step_noise import check_cells
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.units import Relation

Settings: TypeAlias = TabularSettings | LinearSettings


def tabular_settings(
    config: ApviConfig, plan: StatisticsPlan, *, states: int, actions: int
) -> TabularSettings:
    """Return what DP-APVI's program is built from.

    Args:
        config: of the run.
        plan: its noise.
        states: S, of the dataset's declared space.
        actions: A.

    Raises:
        ConfigError: the public facts are of another problem, or miss something.
        UnsafeError: the plan is for vectors of another size.
    """
    facts = tabular_facts(config.model, config.data)
    layout = count_layout(config, facts, states, actions)
    return TabularSettings(
        layout=layout,
        stationary=config.model.stationary,
        rewards=facts.rewards,
        arrival_rewards=facts.arrival_rewards,
        pessimism=config.training.pessimism.build(),
        noise=plan.step_noise,
        relation=Relation(config.privacy.relation),
    )


def linear_settings(
    config: VapviConfig, plan: StatisticsPlan, *, states: int, actions: int
) -> LinearSettings:
    """Return what DP-VAPVI's program is built from.

    Args:
        config: of the run.
        plan: its noise and the number of units.
        states: S, of the dataset's declared space.
        actions: A.

    Raises:
        ConfigError: there are no features, or they are of another problem.
        UnsafeError: the plan is for vectors of another size.
    """
    model, noise = config.model, plan.step_noise
    features = feature_map(model, config.data, states, actions)
    z = None
    if noise is not None:
        check_cells(noise, features.gram_size)
        z = noise.noise_multiplier
    return LinearSettings(
        features=features,
        horizon=model.horizon,
        units=plan.units.value,
        method=model.regression,
        relation=Relation(config.privacy.relation),
        max_trajectories_per_unit=model.max_trajectories_per_unit,
        noise_multiplier=z,
        shares=config.shares(),
        split=model.split,
        reuse_gram=model.reuse_gram,
        pool_grams=model.pool_grams,
        largest_return=model.largest_return,
        centre_values=config.centre_values,
        uniform_bounds=model.as_published,
        early_termination=model.early_termination,
        reward_range=linear_reward_range(model, config.data),
        ridge=config.ridge(),
        pessimism=config.pessimism(
            features.dimension, None if z is None else rho_of(z, model.horizon)
        ),
        failure=config.training.failure_probability,
    )
