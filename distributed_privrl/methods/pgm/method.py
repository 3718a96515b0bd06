"""`pgm` as a declared run: columns, a fixed set of marginals, private-PGM, rows.

Reference: McKenna, Sheldon and Miklau 2019 (private-PGM); PrivORL, appendix F (which marginals).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_privrl.marginals.counting import StoredTransitions
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.run import TableRun, World
from distributed_privrl.marginals.stage import ForeseenTable, MarginalsStage
from distributed_privrl.methods.pgm.config import PgmConfig
from distributed_privrl.methods.pgm.plan import pgm_plan
from distributed_privrl.privacy.units import UnitCount

if TYPE_CHECKING:
    from distributed_privrl.marginals.table_program import ProgramSpec, TableProgram


def pgm_program(spec: "ProgramSpec[TableModel]") -> "TableProgram[TableModel]":
    """Return the program that measures what the plan names."""
    from distributed_privrl.methods.pgm.program import PgmProgram

    return PgmProgram(spec)


@dataclass(frozen=True)
class PgmMethod(TableRun[TableModel]):
    """Independent transitions by private-PGM from marginals that the rows do not choose.

    Args:
        config: of the run.

    Privacy: as `TableRun`; events: ``discrete_gaussian`` for all columns, and for all joint counts
    together.
    """

    config: PgmConfig

    def plan(
        self, table: ForeseenTable, units: UnitCount, *, epsilon: float | None
    ) -> MarginalsPlan:
        """Return the plan: columns, then joint counts."""
        return pgm_plan(self.config, table=table, units=units, epsilon=epsilon, spent=self.spent)

    def stage(self, world: World) -> MarginalsStage[TableModel]:
        """Return what the run counts."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            program=pgm_program,
            source=lambda ref: StoredTransitions(ref=ref),
        )
