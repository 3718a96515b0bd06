"""The release of stable prefixes as a stage of a run: its plan, its actors, what comes of it."""

from dataclasses import dataclass, replace
from functools import partial

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.trajectories import Trajectories, no_trajectories
from distributed_privrl.methods.expert.config import ExpertConfig, FilterConfig
from distributed_privrl.methods.expert.filter import (
    FILTER_ASSUMPTIONS,
    FilterSettings,
    SvtFilters,
    released_prefixes,
)
from distributed_privrl.methods.expert.hosting import ExpertHost, host_specs
from distributed_privrl.methods.expert.update import levels_of
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes
from distributed_privrl.privacy.units import PrivacyBudget, UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.training import StepsSpec, release_in_steps

FILTER = "filter"
CHECKPOINT = "stable_prefixes.safetensors"
STAGE = "stable prefixes"
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


def run_filter(config: ExpertConfig, context: RunContext, plan: FilterPlan) -> Trajectories:
    """Draw experts and return the stable prefixes, none or more (algorithm 2).

    A crash that used up the spare draws leaves fewer; what was released is whole.

    Raises:
        UnsafeError: there is no budget, or no folder for raw counts.

    Privacy: unit an expert, relation ``policy_level``; see `SvtFilter`. Each draw is reserved under
    the entry that ``context`` names, the filter's own. What is returned is released.
    """
    if plan.budget is None or context.make_private is None:
        raise UnsafeError("the filter needs a budget, and a private folder for its raw counts")
    asked = config.filter
    levels = levels_of(config.data, context.store)
    mechanism = plan.mechanism
    hosts = host_specs(
        context.store,
        config.data.sensitive,
        experts=plan.units.value,
        hosts=config.runtime.workers,
        minimum_probability=asked.minimum_probability,
        release_pool=mechanism.release_pool,
        first_trajectory=mechanism.first_trajectory,
        max_length=asked.max_length,
        levels=levels,
    )
    settings = FilterSettings(
        prefixes=mechanism,
        private=context.make_private(),
        secret=partial(context.ledger.secret, context.run_id),
        insecure_key=context.insecure_key,
    )
    checkpoint = context.folder / CHECKPOINT
    steps = StepsSpec(
        worker_cls=ExpertHost,
        workers=hosts,
        program=SvtFilters(settings=settings),
        checkpoint=checkpoint,
        stage=STAGE,
    )
    release_in_steps(steps, config, context, plan)
    tensors, _ = load_checkpoint(checkpoint, run_id=context.run_id, stage="rounds")
    released = released_prefixes(tensors)
    if released is None:
        info = context.store.info(config.data.sensitive)
        return no_trajectories(info.observation_space, info.action_space)
    if levels is not None:
        return replace(released, actions=levels.values(released.actions))
    return released
