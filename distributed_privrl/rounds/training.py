"""Training in private rounds: starts workers and server, and drives the server over its rounds."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import WorkerLostError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.rounds.context import RunContext
from distributed_privrl.rounds.plan import Plan, RoundPlan
from distributed_privrl.rounds.round_server import RoundProgress
from distributed_privrl.rounds.server import ParameterServer, PublicUpdateFactory, ServerSpec
from distributed_privrl.rounds.worker import (
    LocalUpdateFactory,
    LocalUpdateWorker,
    ShardSource,
    WorkerSpec,
)

STAGE = "private rounds"
SERVER_RESTARTS = 3


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
        public_update: see `ServerSpec`.
    """

    source: Callable[[ShardRef], ShardSource]
    local_update: Callable[[float | None], LocalUpdateFactory]
    initial: Path
    checkpoint: Path
    copies: int = 1
    all_rows: bool = False
    public_update: PublicUpdateFactory | None = None


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
        WorkerLostError: as `run_rounds`.

    Privacy: unit ``data.unit``, relation of the plan's mechanism, sensitivity its clip norm: the
    coins of workers, the norm that they clip to and the server's noise all come from the mechanism
    that is charged, and the trajectories that are read from its plan. Event: ``poisson_gaussian``,
    see `ParameterServer`. Without a mechanism nothing is protected.
    """
    workers = context.executor.start(
        LocalUpdateWorker, _worker_specs(spec, config, context, plan), repeat_lost_calls=True
    )
    private = plan.mechanism is not None
    server = context.executor.start(
        ParameterServer,
        [
            ServerSpec(
                run_id=context.run_id,
                workers=workers,
                initial=spec.initial,
                checkpoint=spec.checkpoint,
                mechanism=plan.mechanism,
                expected_units=plan.expected_units,
                rounds=plan.rounds,
                max_rounds=plan.max_rounds,
                block_rounds=plan.block_rounds,
                optimiser=plan.config.optimiser,
                public_update=spec.public_update,
                ledger=context.ledger if private else None,
                insecure_key=context.insecure_key,
            )
        ],
        service=True,
    )
    run_rounds(server, plan, progress=context.progress)
    server.close()
    workers.close()


def _worker_specs(
    spec: TrainingSpec, config: RunConfig, context: RunContext, plan: RoundPlan
) -> list[WorkerSpec]:
    mechanism, data = plan.mechanism, config.data
    update = spec.local_update(None if mechanism is None else mechanism.clip_norm)
    refs = shard_refs(
        context.store,
        data.sensitive,
        count=config.runtime.workers,
        unit=data.unit,
        max_rows_per_unit=data.max_length,
        skip_trajectories=plan.skip_trajectories,
    )
    chosen = plan if mechanism is None else mechanism
    return [
        WorkerSpec(
            source=spec.source(ref),
            local_update=update,
            sampling_probability=chosen.sampling_probability,
            copies=spec.copies,
            all_rows=spec.all_rows,
            insecure_key=context.insecure_key,
        )
        for ref in refs
    ]


def run_rounds(
    server: WorkerGroup, plan: Plan, *, progress: Progress, stage: str = STAGE
) -> RoundProgress:
    """Run the rounds that are left and return where the server ended.

    A server that dies is rebuilt from its last checkpoint by the executor; the rounds of its open
    block stay spent. On an interruption a checkpoint is written first, so that a resume loses none
    of the rounds that were drawn.

    Args:
        server: a group with one `RoundServer`.
        plan: what the rounds cost, for the note beside the bar.
        stage: what the progress bar is called.
        progress: told the round number and the epsilon reserved; nothing that depends on data.

    Raises:
        WorkerLostError: the server died more often than ``SERVER_RESTARTS`` times.
    """
    status: RoundProgress = server.call("progress")[0]
    step = max(1, min(25, plan.block_rounds // 4))
    costs = _ReservedEpsilon(plan, told=progress is not silent)
    restarts = 0
    progress(stage, status.round_index, status.target, costs.note(status.reserved))
    try:
        while not status.finished:
            try:
                status = server.call("advance", {"rounds": step})[0]
            except WorkerLostError:
                restarts += 1
                if restarts > SERVER_RESTARTS:
                    raise
                status = server.call("progress")[0]
            progress(stage, status.round_index, status.target, costs.note(status.reserved))
    except KeyboardInterrupt:
        server.call("suspend")
        raise
    return status


class _ReservedEpsilon:
    """The epsilon reserved so far, computed once a block, and not where nobody is told."""

    def __init__(self, plan: Plan, *, told: bool) -> None:
        self._plan = plan
        self._told = told
        self._known: dict[int, str] = {}

    def note(self, reserved: int) -> str:
        if self._plan.budget is None:
            return "NOT private"
        if not self._told:
            return ""
        if reserved not in self._known:
            self._known[reserved] = f"epsilon reserved {self._plan.epsilon(reserved):.3f}"
        return self._known[reserved]
