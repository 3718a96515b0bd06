"""The stage of marginals: workers that count, a server that chooses and releases, a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from distributed_privrl.core.config import DataConfig, RunConfig
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.columns import TableColumns, step_columns
from distributed_privrl.marginals.config import TableConfig
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StepSource
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan, SelectionConfig, marginals_plan
from distributed_privrl.marginals.program import ProgramSpec
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.encoders import bounds_of
from distributed_privrl.stages.training import StepsSpec, release_in_steps

CHECKPOINT = "marginals.safetensors"
STAGE = "marginals"
_UNKNOWN_COLUMNS = 12
"""Of the table, where no dataset has been opened: what is shown of the noise is for so many."""


def transition_columns(
    data: DataConfig, store: DatasetStore, table: TableConfig, *, found: Bounds | None
) -> TableColumns:
    """Return the columns of a dataset's transitions, by public bounds or those that were found.

    Args:
        data: datasets and bounds.
        store: datasets.
        table: how numbers after a step are counted.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.

    Raises:
        ConfigError: a column has no bounds, or an empty range.
    """
    info = store.info(data.sensitive)
    return step_columns(
        info.observation_space,
        info.action_space,
        bounds_of(data, store, found),
        next_observation=table.coding(data),
        has_successors=info.has_successors,
    )


def stage_plan(
    config: RunConfig,
    selection: SelectionConfig,
    *,
    columns: TableColumns | None,
    units: UnitCount,
    epsilon: float | None,
    delta: float,
    spent: float,
) -> MarginalsPlan:
    """Return the plan of a stage of marginals; see `marginals_plan`.

    Args:
        config: of the run.
        selection: how the stage's budget is spent.
        columns: of the table; None: a plan is made, and no dataset has been opened. A guess stands
            for their number, and the plan says so.
        units: how many there are.
        epsilon: of the stage; None: without privacy.
        delta: of the stage.
        spent: epsilon that the run spends before it.
    """
    plan = marginals_plan(
        config.privacy,
        selection,
        unit=config.data.unit,
        units=units,
        columns=_UNKNOWN_COLUMNS if columns is None else len(columns),
        histograms=_UNKNOWN_COLUMNS if columns is None else columns.histograms,
        epsilon=epsilon,
        delta=delta,
        spent=spent,
    )
    if columns is not None:
        return plan
    return replace(plan, details={"columns_assumed": _UNKNOWN_COLUMNS, **plan.details})


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
