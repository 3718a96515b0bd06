"""A run's configuration and plan, as the settings of its program."""

from typing import TypeAlias

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.counts import CountLayout
from distributed_privrl.methods.value_iteration.linear_settings import LinearSettings
from distributed_privrl.methods.value_iteration.problem import (
    Facts,
    feature_map,
    linear_reward_range,
    tabular_facts,
)
from distributed_privrl.methods.value_iteration.tabular import TabularSettings
from distributed_privrl.privacy.mechanisms import GaussianRelease, LaplaceRelease
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.releases import ReleasePlan

Settings: TypeAlias = TabularSettings | LinearSettings


def tabular_settings(
    config: ApviConfig, plan: ReleasePlan, *, states: int, actions: int
) -> TabularSettings:
    """Return what DP-APVI's program is built from.

    Args:
        config: of the run.
        plan: its noise.
        states: S, of the dataset's declared space.
        actions: A.

    Raises:
        ConfigError: the public facts are of another problem, or miss something.
    """
    facts = tabular_facts(config.model, config.data)
    layout = _layout(config, facts, states, actions)
    return TabularSettings(
        layout=layout,
        stationary=config.model.stationary,
        rewards=facts.rewards,
        arrival_rewards=facts.arrival_rewards,
        pessimism=config.training.pessimism.build(),
        release=_release(config, layout, plan),
        relation=Relation(config.privacy.relation),
    )


def linear_settings(
    config: VapviConfig, plan: ReleasePlan, *, states: int, actions: int
) -> LinearSettings:
    """Return what DP-VAPVI's program is built from.

    Args:
        config: of the run.
        plan: its noise and the number of units.
        states: S, of the dataset's declared space.
        actions: A.

    Raises:
        ConfigError: there are no features, or they are of another problem.
    """
    model = config.model
    return LinearSettings(
        features=feature_map(model, config.data, states, actions),
        horizon=model.horizon,
        units=plan.units.value,
        method=model.regression,
        relation=Relation(config.privacy.relation),
        max_trajectories_per_unit=model.max_trajectories_per_unit,
        noise_multiplier=plan.about.get("noise_multiplier"),
        shares=config.shares(),
        split=model.split,
        reuse_gram=model.reuse_gram,
        pool_grams=model.pool_grams,
        largest_return=model.largest_return,
        centre_values=model.centre_values,
        early_termination=model.early_termination,
        reward_range=linear_reward_range(model, config.data),
        ridge=config.ridge(),
        pessimism=config.pessimism(),
        failure=config.training.failure_probability,
    )


def _layout(config: ApviConfig, facts: Facts, states: int, actions: int) -> CountLayout:
    model = config.model
    assert facts.reward_range is not None
    for name, array in (("terminal", facts.terminal), ("clusters", facts.clusters)):
        if array is not None and array.shape != (states,):
            raise ConfigError(
                f"{name} is of {array.size} states, {config.data.sensitive} has {states}"
            )
    return CountLayout(
        states=states,
        actions=actions,
        horizon=model.horizon,
        reward_range=facts.reward_range,
        terminal=facts.terminal,
        clusters=facts.clusters,
        pooled=model.pooled,
        visits=model.visits,
        estimate_reward=model.reward == "estimated",
        max_trajectories_per_unit=model.max_trajectories_per_unit,
        max_rows_per_unit=config.data.max_length,
    )


def _release(
    config: ApviConfig, layout: CountLayout, plan: ReleasePlan
) -> GaussianRelease | LaplaceRelease | None:
    noise_multiplier = plan.about.get("noise_multiplier")
    if noise_multiplier is None:
        return None
    sensitivities = layout.sensitivities(Relation(config.privacy.relation))
    if config.training.mechanism == "laplace":
        return LaplaceRelease(sensitivity=sensitivities.l1, noise_multiplier=noise_multiplier)
    return GaussianRelease(sensitivity=sensitivities.l2, noise_multiplier=noise_multiplier)
