"""`marginals` as a declared run: columns, joint counts, a model, rows.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM); McKenna, Sheldon and Miklau 2019
(private-PGM).
"""

from dataclasses import dataclass

from distributed_privrl.marginals.counting import StoredTransitions
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.run import TableRun, World
from distributed_privrl.marginals.stage import (
    ForeseenTable,
    MarginalsStage,
    adaptive_program,
    stage_plan,
)
from distributed_privrl.methods.marginals.config import MarginalsConfig, MarginalsJConfig
from distributed_privrl.privacy.units import UnitCount


@dataclass(frozen=True)
class MarginalsMethod(TableRun[TableModel]):
    """Independent transitions from noisy marginals.

    Args:
        config: of the run.

    Privacy: as `TableRun`; events: ``discrete_gaussian`` for all columns, then ``bounded_range``
    and ``discrete_gaussian`` for each joint count.
    """

    config: MarginalsConfig | MarginalsJConfig

    def plan(
        self, table: ForeseenTable, units: UnitCount, *, epsilon: float | None
    ) -> MarginalsPlan:
        """Return the plan: columns, then choices of joint counts."""
        return stage_plan(
            self.config,
            self.config.training,
            table=table,
            rows_per_unit=self.config.model.row_cap(self.config.data),
            units=units,
            epsilon=epsilon,
            delta=self.config.privacy.delta,
            spent=self.spent,
        )

    def stage(self, world: World) -> MarginalsStage[TableModel]:
        """Return what the run counts."""
        return MarginalsStage(
            columns=world.columns,
            table=self.config.model,
            program=adaptive_program,
            source=lambda ref: StoredTransitions(ref=ref),
        )
