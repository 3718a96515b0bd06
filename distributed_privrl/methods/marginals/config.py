"""Configuration of `marginals`: of rows, then of whole trajectories."""

from typing import Literal

from pydantic import Field

from distributed_privrl.core.config import OutputConfig, PositiveInt, RunConfig, StrictModel
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
