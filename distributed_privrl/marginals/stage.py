"""The stage of marginals: workers that count, a server that chooses and releases, a model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from distributed_privrl.core.config import DataConfig, RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import NO_GAPS, Gaps
from distributed_privrl.data.labels import part_names
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.shards import ShardRef, shard_refs
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.column import ENDS
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.config import CountedConfig, TableConfig, TrajectoryTableConfig
from distributed_privrl.marginals.correlations import most_sums
from distributed_privrl.marginals.counting import (
    CountSpec,
    CountWorker,
    FollowedSteps,
    StepSource,
    StoredSteps,
)
from distributed_privrl.marginals.plan import MarginalsPlan, SelectionConfig, marginals_plan
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import time_groups
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import TRAJECTORY, TRANSITION, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.encoders import ForeseenColumns, bounds_of, foreseen_columns

if TYPE_CHECKING:
    from distributed_privrl.marginals.drawing import TableModel
    from distributed_privrl.marginals.table_program import ProgramSpec, TableProgram

ModelT = TypeVar("ModelT")
CHECKPOINT = "marginals.safetensors"
STAGE = "marginals"
ASSUMED_COLUMNS = 12
"""Of the table, where public facts do not tell: a plan is made for so many, and says so."""


class Table(Protocol):
    """Returns the columns of a table."""

    def __call__(
        self,
        observation_space: Space,
        action_space: Space,
        bounds: Bounds,
        *,
        lasting: Sequence[int] = (),
        rising: Sequence[int] = (),
        has_reward: bool = True,
        gaps: Gaps = NO_GAPS,
        names: Sequence[str] = (),
    ) -> TableColumns:
        """Return the columns by the spaces of the dataset, its bounds, and what it declares."""
        ...


@dataclass(frozen=True, kw_only=True)
class ForeseenTable:
    """The table of a plan, for which no dataset is opened.

    Args:
        columns: of the table; None: nothing is known of them.
        assumed: whether there may be others in the dataset.
        names: of the observation's numbers, where they are known.
    """

    columns: TableColumns | None
    assumed: bool
    names: tuple[str, ...] = ()


def table_of(
    data: DataConfig, store: DatasetStore, table: Table, *, found: Bounds | None
) -> TableColumns:
    """Return the columns of a dataset's table, by public bounds or those that were found.

    Args:
        data: datasets and bounds.
        store: datasets.
        table: makes the columns.
        found: bounds that were found with noise and charged, where ``data.bounds`` says so.

    Raises:
        ConfigError: a column has no bounds, or an empty range.
    """
    info = store.info(data.sensitive)
    columns = table(
        info.observation_space,
        info.action_space,
        bounds_of(data, store, found),
        lasting=info.lasting,
        rising=info.rising,
        has_reward=info.has_reward,
        gaps=info.gaps,
        names=part_names(info, "observation"),
    )
    return as_followed(columns, info)


def foreseen_table(data: DataConfig, store: DatasetStore | None, table: Table) -> ForeseenTable:
    """Return the table that a plan is made for; see `encoders.foreseen_columns`.

    Raises:
        ConfigError: the bounds file is wrong, or does not fit the dataset's spaces.
    """
    known = foreseen_columns(data, store)
    if known is None:
        return ForeseenTable(columns=None, assumed=True)
    columns = table(
        known.observation_space,
        known.action_space,
        known.bounds,
        lasting=known.lasting,
        rising=known.rising,
        has_reward=known.has_reward,
        gaps=known.gaps,
        names=known.names,
    )
    return ForeseenTable(
        columns=as_followed(columns, known), assumed=not known.declared, names=known.names
    )


def as_followed(columns: TableColumns, facts: DatasetInfo | ForeseenColumns) -> TableColumns:
    """Return columns of rows that something follows, but maybe at ends, or that nothing does.

    Args:
        columns: of rows that something follows.
        facts: of the dataset.
    """
    if not facts.has_successors:
        return columns.without_successors()
    return replace(columns, ends_unseen=facts.last_rows_copied and bool(columns.of("end")))


def transition_columns(data: DataConfig, table: CountedConfig) -> Table:
    """Return what makes the columns of transitions.

    Args:
        data: names the environment, if there is one, and how many rows of a unit count.
        table: how numbers after a step are counted, and how many rows of a unit weigh alike.
    """
    return _counted_as(data, table, lambda steps, _: steps)


def rollout_columns(data: DataConfig, table: TrajectoryTableConfig, *, longest: int) -> Table:
    """Return what makes the columns of a step of trajectories; see `transition_columns`.

    Args:
        data: names the environment, if there is one, and how many rows of a unit count.
        table: as of transitions, and what a step knows of the ones before it.
        longest: steps of a trajectory at most.
    """

    def in_time(steps: TableColumns, names: Sequence[str]) -> TableColumns:
        return trajectory_columns(
            steps,
            groups=2 if table.stationary else time_groups(longest),
            previous=table.previous_action,
            longest=0 if table.stationary else longest,
            alike=table.row_cap(data) / table.trajectory_cap(data),
            memory=_with_levels(table.memory, steps, names),
        )

    return _counted_as(data, table, in_time, ends=len(ENDS))


def _with_levels(
    asked: Sequence[str], steps: TableColumns, names: Sequence[str]
) -> tuple[int, ...]:
    """Return the places of the observation's numbers and categories that are to have a level.

    Args:
        asked: their names.
        steps: columns of a transition.
        names: of the observation's numbers; (): nobody knows them, and any columns will do, to plan
            with as many.

    Raises:
        ConfigError: one is no column of the observation that changes.
    """
    changing = {steps[i].place for i in steps.of("next_observation")}
    places = {
        names[steps[i].place] if names else steps[i].name: steps[i].place
        for i in steps.of("observation")
        if steps[i].place in changing
    }
    if not names and len(asked) <= len(places):
        return tuple(places.values())[: len(asked)]
    if unknown := [name for name in asked if name not in places]:
        known = ", ".join(places) or "none"
        raise ConfigError(
            f"model.memory names {', '.join(unknown)}, which is no column of the observation that"
            f" changes; such columns are: {known}"
        )
    return tuple(dict.fromkeys(places[name] for name in asked))


def _counted_as(
    data: DataConfig,
    table: CountedConfig,
    rows: Callable[[TableColumns, Sequence[str]], TableColumns],
    *,
    ends: int = 2,
) -> Table:
    """Return what makes columns as ``rows`` has them, with the class of a unit's size."""

    def columns(
        observation_space: Space,
        action_space: Space,
        bounds: Bounds,
        *,
        lasting: Sequence[int] = (),
        rising: Sequence[int] = (),
        has_reward: bool = True,
        gaps: Gaps = NO_GAPS,
        names: Sequence[str] = (),
    ) -> TableColumns:
        steps = step_columns(
            observation_space,
            action_space,
            bounds,
            next_observation=table.coding(data),
            ends=ends,
            lasting=lasting,
            rising=rising,
            has_reward=has_reward,
            gaps=gaps,
        )
        return rows(steps, names).with_unit_sizes(table.unit_sizes(data))

    return columns


