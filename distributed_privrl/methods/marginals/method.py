"""`marginals` as a declared run: columns, joint counts, a model, rows.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM); McKenna, Sheldon and Miklau 2019
(private-PGM).
"""

from dataclasses import dataclass, replace

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.asked import KEY, cliques_asked, levels_asked
from distributed_privrl.marginals.counting import StoredTransitions
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.run import TableRun, World
from distributed_privrl.marginals.stage import (
    ForeseenTable,
    MarginalsStage,
    adaptive_program,
    foreseen_table,
    stage_plan,
)
from distributed_privrl.methods.marginals.config import MarginalsConfig, MarginalsJConfig
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.method import StagePlan


@dataclass(frozen=True)
class MarginalsMethod(TableRun[TableModel]):
    """Independent transitions from noisy marginals.

    Args:
        config: of the run.

    Privacy: as `TableRun`; events: ``discrete_gaussian`` for all columns, one more for
    correlations, if ``training.correlations_share`` asks for them, then ``bounded_range`` and
    ``discrete_gaussian`` for each joint count.
    """

    config: MarginalsConfig | MarginalsJConfig

    def check(self, context: RunContext) -> World:
        """Return the columns of the table, and which of them are to be counted together.

        Raises:
            ConfigError: ``training.together`` names what is no column.
        """
        world = super().check(context)
        info = context.store.info(self.config.data.sensitive)
        named = cliques_asked(world.columns, info, self.config.training.together)
        return replace(world, asked=(*levels_asked(world.columns), *named))

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the stages, for the columns that public facts tell.

        Raises:
            ConfigError: ``training.together`` names what is no column of a dataset that is here.
        """
        store = store or DatasetStore()
        if self.config.training.together and store.holds(self.data.sensitive):
            table = foreseen_table(self.data, store, self.table)
            if table.columns is not None:
                info = store.info(self.data.sensitive)
                cliques_asked(table.columns, info, self.config.training.together)
        return super().foreseen_stages(store, units)

    def plan(
        self, table: ForeseenTable, units: UnitCount, *, epsilon: float | None
    ) -> MarginalsPlan:
        """Return the plan: columns, then choices of joint counts.

        Raises:
            ConfigError: more of them are asked for than are made.
        """
        plan = stage_plan(
            self.config,
            self.config.training,
            table=table,
            rows_per_unit=self.config.model.row_cap(self.config.data),
            units=units,
            epsilon=epsilon,
            delta=self.config.privacy.delta,
            spent=self.spent,
        )
        own = len(set(getattr(self.config.model, "memory", ())))
        asked, made = own + len(self.config.training.together), sum(plan.counts)
        if asked > made:
            levels = f" with {own} of model.memory" if own else ""
            raise ConfigError(
                f"{KEY} asks for {asked} joint counts{levels}, and {made} are made: name fewer,"
                " or raise"
                f" {self.config.training.TABLES_KEY}, which leaves more noise in each"
            )
        return plan

    def stage(self, world: World) -> MarginalsStage[TableModel]:
        """Return what the run counts."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            program=adaptive_program,
            source=lambda ref: StoredTransitions(ref=ref),
            asked=world.asked,
        )
