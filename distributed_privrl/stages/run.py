"""The run of every method: check, hold, count, release, open, work, settle, finish.

This is the only place where the order stands in which a run spends its budget. Each step is the
ledger's or a gate's; a method declares what they are called with (`stages.method`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NoReturn, TypeVar

from distributed_privrl.core.config import NoisyCount
from distributed_privrl.core.errors import ConfigError, UnsafeError, UselessError
from distributed_privrl.core.executor import begin
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.asked_measures import check_measures
from distributed_privrl.stages.charging import (
    charges_of,
    count_units,
    declared_units,
    held_budget,
    open_charges,
    settle_charge,
)
from distributed_privrl.stages.context import CertifiedDataset, MethodResult, Release, RunContext
from distributed_privrl.stages.first_releases import (
    FirstRelease,
    first_stage,
    release_first,
)
from distributed_privrl.stages.method import DeclaredMethod, StagePlan
from distributed_privrl.stages.planning import check_declared, declared_stages
from distributed_privrl.stages.verdict import check_useful

WorldT = TypeVar("WorldT")


def run_method(method: DeclaredMethod[WorldT], context: RunContext) -> MethodResult:
    """Run a method and return what it releases, and what that cost.

    Raises:
        ConfigError: configuration and datasets do not fit together, or the count or another first
            release leaves too little to go on with.
        BudgetError: the ledger refuses.
        UnsafeError: no guarantee covers what is asked for, or the method did not do what it
            declared.
        UselessError: a stage's verdict is hopeless, and nobody said to go on all the same.

    A run that is refused before its first draw has paid nothing. One that is refused later keeps
    its hold for a resume; ``privrl ledger settle RUN`` gives it up.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; events: a count's, each first
    release's, each stage's, in this order, and no others. All of epsilon and delta is held in one
    step before the first draw, all stages are opened together or none, and each is settled before
    the next reads what it released. A resume takes the same way: entries and answers in the ledger
    are found again, so that nothing is drawn or paid for twice. Without ``privacy.epsilon`` nothing
    is protected, and the certificate says ``non_private``.
    """
    config, data = method.config, method.config.data
    # 1. What public facts and the ledger refuse is refused before anything is held.
    check_declared(method)
    private = config.privacy.epsilon is not None
    if not private:
        _check_certified(context, (), private=False)
    world = method.check(context)
    check_measures(config, context.store)
    counted = isinstance(data.units, NoisyCount)
    stages = () if counted else declared_stages(method, world, declared_units(data))
    _check_useful(stages, context)
    policies = method.policies(context)
    # 2. The whole budget is held in one step; what the run does not come to pay is freed: all of
    #    it, if the machine or its workers are not up to the run.
    known = _charges(method, context, stages, policies)
    with held_budget(data, config.privacy, context, known):
        begin(context.executor)
        method.check_machine(world, context)
        # 3. First releases, each charged to the hold before it is drawn.
        units, stage = count_units(data, context, relation=method.relation)
        certified = [] if stage is None else [stage]
        if counted:
            stages = declared_stages(method, world, units)
            _check_useful(stages, context)
        for first in method.all_first_releases():
            world, stage = _release(first, method, world, units, context)
            certified.append(stage)
        entries = [f"{context.run_id}/{stage.name}" for stage in certified]
        # 4. The stages' charges are opened, all or none, and the hold is closed.
        world = method.ready(world, stages)
        if private:
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
    # 6. All that was charged is certified; then post-processing.
    paid = tuple(zip(certified, entries, strict=True))
    _check_certified(context, entries, private=private)
    released = method.finish(world, context, tuple(certified))
    _check_certified(context, entries, private=private)
    _check_beside(released.beside, paid)
    return MethodResult(
        stages=tuple(stage for stage, _ in paid),
        spare_rounds=spare_rounds,
        ledger_entries=tuple(entry for _, entry in paid),
        release=released.release,
        beside=released.beside,
        metrics=released.metrics,
    )


def recalled_world(method: DeclaredMethod[WorldT], context: RunContext) -> WorldT:
    """Return the world of a finished run as its stages began with it; draws and charges nothing.

    Raises:
        ConfigError: the ledger does not hold what the run released before its stages.
    """
    world = method.check(context)
    method.check_machine(world, context)
    for name in method.charged_before:
        entry = context.ledger.reserved(f"{context.run_id}/{name}")
        if entry is None or entry.status != "settled":
            raise ConfigError(
                f"the ledger does not hold the noisy {name} of {context.run_id}: give --ledger URL"
                " of the ledger that the run was charged to"
            )
    units, _ = count_units(method.config.data, context, relation=method.relation)
    stages = declared_stages(method, world, units)  # priced as then: before bounds were found
    for first in method.all_first_releases():
        world, _ = _release(first, method, world, units, context, again=True)
    return method.ready(world, stages)


def released_again(
    method: DeclaredMethod[WorldT],
    context: RunContext,
    *,
    stages: Sequence[Stage],
    entries: Sequence[str],
) -> Release:
    """Return what a finished run's model releases once more; draws no noise and charges nothing.

    Args:
        method: that ran; its output may be another one.
        context: of the run; another ``stream`` draws other rows.
        stages: of the run's certificate.
        entries: of the ledger, that paid for them.

    Raises:
        ConfigError: as in `recalled_world`.
        StorageError: the run's checkpoints cannot be read.
        UnsafeError: the ledger holds a charge of the run that its certificate does not state.

    Privacy: post-processing of what the stages released: no event. The certificate of what is drawn
    states the same stages.
    """
    private = method.config.privacy.epsilon is not None
    _check_certified(context, entries, private=private)
    world = method.recalled(recalled_world(method, context), context)
    released = method.finish(world, context, tuple(stages))
    _check_certified(context, entries, private=private)
    return released.release


def _release(
    first: FirstRelease[WorldT],
    method: DeclaredMethod[WorldT],
    world: WorldT,
    units: UnitCount,
    context: RunContext,
    *,
    again: bool = False,
) -> tuple[WorldT, Stage]:
    """Return the world that knows the answer, and the certificate's stage: of what was charged."""
    data, relation = method.config.data, method.relation
    question = first.ask(world, units, context)
    if again:
        question = replace(question, draw=_refuse_to_draw)
    world = release_first(
        first.name, question, data, context, relation=relation, epsilon=first.epsilon
    )
    return world, first_stage(first.name, data, question.event, relation=relation, units=units)


