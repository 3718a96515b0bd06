"""What stages do: private rounds, or noisy statistics step by step, on workers and a server."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import UnsafeError, WorkerLostError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.privacy.events import POLICIES
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.queries import QueryRelease, QueryServer, QueryServerSpec
from distributed_privrl.rounds.releases import ProgramFactory, ReleaseServer, ReleaseServerSpec
from distributed_privrl.rounds.round_server import RoundProgress
from distributed_privrl.rounds.server import ParameterServer, PublicUpdateFactory, ServerSpec
from distributed_privrl.rounds.summing import start_workers
from distributed_privrl.rounds.worker import (
    LocalUpdateFactory,
    SecretOfRun,
    ShardSource,
    WorkerSpec,
)
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.plan import Plan
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.updates.parameters import FlatParameters

logger = logging.getLogger(__name__)
STAGE = "private rounds"
SERVER_RESTARTS = 3


@runtime_checkable
class WatchesReservations(Protocol):
    """A progress that also wants to know what the ledger holds; both numbers are public."""

    def reserved(
        self, stage: str, done: int, total: int, *, blocks: PublicValue, epsilon: PublicValue
    ) -> None:
        """Say that so many blocks of rounds are reserved, and what they cost."""
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """What a method trains in private rounds; what is charged for them is in their plan alone.

    Args:
        source: where the units of a shard come from.
        local_update: builds the workers' local update for a clip norm; None: without privacy.
        initial: checkpoint with the parameters to start from.
        checkpoint: where the rounds' own is kept.
        copies: see `WorkerSpec`.
        all_rows: see `WorkerSpec`.
        most_rows: see `WorkerSpec`.
        public_update: see `ServerSpec`.
    """

    source: Callable[[ShardRef], ShardSource]
    local_update: Callable[[float | None], LocalUpdateFactory]
    initial: Path
    checkpoint: Path
    copies: int = 1
    all_rows: bool = False
    most_rows: int | None = None
    public_update: PublicUpdateFactory | None = None


def write_initial(path: Path, module: nn.Module, context: RunContext) -> None:
    """Write the parameters that rounds start from, unless they are there."""
    if not path.exists():
        state = CheckpointState(run_id=context.run_id, round_index=0, stage="pretraining")
        save_checkpoint(path, {"parameters": FlatParameters(module).vector}, state)


def load_trained(path: Path, module: nn.Module, context: RunContext) -> int:
    """Load the moving average of the rounds' parameters into a module; return how many there were.

    Raises:
        StorageError: the checkpoint cannot be read.
        UnsafeError: it is of another run.
    """
    tensors, state = load_checkpoint(path, run_id=context.run_id, stage="rounds")
    FlatParameters(module).load(tensors["ema"])
    return state.round_index


def train_in_rounds(
    spec: TrainingSpec, config: RunConfig, context: RunContext, plan: RoundPlan
) -> None:
    """Run the rounds that are left, on workers and a server of their own.

    Args:
        spec: what is trained.
        config: dataset, unit and number of workers.
        context: around the run; its charge is open.
        plan: the rounds.

    Raises:
        UnsafeError: the rounds are not those that were charged.
        WorkerLostError: as `run_rounds`.

    Privacy: unit ``data.unit``, relation of the plan's mechanism, sensitivity its clip norm: the
    coins of workers, the norm that they clip to and the server's noise all come from the mechanism
    that is charged, and the trajectories that are read from its plan. Event: ``poisson_gaussian``,
    see `ParameterServer`. Without a mechanism nothing is protected.
    """
    _check_charged(config, context, plan)
    specs = [] if _is_settled(context, plan) else _worker_specs(spec, config, context, plan)
    workers = start_workers(context.executor, specs, fan_in=config.runtime.fan_in)
    server = context.executor.start(
        ParameterServer,
        [
            ServerSpec(
                **_charged_rounds(context, plan),
                workers=workers,
                initial=spec.initial,
                checkpoint=spec.checkpoint,
                mechanism=plan.mechanism,
                expected_units=plan.expected_units,
                optimiser=plan.config.optimiser,
                public_update=spec.public_update,
            )
        ],
        service=True,
    )
    run_rounds(server, plan, progress=context.progress)
    server.close()
    workers.close()


@dataclass(frozen=True, kw_only=True)
class StepsSpec:
    """What a method releases step by step; what is charged for it is in the plan alone.

    Args:
        worker_cls: of the workers that hold units.
        workers: what each is built from.
        program: builds what happens in a step.
        checkpoint: where released values are kept.
        stage: what the progress bar is called.
    """

    worker_cls: type
    workers: Sequence[Any]
    program: ProgramFactory
    checkpoint: Path
    stage: str


def release_in_steps(
    spec: StepsSpec, config: RunConfig, context: RunContext, plan: ReleasePlan
) -> int:
    """Release the statistics of the steps that are left, and return how many are done in all.

    They are fewer than planned where crashes used up the spare ones.

    Args:
        spec: what is released.
        config: of the run.
        context: around the run; its charge is open.
        plan: the steps.

    Raises:
        UnsafeError: the steps are not those that were charged.
        WorkerLostError: as `run_rounds`.

    Privacy: unit, relation and sensitivity are the program's; events: those of the plan, which are
    the ones that were charged. See `ReleaseServer`.
    """
    _check_charged(config, context, plan)
    workers = context.executor.start(spec.worker_cls, spec.workers, repeat_lost_calls=True)
    server = context.executor.start(
        ReleaseServer,
        [
            ReleaseServerSpec(
                **_charged_rounds(context, plan),
                checkpoint=spec.checkpoint,
                workers=workers,
                program=spec.program,
                private=plan.budget is not None,
            )
        ],
        service=True,
    )
    status = run_rounds(server, plan, progress=context.progress, stage=spec.stage)
    server.close()
    workers.close()
    return status.round_index


@dataclass(frozen=True, kw_only=True)
class QueriesSpec:
    """What a method asks about its units, query by query; what is charged is in the plan alone.

    Args:
        worker_cls: of the workers that hold units.
        workers: what each is built from.
        method: of the workers, that answers; see `QueryServerSpec`.
        release: draws the noise of answers; of the plan; None without privacy.
        checkpoint: where answers are kept.
        stage: what the progress bar is called.
    """

    worker_cls: type
    workers: Sequence[Any]
    method: str
    release: QueryRelease | None
    checkpoint: Path
    stage: str


def answer_queries(
    spec: QueriesSpec,
    config: RunConfig,
    context: RunContext,
    plan: Plan,
    *,
    use: Callable[[WorkerGroup], None],
) -> None:
    """Answer the queries that a method comes to ask, then spend the rounds that it did not need.

    Args:
        spec: what is asked.
        config: of the run.
        context: around the run; its charge is open.
        plan: the rounds.
        use: asks; it is given the group of one `QueryServer`.

    Raises:
        UnsafeError: the rounds are not those that were charged.
        WorkerLostError: as `run_rounds`.

    Privacy: unit, relation and sensitivity are the release's; events: those of the plan, which are
    the ones that were charged. See `QueryServer`. How many rounds were asked for may depend on
    answers: all planned ones are charged.
    """
    _check_charged(config, context, plan)
    workers = context.executor.start(spec.worker_cls, spec.workers, repeat_lost_calls=True)
    server = context.executor.start(
        QueryServer,
        [
            QueryServerSpec(
                **_charged_rounds(context, plan),
                checkpoint=spec.checkpoint,
                workers=workers,
                method=spec.method,
                release=spec.release,
            )
        ],
        service=True,
    )
    use(server)
    run_rounds(server, plan, progress=context.progress, stage=spec.stage)
    server.close()
    workers.close()


def _charged_rounds(context: RunContext, plan: Plan) -> dict[str, Any]:
    """Return what each server's spec says of its rounds: see `RoundServerSpec`."""
    return {
        "run_id": context.run_id,
        "rounds": plan.rounds,
        "max_rounds": plan.max_rounds,
        "block_rounds": plan.block_rounds,
        "ledger": None if plan.budget is None else context.ledger,
        "insecure_key": context.insecure_key,
    }


