"""Configuration of a table and its joint counts; of its budget: `plan.SelectionConfig`."""

from typing import Annotated, Literal

from pydantic import Field

from distributed_privrl.core.config import DataConfig, PositiveInt, StrictModel
from distributed_privrl.marginals.column import NextObservation
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import TRAJECTORY, TRANSITION

PER_UNIT = 10
"""Rows, and trajectories, of a unit that weigh alike where nothing is said and it may have many."""


class DrawConfig(StrictModel):
    """Drawing the release."""

    chunk_rows: PositiveInt = Field(default=65_536, description="rows drawn at once")


class CountedConfig(StrictModel):
    """Cells, joint counts, and weights of rows."""

    next_observation: Literal["auto", "absolute", "difference"] = Field(
        default="auto",
        description="numbers after a step as they are, or as changes (auto: changes where"
        " data.environment names a simulator; else both are counted, and changes are taken where"
        " the counts say that a number hardly moves)",
    )
    rows_per_unit: Annotated[int, Field(ge=1, le=UNIT_WEIGHT)] | None = Field(
        default=None,
        description="public number c: each of a unit's n rows weighs 1 / max(n, c). The smaller,"
        " the less noise; what units of more rows do differently is then told by classes of their"
        " size (default: 1 where a transition is the unit, else 10)",
    )
    bins: Annotated[int, Field(ge=2, le=256)] = Field(
        default=48, description="bins of a number in joint counts at most; noise decides below that"
    )
    cells: PositiveInt = Field(default=20_000, description="cells of a joint count at most")

    def coding(self, data: DataConfig) -> NextObservation:
        """Return how numbers after a step are counted."""
        if self.next_observation == "auto":
            return "counted" if data.environment is None else "difference"
        return self.next_observation

    def row_cap(self, data: DataConfig) -> int:
        """Return the number c of ``rows_per_unit``, at most the rows of a unit that count.

        With more than these no unit could weigh one.
        """
        asked = self.rows_per_unit or (1 if data.unit == TRANSITION else PER_UNIT)
        return asked if data.max_length is None else min(asked, data.max_length)

    def unit_sizes(self, data: DataConfig) -> UnitSizes:
        """Return the classes of units by their rows."""
        return UnitSizes(self.row_cap(data), 1 if data.unit == TRANSITION else data.max_length)


class TableConfig(CountedConfig):
    """The same, weights of trajectories, and the model that follows from the counts."""

    trajectories_per_unit: Annotated[int, Field(ge=1, le=UNIT_WEIGHT)] | None = Field(
        default=None,
        description="the same for trajectories, whose lengths are counted: each of a unit's m"
        " trajectories weighs 1 / max(m, c) (default: 1 where a trajectory is the unit, else 10)",
    )
    model_cells: PositiveInt = Field(
        default=300_000, description="cells of the model's tables together at most (8 bytes each)"
    )
    draws: PositiveInt = Field(
        default=200_000, description="rows that stand for the model while counts are chosen"
    )

    public_prior: bool = Field(
        default=True,
        description="take relations from rows of data.public, until sensitive rows differ; false:"
        " take bounds alone from them",
    )

    def trajectory_cap(self, data: DataConfig) -> int:
        """Return the number c of ``trajectories_per_unit``."""
        if self.trajectories_per_unit is not None:
            return self.trajectories_per_unit
        return 1 if data.unit in (TRANSITION, TRAJECTORY) else PER_UNIT


class TrajectoryTableConfig(TableConfig):
    """The same for the steps of trajectories."""

    stationary: bool = Field(
        default=False, description="tell the first step from all later ones, and no more"
    )
    memory: tuple[str, ...] = Field(
        default=(),
        description="columns of the observation, by their names in the table, whose level so far a"
        " step knows: of a number a mean in which the last values weigh most, of a flag or category"
        " the usual one. Name what people keep a level of"
        " their own in, such as a blood pressure, an income or what they spend; of a number that"
        " never falls it is the level of its changes: how long somebody stays away. Each is one"
        " more column, and one joint count",
    )
    previous_action: bool = Field(
        default=True, description="an action may depend on the one before it"
    )