def stored_steps(ref: ShardRef) -> StoredSteps:
    """Return the steps of a shard's trajectories; no cap on those of a unit but that of its rows.

    More trajectories than `UNIT_WEIGHT` would each weigh nothing.
    """
    return StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT)


def stage_plan(
    config: RunConfig,
    selection: SelectionConfig,
    *,
    table: ForeseenTable,
    rows_per_unit: int,
    units: UnitCount,
    epsilon: float | None,
    delta: float,
    spent: float,
) -> MarginalsPlan:
    """Return the plan of a stage of marginals; see `marginals_plan`.

    Args:
        config: of the run.
        selection: how the stage's budget is spent.
        table: its columns. Where they are not known for certain, the plan says so.
        rows_per_unit: see `TableConfig.row_cap`.
        units: how many there are.
        epsilon: of the stage; None: without privacy.
        delta: of the stage.
        spent: epsilon that the run spends before it.
    """
    columns = table.columns
    found = marginals_plan(
        config.privacy,
        selection,
        unit=config.data.unit,
        units=units,
        columns=ASSUMED_COLUMNS if columns is None else columns.drawn,
        columns_in_words="" if columns is None else columns.in_words,
        histograms=ASSUMED_COLUMNS if columns is None else columns.histograms,
        sizes=() if columns is None else columns.sizes,
        rows_per_unit=rows_per_unit,
        sums=math.comb(ASSUMED_COLUMNS, 2) if columns is None else most_sums(columns),
        assumed=table.assumed,
        epsilon=epsilon,
        delta=delta,
        spent=spent,
    )
    in_ranges = [] if columns is None else columns.in_ranges(table.names)
    if not in_ranges:
        return found
    return replace(found, details={**found.details, "no_single_values": in_ranges})