def _check_charged(config: RunConfig, context: RunContext, plan: Plan) -> None:
    """Check that a plan's events are those that were charged, or that nothing is private.

    Raises:
        UnsafeError: they are not, or the plan has no privacy where the run has.
    """
    if (plan.budget is None) != (config.privacy.epsilon is None):
        raise UnsafeError(
            f"{context.run_id}: plan and privacy.epsilon={config.privacy.epsilon} do not go"
            " together: draw with the plan of the stage"
        )
    if plan.budget is None:
        return
    entry = context.ledger.reserved(context.run_id)
    if entry is None or {k: v for k, v in entry.event.items() if k != POLICIES} != plan.charged():
        raise UnsafeError(
            f"{context.run_id} would draw other events than it was charged for: draw with the plan"
            " of the stage"
        )


def _is_settled(context: RunContext, plan: RoundPlan) -> bool:
    """Say whether the run was settled before: no round is left, and the coins' secret is erased."""
    if plan.mechanism is None:
        return False
    entry = context.ledger.reserved(context.run_id)
    return entry is not None and entry.status == "settled"


def _worker_specs(
    spec: TrainingSpec, config: RunConfig, context: RunContext, plan: RoundPlan
) -> list[WorkerSpec]:
    mechanism, data, workers = plan.mechanism, config.data, config.runtime.most_workers
    blocks = plan.blocks_for(config.runtime)
    if mechanism is not None and spec.all_rows and spec.most_rows is None:
        raise UnsafeError("all rows of a unit take part, and no public number bounds them")
    (ref,) = shard_refs(
        context.store,
        data.sensitive,
        count=1,  # workers choose their blocks' units by the run's secret
        unit=data.unit,
        max_rows_per_unit=data.max_length,
        skip_trajectories=plan.skip_trajectories,
    )
    chosen = plan if mechanism is None else mechanism
    return [
        WorkerSpec(
            source=spec.source(ref),
            local_update=spec.local_update(None if mechanism is None else mechanism.clip_norm),
            sampling_probability=chosen.sampling_probability,
            secret=SecretOfRun(
                run_id=context.run_id,
                ledger=None if mechanism is None else context.ledger,
                insecure_key=context.insecure_key,
            ),
            index=index,
            workers=workers,
            blocks=blocks,
            least_slots=plan.least_slots(blocks),
            copies=spec.copies,
            all_rows=spec.all_rows,
            most_rows=spec.most_rows,
        )
        for index in range(workers)
    ]


