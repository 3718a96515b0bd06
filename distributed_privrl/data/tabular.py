"""The columns of a flat table as typed arrays, and its rows as trajectories."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.packing import join_rows
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import (
    Trajectories,
    Transitions,
    as_part,
    hash_unit,
    offsets_of,
)

if TYPE_CHECKING:
    import pandas as pd

_NO_CATEGORY = np.iinfo(np.int64).min


def column_names(columns: str | Sequence[str] | None) -> list[str]:
    """Return one name, several or none as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else list(columns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A data frame whose columns are read as the parts of a row.

    Args:
        path: where it came from, for messages.
        frame: N rows.
        observation: space of the observations.
        action: space of the actions.
    """

    path: Path
    frame: "pd.DataFrame"
    observation: Space
    action: Space

    def part(self, name: str, columns: str | Sequence[str]) -> NDArray[Any]:
        """Return observations or actions: float32 (N, W), or int64 (N,) or (N, W) of categories.

        What is no category becomes a number far outside every space.

        Args:
            name: ``"observation"`` or ``"action"``.
            columns: the columns that hold them.

        Raises:
            ConfigError: a column does not hold numbers.
        """
        values = [self.numbers(column) for column in column_names(columns)]
        space: Space = getattr(self, name)
        if isinstance(space, Box):
            return as_part(name, np.stack(values, axis=1))
        if isinstance(space, Discrete):
            return _categories(values[0])
        return np.stack([_categories(column) for column in values], axis=1)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """Return a column of numbers; a missing one is NaN.

        Raises:
            ConfigError: the column does not hold numbers.
        """
        from pandas.api.types import is_numeric_dtype

        series = self.frame[column]
        if not is_numeric_dtype(series.dtype):
            raise ConfigError(
                f"{self.path}: column {column!r} must hold numbers, it has type {series.dtype}:"
                " give categories as whole numbers (a discrete space), or, among numbers, as a"
                " column of 0 and 1 each"
            )
        return series.to_numpy(dtype=np.float64, na_value=np.nan)

    def flags(self, column: str | None) -> NDArray[np.bool_]:
        """Return a column of true and false, or all false if it is not named.

        Raises:
            ConfigError: the column holds something else, or nothing, in some row.
        """
        if column is None:
            return np.zeros(len(self.frame), dtype=bool)
        values = self.numbers(column)
        if not ((values == 0) | (values == 1)).all():
            raise ConfigError(
                f"{self.path}: column {column!r} must be true or false (1 or 0) in every row"
            )
        return np.asarray(values == 1)

    def units(self, column: str | None) -> NDArray[np.uint64]:
        """Return the hashes of a column's values, (N,), or positions if it is not named.

        Raises:
            ConfigError: a value is missing: every row needs its unit.
        """
        if column is None:
            return np.arange(len(self.frame), dtype=np.uint64)
        codes, values = self._codes(column)
        return np.array([hash_unit(_text(value)) for value in values], dtype=np.uint64)[codes]

    def sorted_by(self, trajectory: str, order: str | None) -> tuple["Table", NDArray[np.int64]]:
        """Return the rows trajectory by trajectory, and the number of rows of each.

        Args:
            trajectory: column of trajectory ids; they keep the order of their first rows.
            order: column to sort by within a trajectory; None: as they stand.

        Raises:
            ConfigError: an id is missing, or ``order`` holds neither numbers nor ISO 8601 times.
        """
        codes, _ = self._codes(trajectory)
        keys = (codes,) if order is None else (self._times(order), codes)
        frame = self.frame.iloc[np.lexsort(keys)]
        return replace(self, frame=frame), np.bincount(codes).astype(np.int64)

    def _times(self, column: str) -> NDArray[Any]:
        import pandas as pd

        if pd.api.types.is_numeric_dtype(self.frame[column].dtype):
            return self.numbers(column)
        try:
            return np.asarray(pd.to_datetime(self.frame[column], format="ISO8601").astype("int64"))
        except (ValueError, TypeError):
            raise ConfigError(
                f"{self.path}: column {column!r} must hold numbers or ISO 8601 times to sort by"
            ) from None

    def _codes(self, column: str) -> tuple[NDArray[np.int64], Sequence[Any]]:
        """Return which distinct value each row has, numbered by first appearance, and the values.

        Raises:
            ConfigError: a value is missing.
        """
        import pandas as pd

        codes, values = pd.factorize(self.frame[column])
        if (codes < 0).any():
            raise ConfigError(f"{self.path}: column {column!r} has rows without a value")
        return codes.astype(np.int64), list(values)


def _categories(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers, and `_NO_CATEGORY` for the others."""
    whole = np.isfinite(values) & (np.abs(values) < 2**53)
    whole &= np.floor(values, where=whole, out=np.zeros(len(whole))) == values
    return np.where(whole, np.where(whole, values, 0).astype(np.int64), _NO_CATEGORY)


def _text(value: Any) -> str:
    """Return a unit's value as text, the same whether a number was read as 7 or 7.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def assemble_trajectories(
    rows: Transitions, lengths: NDArray[np.int64], *, successors_known: bool, source: str
) -> Trajectories:
    """Return rows as trajectories, the final observation of each after its steps.

    Where successors are not known, the last row of a trajectory that does not terminate is its
    final observation alone, and the step before it is truncated; a terminating last row repeats its
    observation, which no method looks at.

    Args:
        rows: N transitions, trajectory after trajectory.
        lengths: rows of each trajectory, (K,), all above zero.
        successors_known: whether ``next_observations`` are the true ones.
        source: the file, for messages.

    Raises:
        ConfigError: a trajectory has rows of several units, or a known successor is not the next
            row's observation.
    """
    last = offsets_of(lengths)[1:] - 1
    inner = np.delete(np.arange(len(rows)), last)
    if (rows.unit_ids[inner] != rows.unit_ids[inner + 1]).any():
        raise ConfigError(
            f"{source}: some trajectories have rows of several units: a trajectory id must belong"
            " to one unit, e.g. an id made of both"
        )
    if successors_known and not np.array_equal(
        rows.next_observations[inner], rows.observations[inner + 1], equal_nan=True
    ):
        raise ConfigError(
            f"{source}: some next_observation is not the observation of the trajectory's next row:"
            " check the order, or import the rows on their own, with neither trajectory nor"
            " split_at_flags"
        )
    cut = ~rows.terminated[last] & (not successors_known)
    steps = lengths - cut
    kept = steps > 0
    chosen = np.ones(len(rows), dtype=bool)
    chosen[last[cut]] = False
    truncated, successors = rows.truncated.copy(), rows.next_observations.copy()
    ends = (last - cut)[kept]
    truncated[ends] |= ~rows.terminated[ends]
    successors[ends] = rows.next_observations[last[kept]]
    ended = replace(rows, truncated=truncated, next_observations=successors)
    return join_rows(ended.select(chosen), steps[kept])
