"""The release of stable prefixes as a stage of a run: its actors, and what comes of it."""

from dataclasses import replace
from functools import partial

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.trajectories import Trajectories, no_trajectories
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.filter import (
    FilterSettings,
    SvtFilters,
    released_prefixes,
)
from distributed_privrl.methods.expert.hosting import ExpertHost, host_specs
from distributed_privrl.methods.expert.prefix_plan import FilterPlan
from distributed_privrl.methods.expert.settings import levels_of
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.training import StepsSpec, release_in_steps

CHECKPOINT = "stable_prefixes.safetensors"
STAGE = "stable prefixes"


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
        hosts=config.runtime.most_workers,
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
