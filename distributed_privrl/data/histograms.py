"""Histograms of named columns of rows, in cells that public facts alone decide."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.labels import column_labels
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import Rows, is_category, named_rows
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.trajectories import Transitions

NOTHING = "nothing"
"""The last cell of every column: no value, or none that the column can have."""


@dataclass(frozen=True)
class ColumnCells:
    """The cells of a column.

    Args:
        name: of the column, as its table has it.
        edges: rising, of a number: cell i ends below ``edges[i]``, and one more lies above them.
        values: of a category, a cell each; empty for a number.
    """

    name: str
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of cells, with that of `NOTHING`."""
        return (len(self.values) or len(self.edges) + 1) + 1

    @property
    def labels(self) -> tuple[str, ...]:
        """What each cell holds, in words."""
        if self.values:
            return (*self.values, NOTHING)
        ends = [f"{edge:g}" for edge in self.edges]
        if not ends:
            return ("any", NOTHING)
        between = [f"{a} to {b}" for a, b in pairwise(ends)]
        return (f"below {ends[0]}", *between, f"{ends[-1]} and above", NOTHING)

    def places(self, column: pd.Series) -> NDArray[np.int64]:
        """Return the cell of each value, ``(N,)``; any value has one."""
        if self.values:
            order = {value: place for place, value in enumerate(self.values)}
            found = column.astype(object).map(order).to_numpy(np.float64, na_value=np.nan)
        else:
            numbers = column.to_numpy(np.float64)
            found = np.searchsorted(np.array(self.edges), numbers, side="right").astype(np.float64)
            found[~np.isfinite(numbers)] = np.nan
        there = np.isfinite(found)
        return np.where(there, np.where(there, found, 0), self.size - 1).astype(np.int64)


@dataclass(frozen=True)
class Histogram:
    """A histogram of one column, or of several together.

    Args:
        columns: whose cells are crossed.
    """

    columns: tuple[ColumnCells, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Cells of each column."""
        return tuple(one.size for one in self.columns)

    @property
    def size(self) -> int:
        """Number of cells."""
        return math.prod(self.shape)

    def places(self, rows: Rows) -> NDArray[np.int64]:
        """Return the one cell that each row is in, ``(N,)``."""
        places = np.zeros(len(rows), np.int64)
        for one in self.columns:
            places = places * one.size + one.places(rows.frame[one.name])
        return places


def counted(
    histograms: Sequence[Histogram], rows: Rows, weights: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the weight in each cell of all histograms, one after the other: exact integers.

    Args:
        histograms: of one or several columns each.
        rows: N of them.
        weights: ``(N,)``.

    Privacy: a row adds its weight to one cell of each histogram, whatever it holds.
    """
    parts = []
    for one in histograms:
        cells = np.zeros(one.size, np.int64)
        np.add.at(cells, one.places(rows), weights)
        parts.append(cells)
    return np.concatenate(parts)


def column_cells(
    info: DatasetInfo, bounds: Bounds, *, bins: int, edges: Mapping[str, Sequence[float]]
) -> dict[str, ColumnCells]:
    """Return the cells of each column of a dataset's rows, by name; of public facts alone.

    Args:
        info: of the dataset: its declared spaces and columns.
        bounds: public, of every number.
        bins: cells of a number of equal width, or fewer where it has fewer steps.
        edges: of the numbers that have others.

    Raises:
        ConfigError: edges are named for no number, or do not rise.
    """
    frame = named_rows(_a_row(info), np.ones(1, np.bool_), info).frame
    layout, labels = RowLayout(info.observation_space, info.action_space), column_labels(info)
    sources = dict(reversed(list(zip(labels, layout.column_names, strict=True))))
    for part, block in layout.blocks.items():  # a name that two parts have says whose it is
        own = zip(labels[block], layout.column_names[block], strict=True)
        sources |= {f"{part} {label}": column for label, column in own}
    found: dict[str, ColumnCells] = {}
    for name in frame.columns:
        column = frame[name]
        if is_category(column):
            found[name] = ColumnCells(name, values=tuple(map(str, column.cat.categories)))
        elif name in edges:
            found[name] = ColumnCells(name, edges=_rising(name, edges[name]))
        else:
            place = bounds.columns.index(sources[name].removeprefix("next_"))
            low, high, step = (float(x[place]) for x in (bounds.low, bounds.high, bounds.step))
            found[name] = ColumnCells(name, edges=_even(low, high, step, bins))
    unknown = [name for name in edges if name not in found or found[name].values]
    if unknown:
        raise ConfigError(f"edges of {unknown[0]}: no number is called so")
    return found


def _rising(name: str, edges: Sequence[float]) -> tuple[float, ...]:
    values = tuple(map(float, edges))
    if not values or not np.isfinite(values).all() or (np.diff(values) <= 0).any():
        raise ConfigError(f"edges of {name} must be finite and rise, got {list(values)}")
    return values


def _even(low: float, high: float, step: float, bins: int) -> tuple[float, ...]:
    """Return the inner edges of cells of equal width, each of whole steps' values."""
    if step > 0 and (high - low) / step < bins:
        return tuple(low + step * (i + 0.5) for i in range(round((high - low) / step)))
    return tuple(np.linspace(low, high, bins + 1)[1:-1].tolist()) if low < high else ()


def _a_row(info: DatasetInfo) -> Transitions:
    """Return a row of a dataset's form, with zeros alone."""
    spaces = {"observations": info.observation_space, "actions": info.action_space}
    parts: dict[str, NDArray[Any]] = {}
    for name, space in spaces.items():
        if isinstance(space, Box):
            parts[name] = np.zeros((1, part_width(space)), np.float32)
        else:
            parts[name] = np.zeros((1, *(space.shape or ())), np.int64)
    return Transitions(
        **parts,
        rewards=np.zeros(1, np.float32),
        next_observations=parts["observations"],
        terminated=np.zeros(1, bool),
        truncated=np.zeros(1, bool),
        unit_ids=np.zeros(1, np.uint64),
    )
