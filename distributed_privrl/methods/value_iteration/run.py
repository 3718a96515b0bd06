"""DP-APVI and DP-VAPVI, step by step: charge, release backwards through time, settle, the policy.

Reference: paper 002, algorithms 1 and 2.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from distributed_privrl.core.config import NoisyCount
from distributed_privrl.core.errors import BudgetError, ConfigError
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.counts import CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.linear import LinearProgram, statistics_spec
from distributed_privrl.methods.value_iteration.planning import (
    StatisticsPlan,
    linear_plan,
    tabular_plan,
)
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.methods.value_iteration.problem import sizes
from distributed_privrl.methods.value_iteration.rows import StoredTrajectories
from distributed_privrl.methods.value_iteration.settings import (
    Settings,
    linear_settings,
    tabular_settings,
)
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.tabular import TabularProgram, TabularSettings
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.rounds.charging import (
    count_units,
    held_budget,
    open_charge,
    settle_charge,
)
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.context import LearnedPolicy, MethodResult, RunContext
from distributed_privrl.rounds.releases import ReleasePlan, ReleaseServer, ReleaseServerSpec
from distributed_privrl.rounds.training import run_rounds

CHECKPOINT = "steps.safetensors"
STAGE = "value iteration"
Learner = TabularProgram | LinearProgram


@dataclass(frozen=True, eq=False)
class Programs:
    """Builds the program of a run in the server's process.

    Args:
        settings: public facts.
    """

    settings: Settings

    def __call__(self) -> Learner:
        """Return a fresh program."""
        if isinstance(self.settings, TabularSettings):
            return TabularProgram(self.settings)
        return LinearProgram(self.settings)


def run_tabular(config: ApviConfig, context: RunContext) -> MethodResult:
    """Run DP-APVI, or APVI without ``privacy.epsilon``, and return its policy.

    Privacy: unit ``data.unit``, at most ``model.max_trajectories_per_unit`` trajectories each;
    relation ``privacy.relation``; sensitivity: `tabular_sensitivities`; event: one
    ``discrete_gaussian`` or ``discrete_laplace`` a time step (from a million cells on ``gaussian``
    or ``laplace``), or one in all when pooled. Every cell is released, and all else is
    computed from released cells and public facts. Without epsilon nothing is protected.

    Raises:
        ConfigError: configuration and dataset do not fit together.
        BudgetError: the ledger refuses; nothing has been drawn.
    """

    def worker(settings: Any, ref: ShardRef) -> CountSpec:
        return CountSpec(source=_source(config, ref), layout=settings.layout)

    return _run(config, context, tabular_plan, tabular_settings, CountWorker, worker)


def run_linear(config: VapviConfig, context: RunContext) -> MethodResult:
    """Run DP-VAPVI (or private PEVI), or its exact form without ``privacy.epsilon``.

    Privacy: unit ``data.unit``, at most ``model.max_trajectories_per_unit`` trajectories each;
    relation ``privacy.relation``; sensitivities: `linear_settings.releases`; event: one
    ``discrete_gaussian`` a time step for all its statistics together (``gaussian`` where a Gram
    matrix has a million numbers), and with ``model.split`` one in each of two branches that see
    disjoint units. Without epsilon nothing is protected.

    Raises:
        ConfigError: configuration and dataset do not fit together.
        BudgetError: the ledger refuses; nothing has been drawn.
    """

    def worker(settings: Any, ref: ShardRef) -> Any:
        return statistics_spec(settings, _source(config, ref))

    return _run(config, context, linear_plan, linear_settings, StatisticsWorker, worker)


def _run(
    config: Any,
    context: RunContext,
    plan_of: Callable[..., StatisticsPlan],
    settings_of: Callable[..., Settings],
    worker_cls: type,
    worker_spec: Callable[[Any, ShardRef], Any],
) -> MethodResult:
    if config.privacy.epsilon is None and isinstance(config.data.units, NoisyCount):
        raise ConfigError("data.units must be a number when privacy.epsilon is null")
    relation, spent = Relation(config.privacy.relation), config.data.charged_epsilon
    states, actions = size = sizes(config.data, context.store)
    one = UnitCount(value=1, source="declared")
    # Whatever is refused is refused here, before units are counted with noise.
    plan = plan_of(config, one, sizes=size, spent=spent)
    settings_of(config, plan, states=states, actions=actions)
    with held_budget(config.data, config.privacy, context):
        units, count_stage = count_units(config.data, context, relation=relation)
        plan = plan_of(config, units, sizes=size, spent=spent)
        settings = settings_of(config, plan, states=states, actions=actions)
        open_charge(config.data, context, plan)
    specs = [worker_spec(settings, ref) for ref in _refs(config, context)]
    program = Programs(settings)
    _advance(context, plan, program, worker_cls, specs)
    stages: list[Stage] = [] if count_stage is None else [count_stage]
    entries = [] if count_stage is None else [f"{context.run_id}/count"]
    spare_rounds = 0
    if plan.budget is not None:
        stage, spare_rounds = settle_charge("statistics", config.data, context, plan)
        stages.append(stage)
        entries.append(context.run_id)
    policy = _policy(context, program, plan)
    return MethodResult(
        stages=tuple(stages),
        spare_rounds=spare_rounds,
        ledger_entries=tuple(entries),
        release=LearnedPolicy(save=policy.save),
    )


def _advance(
    context: RunContext,
    plan: ReleasePlan,
    program: Programs,
    worker_cls: type,
    specs: Sequence[Any],
) -> None:
    private = plan.budget is not None
    workers = context.executor.start(worker_cls, specs, repeat_lost_calls=True)
    server = context.executor.start(
        ReleaseServer,
        [
            ReleaseServerSpec(
                run_id=context.run_id,
                checkpoint=context.folder / CHECKPOINT,
                rounds=plan.rounds,
                max_rounds=plan.max_rounds,
                block_rounds=plan.block_rounds,
                ledger=context.ledger if private else None,
                insecure_key=context.insecure_key,
                workers=workers,
                program=program,
                private=private,
            )
        ],
        service=True,
    )
    status = run_rounds(server, plan, progress=context.progress, stage=STAGE)
    server.close()
    workers.close()
    if status.round_index < plan.rounds:
        raise BudgetError(
            f"crashes used up the spare steps: {status.round_index} of {plan.rounds} are done and"
            " none is left; start a new run with a higher training.spare"
        )


def _policy(context: RunContext, programs: Programs, plan: ReleasePlan) -> GreedyPolicy:
    """Return the policy in the last checkpoint."""
    path = context.folder / CHECKPOINT
    tensors, _ = load_checkpoint(path, run_id=context.run_id, stage="rounds")
    program = programs()
    program.restore(tensors, plan.rounds)
    return program.policy()


def _refs(config: Any, context: RunContext) -> list[ShardRef]:
    return shard_refs(
        context.store,
        config.data.sensitive,
        count=config.runtime.workers,
        unit=config.data.unit,
        max_rows_per_unit=config.data.max_length,
    )


def _source(config: Any, ref: ShardRef) -> StoredTrajectories:
    most = config.model.max_trajectories_per_unit
    return StoredTrajectories(ref=ref, max_trajectories_per_unit=most)
