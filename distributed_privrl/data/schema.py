"""What a user says of a file to import: which column is what, and the spaces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import PositiveInt, StrictModel, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.csv_files import Separator
from distributed_privrl.data.declared import (
    LAST,
    AnyKind,
    ColumnsSchema,
    DeclaredTable,
    LabelledKind,
    groups,
    width,
)
from distributed_privrl.data.spaces import Space, TableBox


class BoxSchema(StrictModel):
    """Numbers, one a column; categories and flags among them have no bounds."""

    type: Literal["box"]
    low: float | list[float] = Field(default=-np.inf, description="one for all, or one a number")
    high: float | list[float] = Field(default=np.inf, description="one for all, or one a number")


class DiscreteSchema(StrictModel):
    """One column of integers ``start .. start + n - 1``."""

    type: Literal["discrete"]
    n: PositiveInt | None = Field(default=None, description="default: the column's declared values")
    start: int = 0


class MultiDiscreteSchema(StrictModel):
    """Columns of integers, each ``start .. start + n - 1`` with its own ``n``."""

    type: Literal["multi_discrete"]
    n: list[PositiveInt] | None = Field(
        default=None, description="default: the columns' declared values"
    )
    start: int | list[int] = Field(default=0, description="one for all, or one a column")


AnySpaceSchema = BoxSchema | DiscreteSchema | MultiDiscreteSchema
SpaceSchema = Annotated[AnySpaceSchema, Field(discriminator="type")]


class SpacesSchema(StrictModel):
    """The spaces of the rows."""

    observation: SpaceSchema | None = Field(
        default=None, description="default: what the declared kinds are, numbers without bounds"
    )
    action: SpaceSchema | None = Field(default=None, description="as for observation")


Number = TypeVar("Number", np.int64, np.float32)


class ImportSchema(DeclaredTable):
    """What a table holds; rows stand alone unless something tells the trajectories."""

    spaces: SpacesSchema = Field(default=SpacesSchema(), validate_default=True)
    separator: Separator = Field(
        default="comma", description="of the fields of a CSV file; other tables have none"
    )
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
    def declared(self) -> DeclaredTable:
        """Roles and kinds of the columns alone: what a dataset and its releases keep."""
        return DeclaredTable(columns=self.columns, kinds=self.kinds)

    @field_validator("spaces")
    @classmethod
    def _known(cls, spaces: SpacesSchema, info: ValidationInfo) -> SpacesSchema:
        columns: ColumnsSchema | None = info.data.get("columns")
        kinds: dict[str, AnyKind] | None = info.data.get("kinds")
        if columns is None or kinds is None:
            return spaces
        table = DeclaredTable(columns=columns, kinds=kinds)
        if spaces.action is not None and not columns.has_action:
            raise ValueError("action: columns.action is none: leave its space out")
        for name in ("observation", "action"):
            declared = any(column in kinds for column, _ in table.part(name))
            if getattr(spaces, name) is None and table.part(name) and not declared:
                raise ValueError(
                    f"{name} must be given: {{type: box}}, or {{type: discrete, n: ..}}; without"
                    " it, declare under kinds what its columns hold"
                )
        return spaces

    @field_validator("split_at_flags")
    @classmethod
    def _complete(cls, split_at_flags: bool, info: ValidationInfo) -> bool:
        columns: ColumnsSchema | None = info.data.get("columns")
        if columns is None:
            return split_at_flags  # what is wrong with them is said already
        if split_at_flags and columns.trajectory is not None:
            raise ValueError("split_at_flags and a trajectory column exclude each other")
        if not columns.has_successors:
            ends = (columns.trajectory, columns.order, columns.terminated, columns.truncated)
            if split_at_flags or any(ends):
                raise ValueError(
                    "next_observation: none says that nothing follows a row: leave out trajectory,"
                    " order, terminated, truncated and split_at_flags"
                )
            return split_at_flags
        if columns.terminated == LAST and columns.trajectory is None:
            raise ValueError("terminated: last needs a trajectory column")
        if split_at_flags and columns.termination is None and columns.truncated is None:
            raise ValueError("split_at_flags needs a column terminated or truncated")
        if not split_at_flags and columns.trajectory is None and columns.next_observation is None:
            raise ValueError(
                "without a trajectory column or split_at_flags, columns.next_observation must be"
                " named, or none where nothing follows a row"
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


def declared_space(name: str, schema: AnySpaceSchema | None, kinds: Sequence[AnyKind]) -> Space:
    """Return the space that a schema declares.

    Args:
        name: ``"observation"`` or ``"action"``.
        schema: what the schema says of it; None: what its kinds are.
        kinds: what each of its columns holds; of none, the space is one category, which tells
            nothing.

    Raises:
        ConfigError: it has another number of columns or categories, or low above high.
    """
    if not kinds:
        return Discrete(1)
    if schema is None and all(isinstance(kind, LabelledKind) for kind in kinds):
        several = len(kinds) > 1
        schema = (
            MultiDiscreteSchema(type="multi_discrete")
            if several
            else DiscreteSchema(type="discrete")
        )
    if isinstance(schema, DiscreteSchema):
        if len(kinds) != 1:
            raise ConfigError(f"spaces.{name} is discrete: columns.{name} must name one column")
        return Discrete(_size(name, schema.n, kinds[0]), start=schema.start)
    if isinstance(schema, MultiDiscreteSchema):
        asked: Sequence[int | None] = [None] * len(kinds) if schema.n is None else schema.n
        if len(asked) != len(kinds):
            raise ConfigError(
                f"spaces.{name}.n has {len(asked)} values, its part has {len(kinds)} columns"
            )
        sizes = [_size(name, n, kind) for n, kind in zip(asked, kinds, strict=True)]
        starts = _per_column(f"spaces.{name}.start", schema.start, len(kinds), np.int64)
        return MultiDiscrete(np.array(sizes, np.int64), start=starts)
    return _box(name, BoxSchema(type="box") if schema is None else schema, kinds)


def _size(name: str, n: int | None, kind: AnyKind) -> int:
    """Return how many categories a column has, as the space and its kind say it."""
    declared = len(kind.labels) if isinstance(kind, LabelledKind) else None
    if kind.missing == "indicator":
        raise ConfigError(
            f"spaces.{name} has categories: an indicator stands beside numbers; declare"
            " {type: category, missing: own}"
        )
    if n is None and declared is None:
        raise ConfigError(
            f"spaces.{name}: n must be given, or the values of its column under kinds"
        )
    if n is not None and declared is not None and n != declared:
        raise ConfigError(f"spaces.{name}: n is {n}, and kinds declare {declared} values")
    return int(n if declared is None else declared)  # type: ignore[arg-type]


def _box(name: str, schema: BoxSchema, kinds: Sequence[AnyKind]) -> Space:
    of = groups(kinds)
    numbers = np.ones(sum(map(width, kinds)), dtype=bool)
    for start, stop in of:
        numbers[start:stop] = False
    low, high = np.zeros(len(numbers), np.float32), np.ones(len(numbers), np.float32)
    for side, value, sides in (("low", schema.low, low), ("high", schema.high, high)):
        sides[numbers] = _per_column(f"spaces.{name}.{side}", value, int(numbers.sum()), np.float32)
    if not (low <= high).all():
        raise ConfigError(
            f"spaces.{name}: low must not be above high, got {schema.low}, {schema.high}"
        )
    return TableBox(low, high, of) if of else Box(low, high, dtype=np.float32)


def _per_column(
    name: str, value: float | list[float] | list[int], width: int, dtype: type[Number]
) -> NDArray[Number]:
    if isinstance(value, list) and len(value) != width:
        raise ConfigError(f"{name} has {len(value)} values, its part has {width} columns")
    return np.broadcast_to(np.asarray(value, dtype=dtype), (width,)).copy()
