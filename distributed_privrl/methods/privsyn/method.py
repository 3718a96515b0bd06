"""`privsyn` as a declared run: columns, pairs, marginals that agree, rows.

Reference: Zhang, Wang, Li, Honorio, Backes, He, Chen and Zhang 2021 (PrivSyn).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StoredTransitions
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.run import RowModel, TableRun, World
from distributed_privrl.marginals.stage import ForeseenTable, MarginalsStage
from distributed_privrl.methods.privsyn.config import PrivsynConfig
from distributed_privrl.methods.privsyn.model import Marginals
from distributed_privrl.methods.privsyn.plan import privsyn_plan
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import RunContext

if TYPE_CHECKING:
    from distributed_privrl.marginals.table_program import ProgramSpec, TableProgram


def privsyn_program(spec: "ProgramSpec[Marginals]") -> "TableProgram[Marginals]":
    """Return the program that scores pairs, and measures those that are selected."""
    from distributed_privrl.methods.privsyn.program import PrivsynProgram

    return PrivsynProgram(spec)


@dataclass(frozen=True)
class PrivsynMethod(TableRun[Marginals]):
    """Independent transitions that have the noisy two-way marginals of the sensitive ones.

    Args:
        config: of the run.

    Privacy: as `TableRun`; events: ``discrete_gaussian`` for all columns, for how far all pairs are
    from unrelated, and for the pairs that are measured.
    """

    config: PrivsynConfig

    def columns(self, context: RunContext, found: Bounds | None) -> TableColumns:
        """Return the columns of the table; last rows count as they are, copies and all."""
        return replace(super().columns(context, found), ends_unseen=False)

    def plan(
        self, table: ForeseenTable, units: UnitCount, *, epsilon: float | None
    ) -> MarginalsPlan:
        """Return the plan: columns, scores, pairs."""
        return privsyn_plan(
            self.config, table=table, units=units, epsilon=epsilon, spent=self.spent
        )

    def stage(self, world: World) -> MarginalsStage[Marginals]:
        """Return what the run counts."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model.counted,
            program=privsyn_program,
            source=lambda ref: StoredTransitions(ref=ref),
        )

    def row_model(self, world: World, context: RunContext, streams: Streams) -> RowModel:
        """Return rows that are adjusted to what was released."""
        sampling = self.config.training.sampling
        return self.model(world, context).pool(
            sampling.pool(self.config.output.size),
            iterations=sampling.iterations,
            streams=streams,
            progress=context.progress,
        )