def _check_useful(stages: Sequence[StagePlan], context: RunContext) -> None:
    """Refuse a hopeless run that has not opened its stages; what is paid for may go on."""
    try:
        check_useful([one.plan.verdict for one in stages])
    except UselessError:
        opened = any(context.ledger.reserved(_context_of(context, one).run_id) for one in stages)
        if not (context.anyway or opened):
            raise


def _refuse_to_draw() -> NoReturn:
    raise UnsafeError("a finished run is recalled from the ledger, and draws nothing")


def _check_certified(context: RunContext, entries: Sequence[str], *, private: bool) -> None:
    """Check that the run has charged nothing that its certificate would leave out.

    Raises:
        UnsafeError: an entry of the ledger is of the run, and of none of its stages; or the run is
            private, and has none.
    """
    if private and not entries:
        raise UnsafeError(f"{context.run_id} has charged nothing: what it releases is not private")
    run = context.run_id
    own = {entry.id for entry in context.ledger.entries() if f"{entry.id}/".startswith(f"{run}/")}
    if left_out := own - set(entries):
        raise UnsafeError(
            f"{', '.join(sorted(left_out))}: charged, and of no stage that the method declares"
        )


def _check_beside(datasets: Sequence[CertifiedDataset], paid: Sequence[tuple[Stage, str]]) -> None:
    """Check that each dataset beside the release states stages that were charged, with their entry.

    Raises:
        UnsafeError: one states nothing, or what was not charged; or anything, without privacy.
    """
    for one in datasets:
        pairs = len(one.stages) == len(one.ledger_entries) and bool(one.stages) == bool(paid)
        if not pairs or any(
            pair not in paid for pair in zip(one.stages, one.ledger_entries, strict=True)
        ):
            raise UnsafeError(f"{one.dataset} states other stages than those that were charged")


def _context_of(context: RunContext, stage: StagePlan) -> RunContext:
    """Return the context under whose name a stage is charged."""
    name = f"{context.run_id}/{stage.entry}" if stage.entry else context.run_id
    return replace(context, run_id=name)


def _charges(
    method: DeclaredMethod[WorldT],
    context: RunContext,
    stages: Sequence[StagePlan],
    policies: str | None,
) -> list[Charge]:
    parts = [(_context_of(context, stage), stage.plan) for stage in stages]
    return charges_of(method.config.data, context, parts, policies=policies)
