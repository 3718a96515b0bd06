"""Configuration of `marginals`: of rows, then of whole trajectories."""

from typing import ClassVar, Literal

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


class MarginalsTraining(SelectionConfig):
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


class MarginalsJTraining(SelectionConfig):
    """How the budget is spent, and how trajectories are drawn."""

    TABLES_KEY: ClassVar[str] = "training.tables"

    sampling: TrajectoryDrawConfig = TrajectoryDrawConfig()


class MarginalsJConfig(RunConfig):
    """Private synthetic trajectories from noisy marginals of their steps."""

    method: Literal["marginals_j"] = "marginals_j"
    model: TrajectoryTableConfig = TrajectoryTableConfig()
    training: MarginalsJTraining = MarginalsJTraining()
    output: TrajectoryOutputConfig