def run_rounds(
    server: WorkerGroup, plan: Plan, *, progress: Progress, stage: str = STAGE
) -> RoundProgress:
    """Run the rounds that are left and return where the server ended.

    A server that dies is rebuilt from its last checkpoint by the executor; the rounds of its open
    block stay spent. What it was asked is never asked again: it is asked where it stands, and goes
    on from there. On an interruption a checkpoint is written first, so that a resume loses none of
    the rounds that were drawn.

    Args:
        server: a group with one `RoundServer`.
        plan: what the rounds cost, for the note beside the bar.
        stage: what the progress bar is called.
        progress: told the round number and the epsilon reserved; nothing that depends on data.

    Raises:
        WorkerLostError: the server died more often than ``SERVER_RESTARTS`` times, or it or one of
            its workers did not come back.
    """
    step = max(1, min(25, plan.block_rounds // 4))
    costs = _ReservedEpsilon(plan, told=progress is not silent)
    status: RoundProgress | None = None  # not known at first, and after each loss
    losses = 0
    try:
        while status is None or not status.finished:
            try:
                status = _asked(server, status, step)
            except WorkerLostError as lost:
                losses, status = losses + 1, None
                if not lost.may_return or losses > SERVER_RESTARTS:
                    raise
                logger.warning(
                    "the server died: it is built again from its last checkpoint, and the rounds of"
                    " its open block stay charged"
                )
                server.wait_for_lost()
            else:
                _tell(progress, stage, status, costs)
    except KeyboardInterrupt:
        if status is not None:
            _suspend(server)
        raise
    return status


def _tell(progress: Progress, stage: str, status: RoundProgress, costs: "_ReservedEpsilon") -> None:
    """Tell where the rounds stand, and what is reserved to a progress that asks for it."""
    progress(stage, status.round_index, status.target, costs.note(status.reserved))
    epsilon = costs.epsilon(status.reserved)
    if isinstance(progress, WatchesReservations) and epsilon is not None:
        progress.reserved(
            stage,
            status.round_index,
            status.target,
            blocks=PublicValue(costs.blocks(status.reserved)),
            epsilon=PublicValue(epsilon),
        )


def _asked(server: WorkerGroup, known: RoundProgress | None, step: int) -> RoundProgress:
    """Have the server go on for some rounds; first ask it where it stands if that is not known."""
    status: RoundProgress
    if known is None:
        status = server.call("progress")[0]
    else:
        status = server.call("advance", {"rounds": step})[0]
    return status


def _suspend(server: WorkerGroup) -> None:
    """Have the last checkpoint written; a server that has died cannot."""
    try:
        server.call("suspend")
    except WorkerLostError:
        logger.warning(
            "interrupted, and the server died before its last checkpoint: the rounds of its open"
            " block stay charged, and --resume goes on from the checkpoint before"
        )


class _ReservedEpsilon:
    """The epsilon reserved so far, computed once a block, and not where nobody is told."""

    def __init__(self, plan: Plan, *, told: bool) -> None:
        self._plan = plan
        self._told = told
        self._known: dict[int, float] = {}

    def blocks(self, reserved: int) -> int:
        return -(-reserved // self._plan.block_rounds)

    def epsilon(self, reserved: int) -> float | None:
        """Return what the reserved rounds cost; None without privacy, or where nobody is told."""
        if self._plan.budget is None or not self._told:
            return None
        if reserved not in self._known:
            self._known[reserved] = self._plan.epsilon(reserved)
        return self._known[reserved]

    def note(self, reserved: int) -> str:
        if self._plan.budget is None:
            return "NOT private"
        epsilon = self.epsilon(reserved)
        return "" if epsilon is None else f"epsilon reserved {epsilon:.3f}"
