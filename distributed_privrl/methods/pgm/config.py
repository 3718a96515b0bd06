"""Configuration of `pgm`."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveInt,
    Probability,
    RunConfig,
    StrictModel,
)
from distributed_privrl.marginals.config import DrawConfig, TableConfig


class PgmTable(TableConfig):
    """The table of `marginals`, with the paper's bins, and a larger model for its pairs."""

    bins: Annotated[int, Field(ge=2, le=256)] = Field(
        default=10, description="bins of a number in joint counts at most; noise decides below that"
    )
    model_cells: PositiveInt = Field(
        default=1_000_000,
        description="cells of the model's tables together at most (8 bytes each); a joint count"
        " with which they would be more is left out",
    )
    draws: PositiveInt = Field(
        default=100_000, description="rows that stand for the model while counts are cleaned"
    )


class PgmTraining(StrictModel):
    """Which joint counts are measured, how the budget is spent, and how rows are drawn."""

    pairs: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=50, description="joint counts of two columns at most"
    )
    triples: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=10, description="joint counts of three columns at most"
    )
    order: Literal["workload", "random"] = Field(
        default="workload",
        description="which joint counts come first, until the model is full: those that an agent"
        " learns from, or any; equal ones by seed",
    )
    columns_share: Probability = Field(
        default=0.35, description="part of the budget that counts single columns"
    )
    sampling: DrawConfig = DrawConfig()


class PgmConfig(RunConfig):
    """Private synthetic transitions by private-PGM from a fixed set of marginals."""

    method: Literal["pgm"] = "pgm"
    model: PgmTable = PgmTable()
    training: PgmTraining = PgmTraining()
    output: OutputConfig
