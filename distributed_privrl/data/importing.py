"""A CSV or Parquet table as a stored dataset, by a schema that names its columns."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from pydantic import Field, model_validator

from distributed_privrl.core.config import PositiveInt, StrictModel, read_yaml, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.tabular import Table, assemble_trajectories, column_names
from distributed_privrl.data.trajectories import (
    TRAJECTORY,
    TRANSITION,
    Trajectories,
    Transitions,
    as_part,
)

if TYPE_CHECKING:
    import pandas as pd


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


SpaceSchema = Annotated[BoxSchema | DiscreteSchema, Field(discriminator="type")]


class SpacesSchema(StrictModel):
    """The spaces of the rows."""

    observation: SpaceSchema
    action: SpaceSchema


Columns = tuple[str, ...]


class ColumnsSchema(StrictModel):
    """Which column of the table holds what."""

    observation: str | Columns
    action: str | Columns
    next_observation: str | Columns | None = None
    reward: str
    terminated: str
    truncated: str | None = None
    order: str | None = Field(default=None, description="time within a trajectory; default: file")
    trajectory: str | None = Field(
        default=None, description="trajectory id; none: rows stand alone"
    )
    unit: str | None = Field(default=None, description="what one person contributes")

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.trajectory is None and self.next_observation is None:
            raise ValueError("without a trajectory column, next_observation must be named")
        if self.trajectory is None and self.order is not None:
            raise ValueError("order needs a trajectory column")
        if self.unit in (TRANSITION, TRAJECTORY):
            raise ValueError(f"a unit column cannot be called {self.unit}: rename it")
        return self


class ImportSchema(StrictModel):
    """What the columns of a table mean."""

    columns: ColumnsSchema
    spaces: SpacesSchema
    environment: str | None = None


def load_schema(path: Path) -> ImportSchema:
    """Return the schema in a YAML file.

    Raises:
        ConfigError: one line that lists each wrong or unknown key.
    """
    return validate(ImportSchema, read_yaml(path), source=str(path))


def import_file(path: Path, schema: ImportSchema, store: DatasetStore, dataset: str) -> None:
    """Write the rows of a table as a new dataset.

    With a trajectory column, rows are sorted by ``order`` within it. A trajectory's last row ends
    it: its successor is ``next_observation`` if that is named, anything if it terminates, and
    otherwise unknown: then its observation is the final one, and its step is dropped. Without a
    trajectory column, rows are independent transitions. Values that are not finite, and categories
    outside their space, are kept as they are; the encoder makes null rows of them.

    Args:
        path: a ``.csv`` or ``.parquet`` file.
        schema: what its columns mean.
        store: where the dataset goes.
        dataset: its id.

    Raises:
        ConfigError: the file, a column, a type or the id is wrong; nothing is written.
        StorageError: the file cannot be read, or the dataset not written.
    """
    observation_space = _space("observation", schema.spaces.observation, schema.columns.observation)
    action_space = _space("action", schema.spaces.action, schema.columns.action)
    frame = _read(path, schema.columns)
    spaces: dict[str, Any] = {
        "observation_space": observation_space,
        "action_space": action_space,
        "environment": schema.environment,
        "unit_column": schema.columns.unit,
    }
    columns = schema.columns
    table = Table(path=path, frame=frame, observation=observation_space, action=action_space)
    if columns.trajectory is None:
        rows = _transitions(table, columns, table.units(columns.unit))
        store.write_transitions(dataset, rows, layout="transitions", **spaces)
    else:
        store.write_trajectories(dataset, _trajectories(table, columns), **spaces)


def _space(name: str, schema: BoxSchema | DiscreteSchema, columns: str | Columns) -> Space:
    width = len(column_names(columns))
    if isinstance(schema, DiscreteSchema):
        if width != 1:
            raise ConfigError(f"spaces.{name} is discrete: columns.{name} must name one column")
        return Discrete(schema.n, start=schema.start)
    sides = []
    for side, value in (("low", schema.low), ("high", schema.high)):
        if isinstance(value, list) and len(value) != width:
            raise ConfigError(
                f"spaces.{name}.{side} has {len(value)} values, columns.{name} names {width}"
            )
        sides.append(np.broadcast_to(np.asarray(value, dtype=np.float32), (width,)))
    if not (sides[0] <= sides[1]).all():
        raise ConfigError(
            f"spaces.{name}: low must not be above high, got {schema.low}, {schema.high}"
        )
    return Box(sides[0].copy(), sides[1].copy(), dtype=np.float32)


def _read(path: Path, columns: ColumnsSchema) -> "pd.DataFrame":
    """Read the named columns; ids stay text, so that 7 and 007 differ."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.parquet as pq

    wanted = [name for _, value in columns for name in column_names(value)]
    wanted = list(dict.fromkeys(wanted))
    if path.suffix not in (".csv", ".parquet"):
        raise ConfigError(f"{path} must end in .csv or .parquet")
    if not path.is_file():
        raise ConfigError(f"no file at {path}")
    ids = dict.fromkeys((n for n in (columns.trajectory, columns.unit) if n is not None), str)
    try:
        with storage_errors(f"read {path}"):
            if path.suffix == ".csv":
                present = list(pd.read_csv(path, nrows=0).columns)
                _check_columns(path, wanted, present)
                frame = pd.read_csv(path, usecols=wanted, dtype=ids)
            else:
                _check_columns(path, wanted, pq.read_schema(path).names)
                frame = pd.read_parquet(path, columns=wanted)
    except (ValueError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is no proper {path.suffix[1:]} file: {reason}") from error
    if len(frame) == 0:
        raise ConfigError(f"{path} has no rows")
    return frame


def _check_columns(path: Path, wanted: list[str], present: list[str]) -> None:
    absent = [name for name in wanted if name not in present]
    if absent:
        raise ConfigError(
            f"{path} has no column {', '.join(absent)}; it has {', '.join(map(str, present))}"
        )


def _transitions(table: Table, columns: ColumnsSchema, units: NDArray[np.uint64]) -> Transitions:
    """Return the rows as they stand; without a successor column, s' is s for the time being."""
    observations = table.part("observation", columns.observation)
    return Transitions(
        observations=observations,
        actions=table.part("action", columns.action),
        rewards=as_part("reward", table.numbers(columns.reward)[:, None])[:, 0],
        next_observations=(
            observations
            if columns.next_observation is None
            else table.part("observation", columns.next_observation)
        ),
        terminated=table.flags(columns.terminated),
        truncated=table.flags(columns.truncated),
        unit_ids=units,
    )


def _trajectories(table: Table, columns: ColumnsSchema) -> Trajectories:
    """Return the rows as trajectories, in the order of their first rows."""
    assert columns.trajectory is not None
    table, lengths = table.sorted_by(columns.trajectory, columns.order)
    if columns.unit is None:
        units = np.repeat(np.arange(len(lengths)), lengths).astype(np.uint64)
    else:
        units = table.units(columns.unit)
    rows = _transitions(table, columns, units)
    return assemble_trajectories(
        rows, lengths, successors_known=columns.next_observation is not None, source=str(table.path)
    )
