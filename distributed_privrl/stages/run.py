"""The run of every method: check, hold, count, release, open, work, settle, finish.

This is the only place where the order stands in which a run spends its budget. Each step is the
ledger's or a gate's; a method declares what they are called with (`stages.method`).
"""

from dataclasses import replace
from typing import TypeVar

from distributed_privrl.core.config import NoisyCount
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.charging import (
    charges_of,
    count_units,
    declared_units,
    held_budget,
    open_charges,
    settle_charge,
)
from distributed_privrl.stages.context import MethodResult, RunContext
from distributed_privrl.stages.method import DeclaredMethod, StagePlan

WorldT = TypeVar("WorldT")


def run_method(method: DeclaredMethod[WorldT], context: RunContext) -> MethodResult:
    """Run a method and return what it releases, and what that cost.

    Raises:
        ConfigError: configuration and datasets do not fit together; nothing has been drawn.
        BudgetError: the ledger refuses; nothing has been drawn.
        UnsafeError: no guarantee covers what is asked for.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; events: a count's, each first
    release's, each stage's, in this order, and no others. All of epsilon and delta is held in one
    step before the first draw, all stages are opened together or none, and each is settled before
    the next reads what it released. A resume takes the same way: entries and answers in the ledger
    are found again, so that nothing is drawn or paid for twice. Without ``privacy.epsilon`` nothing
    is protected, and the certificate says ``non_private``.
    """
    config, data = method.config, method.config.data
    # 1. Whatever can be refused is refused before anything is held or drawn.
    world = method.check(context)
    counted = isinstance(data.units, NoisyCount)
    stages = () if counted else tuple(method.stages(world, declared_units(data)))
    _check_stages(stages, private=config.privacy.epsilon is not None)
    policies = method.policies(context)
    # 2. The whole budget is held in one step; what the run does not come to pay is freed.
    known = _charges(method, context, stages, policies)
    with held_budget(data, config.privacy, context, known):
        # 3. First releases, each charged to the hold before it is drawn.
        units, stage = count_units(data, context, relation=Relation(config.privacy.relation))
        certified = [] if stage is None else [stage]
        if counted:
            stages = tuple(method.stages(world, units))
            _check_stages(stages, private=config.privacy.epsilon is not None)
        for release in method.first_releases(world, context):
            world, stage = release.draw(world, units)
            certified.append(stage)
        entries = [f"{context.run_id}/{stage.name}" for stage in certified]
        # 4. The stages' charges are opened, all or none, and the hold is closed.
        world = method.ready(world, stages)
        open_charges(context, _charges(method, context, stages, policies))
    # 5. Public work, then stage after stage, each settled before the next begins.
    method.before(world, context)
    spare_rounds = 0
    for planned in stages:
        own = _context_of(context, planned)
        world = method.work(planned, world, own)
        if planned.plan.budget is not None:
            stage, left = settle_charge(planned.name, data, own, planned.plan)
            certified.append(stage)
            entries.append(own.run_id)
            spare_rounds += left
    # 6. Post-processing.
    released = method.finish(world, context, certified)
    return MethodResult(
        stages=tuple(certified),
        spare_rounds=spare_rounds,
        ledger_entries=tuple(entries),
        release=released.release,
        beside=released.beside,
    )


def _check_stages(stages: tuple[StagePlan, ...], *, private: bool) -> None:
    """Check that every stage of a private run has a budget, and an entry of its own.

    Raises:
        UnsafeError: a stage would draw under nothing that was charged, or under another's charge.
    """
    for stage in stages:
        if (stage.plan.budget is not None) != private:
            raise UnsafeError(
                f"stage {stage.name} has {'no' if private else 'a'} budget, and privacy.epsilon is"
                f" {'a number' if private else 'null'}: plan all stages with privacy, or none"
            )
    if len({stage.entry for stage in stages}) < len(stages):
        raise UnsafeError("two stages share an entry of the ledger: give each a name of its own")


def _context_of(context: RunContext, stage: StagePlan) -> RunContext:
    """Return the context under whose name a stage is charged."""
    name = f"{context.run_id}/{stage.entry}" if stage.entry else context.run_id
    return replace(context, run_id=name)


def _charges(
    method: DeclaredMethod[WorldT],
    context: RunContext,
    stages: tuple[StagePlan, ...],
    policies: str | None,
) -> list[Charge]:
    parts = [(_context_of(context, stage), stage.plan) for stage in stages]
    return charges_of(method.config.data, context, parts, policies=policies)
