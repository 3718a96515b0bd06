"""The stage of marginals: workers that count, a server that chooses and releases, a model."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.config import TableConfig
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StepSource
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.program import ProgramSpec
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.training import StepsSpec, release_in_steps

CHECKPOINT = "marginals.safetensors"
STAGE = "marginals"


@dataclass(frozen=True, kw_only=True)
class MarginalsStage:
    """What a stage of marginals counts; what is charged for it is in its plan alone.

    Args:
        columns: of the table.
        table: cells, joint counts and weights.
        source: where the rows of a shard come from.
        given: columns that others are drawn given; see `model.elimination`.
    """

    columns: TableColumns
    table: TableConfig
    source: Callable[[ShardRef], StepSource]
    given: tuple[int, ...] = ()

    def release(self, config: RunConfig, context: RunContext, plan: MarginalsPlan) -> None:
        """Release what is left of the plan's steps.

        Privacy: unit ``data.unit``, relation of the plan's budget; see `CountWorker` for what a
        unit adds to a count and `MarginalsProgram` for what is drawn. Events: those of the plan's
        schedule, which are the ones that were charged.
        """
        workers = [
            CountSpec(
                source=self.source(ref),
                columns=self.columns,
                rows_per_unit=self.table.row_cap(config.data),
                trajectories_per_unit=self.table.trajectory_cap(config.data),
                max_rows_per_unit=config.data.max_length,
            )
            for ref in shard_refs(
                context.store,
                config.data.sensitive,
                count=config.runtime.workers,
                unit=config.data.unit,
                max_rows_per_unit=config.data.max_length,
            )
        ]
        spec = StepsSpec(
            worker_cls=CountWorker,
            workers=workers,
            program=self._program(config, context, plan),
            checkpoint=_checkpoint(context),
            stage=STAGE,
        )
        release_in_steps(spec, config, context, plan)

    def model(self, config: RunConfig, context: RunContext, plan: MarginalsPlan) -> TableModel:
        """Return the model of what was released: post-processing.

        Raises:
            BudgetError: crashes used up all steps.
            StorageError: the checkpoint cannot be read.
        """
        path = _checkpoint(context)
        program = self._program(config, context, plan)()
        if path.exists():
            tensors, state = load_checkpoint(path, run_id=context.run_id, stage="rounds")
            program.restore(tensors, state.round_index)
        return program.model()

    def _program(self, config: RunConfig, context: RunContext, plan: MarginalsPlan) -> ProgramSpec:
        if len(plan.counts) + 1 != plan.steps:
            raise UnsafeError("a plan of marginals has one step for columns, and its choices")
        return ProgramSpec(
            columns=self.columns,
            plan=plan,
            chooser=context.chooser(),
            seed=config.seed,
            most_bins=self.table.bins,
            most_cells=self.table.cells,
            model_cells=self.table.model_cells,
            rows=self.table.draws,
            given=self.given,
        )


def _checkpoint(context: RunContext) -> Path:
    return context.folder / CHECKPOINT