def adaptive_program(spec: "ProgramSpec[TableModel]") -> "TableProgram[TableModel]":
    """Return the program whose joint counts are chosen by what was released before."""
    from distributed_privrl.marginals.program import MarginalsProgram

    return MarginalsProgram(spec)


@dataclass(frozen=True, kw_only=True)
class MarginalsStage(Generic[ModelT]):
    """What a stage of marginals counts; what is charged for it is in its plan alone.

    Args:
        columns: of the table.
        table: cells, joint counts and weights.
        program: builds what is released, and the model that follows from it; picklable.
        source: where the rows of a shard come from.
        given: columns that others are drawn given; see `drawer.Drawer`.
        asked: columns that are counted together in any case.
    """

    columns: TableColumns
    table: TableConfig
    program: Callable[["ProgramSpec[ModelT]"], "TableProgram[ModelT]"]
    source: Callable[[ShardRef], StepSource]
    given: tuple[int, ...] = ()
    asked: tuple[Clique, ...] = ()

    def release(self, config: RunConfig, context: RunContext, plan: MarginalsPlan) -> None:
        """Release what is left of the plan's steps.

        Privacy: unit ``data.unit``, relation of the plan's budget; see `CountWorker` for what a
        unit adds to a count and the program for what is drawn. Events: those of the plan's
        schedule, which are the ones that were charged.
        """
        from distributed_privrl.stages.training import StepsSpec, release_in_steps

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
                count=config.runtime.most_workers,
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

    def model(self, config: RunConfig, context: RunContext, plan: MarginalsPlan) -> ModelT:
        """Return the model of what was released: post-processing.

        Raises:
            BudgetError: crashes used up all steps.
            StorageError: the checkpoint cannot be read.
        """
        from distributed_privrl.rounds.checkpoint import load_checkpoint

        path = _checkpoint(context)
        program = self._program(config, context, plan)()
        if path.exists():
            tensors, state = load_checkpoint(path, run_id=context.run_id, stage="rounds")
            program.restore(tensors, state.round_index)
        return program.model(context.progress)

    def _program(
        self, config: RunConfig, context: RunContext, plan: MarginalsPlan
    ) -> "ProgramSpec[ModelT]":
        from distributed_privrl.marginals.table_program import ProgramSpec

        if len(plan.counts) + 1 != plan.steps:
            raise UnsafeError("a plan of marginals has one step for columns, and its choices")
        return ProgramSpec(
            columns=self.columns,
            plan=plan,
            chooser=context.chooser(),
            program=self.program,
            seed=config.seed,
            most_bins=self.table.bins,
            most_cells=self.table.cells,
            model_cells=self.table.model_cells,
            rows=self.table.draws,
            given=self.given,
            asked=self.asked,
            weighed=(
                self.table.row_cap(config.data),
                self.table.trajectory_cap(config.data),
                config.data.max_length,
            ),
            public=self._public(config, context) if self.table.public_prior else (),
        )

    def _public(self, config: RunConfig, context: RunContext) -> tuple[StepSource, ...]:
        """Return where public rows come from: nobody is a unit, so that all of them count.

        Last rows that nothing follows, where something follows those of the run, are left out.
        """
        unit = TRAJECTORY if self.columns.of("time") else TRANSITION
        sources: list[StepSource] = []
        for dataset in config.data.public:
            copied = context.store.info(dataset).last_rows_copied
            for ref in shard_refs(context.store, dataset, count=1, unit=unit):
                source = self.source(ref)
                left_out = copied and not self.columns.ends_unseen
                sources.append(FollowedSteps(source=source) if left_out else source)
        return tuple(sources)


def _checkpoint(context: RunContext) -> Path:
    return context.folder / CHECKPOINT
