"""The release of stable prefixes as a plan: its draws, its cost, and what is assumed."""

from dataclasses import dataclass, replace

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.methods.expert.config import FilterConfig
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes
from distributed_privrl.privacy.units import PrivacyBudget, UnitCount
from distributed_privrl.stages.release_plan import ReleasePlan

FILTER = "filter"
POLICIES_COLLECTED_THE_DATA = "hosted_policies_collected_the_data"
POOL_TRAJECTORIES_ARE_FRESH = "release_pool_trajectories_are_fresh_draws_used_by_no_other_run"
PUBLIC_MINIMUM_PROBABILITY = "minimum_probability_max_length_and_pool_sizes_are_public"
FILTER_ASSUMPTIONS = (
    POLICIES_COLLECTED_THE_DATA,
    POOL_TRAJECTORIES_ARE_FRESH,
    PUBLIC_MINIMUM_PROBABILITY,
)
"""What the guarantee of a filter assumes beside the noise source's own assumptions."""
ALIKE_WITHIN_A_LEVEL = "exact_actions_behind_a_level_do_not_depend_on_the_expert"
"""What a released state could otherwise tell of them; nothing, where experts act by the levels."""


@dataclass(frozen=True, kw_only=True)
class FilterPlan(ReleasePlan):
    """The plan of the draws, with the filter that they use.

    Args:
        mechanism: thresholds and noise, calibrated to the plan's budget.

    Raises:
        UnsafeError: the events are not the filter's.
    """

    mechanism: StablePrefixes

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != same_each_step(self.mechanism.draw_events(), self.max_rounds):
            raise UnsafeError("schedule must charge what the filter draws")


def filter_mechanism(
    config: FilterConfig, budget: PrivacyBudget, units: UnitCount
) -> StablePrefixes:
    """Return the filter that a budget allows; its spare draws are paid for.

    Raises:
        ConfigError: no prefix could ever be stable, or a value is out of range.
        UnsafeError: more draws than the pool allows.
    """
    mechanism = stable_prefixes(
        epsilon=budget.epsilon,
        delta=budget.delta,
        experts=units.value,
        minimum_probability=config.minimum_probability,
        draws=config.draws + config.spare,
        max_length=config.max_length,
        variant=config.variant,
        release_pool=config.release_pool,
    )
    return replace(mechanism, first_trajectory=config.first_trajectory)


def plan_filter(
    config: FilterConfig,
    budget: PrivacyBudget,
    units: UnitCount,
    *,
    levelled: bool = False,
) -> FilterPlan:
    """Return the plan of the draws, each reserved and charged on its own; opens no data.

    Draws are calibrated by privacy loss distributions, so they are composed by them, whichever
    accountant the rounds have: both parts add up.

    Args:
        config: of the filter.
        budget: its part of the run's.
        units: number of experts, declared.
        levelled: whether declared levels stand for Box actions.

    Raises:
        ConfigError: as `filter_mechanism`.
        UnsafeError: as `filter_mechanism`.
    """
    mechanism, asked = filter_mechanism(config, budget, units), config.first_trajectory
    return FilterPlan(
        mechanism=mechanism,
        units=units,
        budget=budget,
        accountant="pld",
        steps=config.draws,
        spare=config.spare,
        trajectories=(asked, asked + mechanism.release_pool),
        schedule=same_each_step(mechanism.draw_events(), config.draws + config.spare),
        assumptions=(*FILTER_ASSUMPTIONS, *((ALIKE_WITHIN_A_LEVEL,) if levelled else ())),
        details=mechanism.facts(),
        noise=f"threshold {mechanism.threshold:.0f} of {units.value} experts, noise of scale"
        f" {mechanism.threshold_scale:.4g} and {mechanism.query_scale:.4g}",
    )
