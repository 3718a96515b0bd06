"""What a user says of a file to import: which column is what, and the spaces."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import PositiveInt, StrictModel, read_yaml, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.tabular import column_names
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION


class BoxSchema(StrictModel):
    """Numbers, one a column."""

    type: Literal["box"]
    low: float | list[float] = Field(default=-np.inf, description="one for all, or one a column")
    high: float | list[float] = Field(default=np.inf, description="one for all, or one a column")


class DiscreteSchema(StrictModel):
    """One column of integers ``start .. start + n - 1``."""

    type: Literal["discrete"]
    n: PositiveInt
    start: int = 0


class MultiDiscreteSchema(StrictModel):
    """Columns of integers, each ``start .. start + n - 1`` with its own ``n``."""

    type: Literal["multi_discrete"]
    n: list[PositiveInt]
    start: int | list[int] = Field(default=0, description="one for all, or one a column")


AnySpaceSchema = BoxSchema | DiscreteSchema | MultiDiscreteSchema
SpaceSchema = Annotated[AnySpaceSchema, Field(discriminator="type")]


class SpacesSchema(StrictModel):
    """The spaces of the rows."""

    observation: SpaceSchema
    action: SpaceSchema


Columns = tuple[str, ...]
Number = TypeVar("Number", np.int64, np.float32)


class ColumnsSchema(StrictModel):
    """Which column of a table, or which array of a file of arrays, holds what."""

    observation: str | Columns
    action: str | Columns
    next_observation: str | Columns | None = None
    reward: str
    terminated: str
    truncated: str | None = None
    order: str | None = Field(default=None, description="time within a trajectory; default: file")
    trajectory: str | None = Field(default=None, description="trajectory id")
    unit: str | None = Field(default=None, description="what one person contributes")

    @field_validator("unit")
    @classmethod
    def _unit_name(cls, unit: str | None) -> str | None:
        if unit in (TRANSITION, TRAJECTORY):
            raise ValueError(f"a unit column cannot be called {unit}: rename it")
        return unit


class ImportSchema(StrictModel):
    """What a file holds; rows stand alone unless something tells the trajectories."""

    columns: ColumnsSchema
    spaces: SpacesSchema
    environment: str | None = None
    split_at_flags: bool = Field(
        default=False,
        validate_default=True,
        description="a trajectory ends where terminated or truncated, as in D4RL",
    )
    layout: Literal["episodes", "packed"] = Field(
        default="episodes", description="of trajectories; packed for very many short ones"
    )
    public: bool = Field(
        default=False, description="declare that the rows are nobody's secret and may go anywhere"
    )

    @property
    def has_trajectories(self) -> bool:
        """Whether rows belong to trajectories."""
        return self.split_at_flags or self.columns.trajectory is not None

    @property
    def may_drop_last_rows(self) -> bool:
        """Whether a trajectory's last row may have a successor that nobody names."""
        return self.has_trajectories and self.columns.next_observation is None

    @field_validator("split_at_flags")
    @classmethod
    def _complete(cls, split_at_flags: bool, info: ValidationInfo) -> bool:
        columns: ColumnsSchema | None = info.data.get("columns")
        if columns is None:
            return split_at_flags  # what is wrong with them is said already
        if split_at_flags and columns.trajectory is not None:
            raise ValueError("split_at_flags and a trajectory column exclude each other")
        if not split_at_flags and columns.trajectory is None and columns.next_observation is None:
            raise ValueError(
                "without a trajectory column or split_at_flags, columns.next_observation must be"
                " named"
            )
        if columns.trajectory is None and columns.order is not None:
            raise ValueError("columns.order needs a trajectory column")
        return split_at_flags

    @field_validator("layout")
    @classmethod
    def _layout(cls, layout: str, info: ValidationInfo) -> str:
        columns: ColumnsSchema | None = info.data.get("columns")
        alone = columns is not None and columns.trajectory is None
        if layout == "packed" and alone and not info.data.get("split_at_flags"):
            raise ValueError("needs a trajectory column or split_at_flags")
        return layout


def load_schema(path: Path) -> ImportSchema:
    """Return the schema in a YAML file.

    Raises:
        ConfigError: one line that lists each wrong or unknown key.
    """
    return validate(ImportSchema, read_yaml(path), source=str(path))


def declared_space(name: str, schema: AnySpaceSchema, columns: str | Columns) -> Space:
    """Return the space that a schema declares.

    Args:
        name: ``"observation"`` or ``"action"``.
        schema: what the schema says of it.
        columns: the columns that hold it.

    Raises:
        ConfigError: it has another number of columns, or low above high.
    """
    width = len(column_names(columns))
    if isinstance(schema, DiscreteSchema):
        if width != 1:
            raise ConfigError(f"spaces.{name} is discrete: columns.{name} must name one column")
        return Discrete(schema.n, start=schema.start)
    if isinstance(schema, MultiDiscreteSchema):
        sizes, starts = (
            _per_column(f"spaces.{name}.{side}", value, width, np.int64)
            for side, value in (("n", schema.n), ("start", schema.start))
        )
        return MultiDiscrete(sizes, start=starts)
    low, high = (
        _per_column(f"spaces.{name}.{side}", value, width, np.float32)
        for side, value in (("low", schema.low), ("high", schema.high))
    )
    if not (low <= high).all():
        raise ConfigError(
            f"spaces.{name}: low must not be above high, got {schema.low}, {schema.high}"
        )
    return Box(low, high, dtype=np.float32)


def _per_column(
    name: str, value: float | list[float] | list[int], width: int, dtype: type[Number]
) -> NDArray[Number]:
    if isinstance(value, list) and len(value) != width:
        raise ConfigError(f"{name} has {len(value)} values, its part has {width} columns")
    return np.broadcast_to(np.asarray(value, dtype=dtype), (width,)).copy()
