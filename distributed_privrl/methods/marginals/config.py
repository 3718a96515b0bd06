"""Configuration of `marginals`: of rows, then of whole trajectories."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveInt,
    RunConfig,
    TrajectoryOutputConfig,
)
from distributed_privrl.marginals.config import (
    DrawConfig,
    TableConfig,
    TrajectoryTableConfig,
)
from distributed_privrl.marginals.plan import SelectionConfig
from distributed_privrl.stages.rollouts import RolloutConfig

Names = Annotated[tuple[str, ...], Field(min_length=2, max_length=3)]
"""Of two or three columns."""


class AskingConfig(SelectionConfig):
    """The same, and what is counted in any case."""

    together: tuple[Names, ...] = Field(
        default=(),
        description="columns of a row that are counted together in any case, two or three each, by"
        " their names in the table, next and such a name for what it becomes in a step, and end:"
        " each takes the place of one that would be chosen. Name what the release is for",
    )

    def ways(self) -> tuple[str, ...]:
        """Return how more relations are kept, as a plan says it."""
        if self.together:
            return super().ways()
        return ("name what the release is for (training.together)", *super().ways())


class MarginalsTraining(AskingConfig):
    """How the budget is spent, and how rows are drawn."""

    TABLES_KEY: ClassVar[str] = "training.tables"

    sampling: DrawConfig = DrawConfig()


class MarginalsConfig(RunConfig):
    """Private synthetic transitions from noisy marginals."""

    method: Literal["marginals"] = "marginals"
    model: TableConfig = TableConfig()
    training: MarginalsTraining = MarginalsTraining()
    output: OutputConfig


class TrajectoryDrawConfig(RolloutConfig):
    """The same with more trajectories at once, which cost little."""

    chunk_trajectories: PositiveInt = Field(default=8192, description="trajectories drawn at once")


class MarginalsJTraining(AskingConfig):
    """How the budget is spent, and how trajectories are drawn."""

    TABLES_KEY: ClassVar[str] = "training.tables"

    sampling: TrajectoryDrawConfig = TrajectoryDrawConfig()


class MarginalsJConfig(RunConfig):
    """Private synthetic trajectories from noisy marginals of their steps."""

    method: Literal["marginals_j"] = "marginals_j"
    model: TrajectoryTableConfig = TrajectoryTableConfig()
    training: MarginalsJTraining = MarginalsJTraining()
    output: TrajectoryOutputConfig
