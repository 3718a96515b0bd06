"""A declared run that counts a table and draws rows from what was released.

What is released between columns and rows, and the model of it, are the methods'.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from distributed_privrl.core.config import DataConfig, OutputConfig
from distributed_privrl.core.progress import SAMPLING
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.config import CountedConfig
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.stage import (
    STAGE,
    ForeseenTable,
    MarginalsStage,
    Table,
    foreseen_table,
    table_of,
    transition_columns,
)
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.context import RunContext, SyntheticTransitions
from distributed_privrl.stages.encoders import check_bounds_named, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.plan import left_for_rounds

ModelT = TypeVar("ModelT")


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        columns: of the table, by bounds that are public or paid for.
        plan: that was drawn by; None before.
        asked: places of columns that are counted together in any case.
    """

    ranges: Bounds | None
    columns: TableColumns
    plan: MarginalsPlan | None = None
    asked: tuple[Clique, ...] = ()


class RowModel(Protocol):
    """A model of a table that rows are drawn from."""

    def transitions(self, count: int, random: np.random.Generator) -> Transitions:
        """Return ``count`` transitions."""
        ...


@dataclass(frozen=True)
class TableRun(DeclaredMethod[World], Generic[ModelT]):
    """A run on a table: bounds, one stage of counts, a model.

    Args:
        config: of the run; has ``model``, a `CountedConfig`.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; each of a unit's n rows weighs
    1 / max(n, ``model.rows_per_unit``), so that a unit moves a count by 1 at most. Events: of the
    stage those of `plan`; bounds and the number of units as in any method. What follows from the
    model is post-processing.
    """

    config: Any
    needs_successors: ClassVar[bool] = False
    needs_decisions: ClassVar[bool] = False

    @abstractmethod
    def plan(
        self, table: ForeseenTable, units: UnitCount, *, epsilon: float | None
    ) -> MarginalsPlan:
        """Return the plan of the stage.

        Args:
            table: what is counted.
            units: how many there are.
            epsilon: that first releases leave; None: without privacy.
        """

    @abstractmethod
    def stage(self, world: World) -> MarginalsStage[ModelT]:
        """Return what the run counts, and what follows from that."""

    @property
    def counted(self) -> CountedConfig:
        """How the table is counted."""
        counted: CountedConfig = self.config.model
        return counted

    @property
    def data(self) -> DataConfig:
        """Which datasets there are."""
        data: DataConfig = self.config.data
        return data

    @property
    def table(self) -> Table:
        """What makes the columns of the table."""
        return transition_columns(self.data, self.counted)

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_bounds_named(self.data)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds, if they are found with noise."""
        return first_bounds(self.data, self._ask_bounds)

    def check(self, context: RunContext) -> World:
        """Return the columns of the table; see `DeclaredMethod.check`."""
        ranges = search_ranges(self.data, context.store, relation=self.relation)
        return World(ranges=ranges, columns=self.columns(context, ranges))

    def columns(self, context: RunContext, found: Bounds | None) -> TableColumns:
        """Return the columns of the table, by public bounds or those that were found."""
        return table_of(self.data, context.store, self.table, found=found)

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        assert world.ranges is not None
        asked = bounds_question(
            self.data, context, world.ranges, relation=self.relation, units=units
        )
        return asked.then(lambda found: replace(world, columns=self.columns(context, found)))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the one stage: columns, then what the method releases."""
        columns = None if world is None else world.columns
        return self._stages(ForeseenTable(columns=columns, assumed=columns is None), units)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same for the columns that public facts tell; see `foreseen_table`."""
        return self._stages(foreseen_table(self.data, store, self.table), units)

    def _stages(self, table: ForeseenTable, units: UnitCount) -> tuple[StagePlan, ...]:
        epsilon = self.config.privacy.epsilon
        left = None if epsilon is None else left_for_rounds(epsilon, self.spent)
        return (StagePlan(name=STAGE, plan=self.plan(table, units, epsilon=left)),)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the plan that it draws by."""
        plan = stages[0].plan
        assert isinstance(plan, MarginalsPlan)
        return replace(world, plan=plan)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Count and release."""
        assert isinstance(stage.plan, MarginalsPlan)
        self.stage(self.ready(world, [stage])).release(self.config, context, stage.plan)
        return world

    def model(self, world: World, context: RunContext) -> ModelT:
        """Return the model that the release is drawn from."""
        assert world.plan is not None
        return self.stage(world).model(self.config, context, world.plan)

    def row_model(self, world: World, context: RunContext, streams: Streams) -> RowModel:
        """Return what rows are drawn from: the model, if it draws rows.

        Args:
            world: of the finished stage.
            context: of the run, or of a further sample.
            streams: of public randomness, of this sample alone.
        """
        model: Any = self.model(world, context)
        found: RowModel = model
        return found

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic rows."""
        output: OutputConfig = self.config.output
        streams = Streams(self.config.seed).child(context.stream)
        most = self.config.training.sampling.chunk_rows

        def chunks() -> Iterator[Transitions]:
            model = self.row_model(world, context, streams)
            for index, start in enumerate(range(0, output.size, most)):
                context.progress(SAMPLING, start, output.size)
                rows = min(most, output.size - start)
                yield model.transitions(rows, streams.numpy(f"chunk/{index}"))
            context.progress(SAMPLING, output.size, output.size)

        return Released(release=SyntheticTransitions(chunks=chunks))
