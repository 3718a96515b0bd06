"""Configuration of `marginals`: of rows, then of whole trajectories."""

from typing import Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveInt,
    RunConfig,
    StrictModel,
    TrajectoryOutputConfig,
)
from distributed_privrl.data.trajectories import TRAJECTORY
from distributed_privrl.marginals.config import TableConfig
from distributed_privrl.marginals.plan import SelectionConfig


class DrawConfig(StrictModel):
    """Drawing the release."""

    chunk_rows: PositiveInt = Field(default=65_536, description="rows drawn at once")


class MarginalsTraining(SelectionConfig):
    """How the budget is spent, and how rows are drawn."""

    sampling: DrawConfig = DrawConfig()


class MarginalsConfig(RunConfig):
    """Private synthetic transitions from noisy marginals."""

    method: Literal["marginals"] = "marginals"
    model: TableConfig = TableConfig()
    training: MarginalsTraining = MarginalsTraining()
    output: OutputConfig


class TrajectoryTableConfig(TableConfig):
    """The same for the steps of trajectories."""

    stationary: bool = Field(
        default=False, description="tell the first step from all later ones, and no more"
    )
    previous_action: bool = Field(
        default=True, description="an action may depend on the one before it"
    )


class TrajectoryDrawConfig(StrictModel):
    """Drawing whole trajectories, step after step."""

    max_length: PositiveInt | None = Field(
        default=None,
        description="steps of a synthetic trajectory at most (default: data.max_length, if a"
        " trajectory is the unit)",
    )
    chunk_trajectories: PositiveInt = Field(default=8192, description="trajectories drawn at once")


class MarginalsJTraining(SelectionConfig):
    """How the budget is spent, and how trajectories are drawn."""

    sampling: TrajectoryDrawConfig = TrajectoryDrawConfig()


class MarginalsJConfig(RunConfig):
    """Private synthetic trajectories from noisy marginals of their steps."""

    method: Literal["marginals_j"] = "marginals_j"
    model: TrajectoryTableConfig = TrajectoryTableConfig()
    training: MarginalsJTraining = MarginalsJTraining()
    output: TrajectoryOutputConfig

    @property
    def longest(self) -> int | None:
        """Steps of a synthetic trajectory at most; None: not said."""
        of_one = self.data.max_length if self.data.unit == TRAJECTORY else None
        return self.training.sampling.max_length or of_one
