"""`marginals` as a declared run: columns, joint counts, a model, rows.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM); McKenna, Sheldon and Miklau 2019
(private-PGM).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from distributed_privrl.core.progress import SAMPLING
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StoredTransitions
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.stage import (
    STAGE,
    ForeseenTable,
    MarginalsStage,
    Table,
    foreseen_table,
    stage_plan,
    table_of,
    transition_columns,
)
from distributed_privrl.methods.marginals.config import MarginalsConfig, MarginalsJConfig
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.context import RunContext, SyntheticTransitions
from distributed_privrl.stages.encoders import check_bounds_named, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.plan import left_for_rounds


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        columns: of the table, by bounds that are public or paid for.
        plan: that was drawn by; None before.
    """

    ranges: Bounds | None
    columns: TableColumns
    plan: MarginalsPlan | None = None


@dataclass(frozen=True)
class MarginalsMethod(DeclaredMethod[World]):
    """Independent transitions from noisy marginals.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; each of a unit's n rows weighs
    1 / max(n, ``model.rows_per_unit``), so that a unit moves a count by 1 at most; events:
    ``discrete_gaussian`` for all columns, then ``bounded_range`` and ``discrete_gaussian`` for each
    joint count; bounds and the number of units as in any method. What is drawn from the model is
    post-processing.
    """

    config: MarginalsConfig | MarginalsJConfig
    needs_successors: ClassVar[bool] = False

    def check_config(self) -> None:
        """Refuse what the configuration alone tells."""
        check_bounds_named(self.config.data)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds, if they are found with noise."""
        return first_bounds(self.config.data, self._ask_bounds)

    def check(self, context: RunContext) -> World:
        """Return the columns of the table; see `DeclaredMethod.check`."""
        ranges = search_ranges(self.config.data, context.store, relation=self.relation)
        return World(ranges=ranges, columns=self.columns(context, ranges))

    def columns(self, context: RunContext, found: Bounds | None) -> TableColumns:
        """Return the columns of the table, by public bounds or those that were found."""
        return table_of(self.config.data, context.store, self.table, found=found)

    @property
    def table(self) -> Table:
        """What makes the columns of the table."""
        return transition_columns(self.config.data, self.config.model)

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        assert world.ranges is not None
        asked = bounds_question(
            self.config.data, context, world.ranges, relation=self.relation, units=units
        )
        return asked.then(lambda found: replace(world, columns=self.columns(context, found)))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the one stage: columns, then joint counts."""
        columns = None if world is None else world.columns
        return self._stages(ForeseenTable(columns=columns, assumed=columns is None), units)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same for the columns that public facts tell; see `foreseen_table`."""
        return self._stages(foreseen_table(self.config.data, store, self.table), units)

    def _stages(self, table: ForeseenTable, units: UnitCount) -> tuple[StagePlan, ...]:
        privacy = self.config.privacy
        epsilon = privacy.epsilon
        plan = stage_plan(
            self.config,
            self.config.training,
            table=table,
            rows_per_unit=self.config.model.row_cap(self.config.data),
            units=units,
            epsilon=None if epsilon is None else left_for_rounds(epsilon, self.spent),
            delta=privacy.delta,
            spent=self.spent,
        )
        return (StagePlan(name=STAGE, plan=plan),)

    def ready(self, world: World, stages: Sequence[StagePlan]) -> World:
        """Return the world with the plan that it draws by."""
        plan = stages[0].plan
        assert isinstance(plan, MarginalsPlan)
        return replace(world, plan=plan)

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Count, choose and release."""
        assert isinstance(stage.plan, MarginalsPlan)
        self.stage(world).release(self.config, context, stage.plan)
        return world

    def stage(self, world: World) -> MarginalsStage:
        """Return what the run counts."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            source=lambda ref: StoredTransitions(ref=ref),
        )

    def model(self, world: World, context: RunContext) -> TableModel:
        """Return the model that the release is drawn from."""
        assert world.plan is not None
        return self.stage(world).model(self.config, context, world.plan)

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic rows."""
        config = self.config
        assert isinstance(config, MarginalsConfig)
        streams, most = (
            Streams(config.seed).child(context.stream),
            config.training.sampling.chunk_rows,
        )

        def chunks() -> Iterator[Transitions]:
            model = self.model(world, context)
            for index, start in enumerate(range(0, config.output.size, most)):
                rows = min(most, config.output.size - start)
                context.progress(SAMPLING, start, config.output.size)
                yield model.transitions(rows, streams.numpy(f"chunk/{index}"))
            context.progress(SAMPLING, config.output.size, config.output.size)

        return Released(release=SyntheticTransitions(chunks=chunks))
