"""Columns of tables as numbers and levels, by what a sample of real rows taught of them.

A level is a value of a category, a value of a number that has few of them, else a bin of as many
real rows as any other. Missing values have none. None of this is a private release.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import is_category

MOST_LEVELS = 256
_ROWS_A_BIN = 20
_EXACT, _NEAR = 1e-3, 1e-2
"""Parts of a deviation by which numbers may differ to be equal: in a rule, and to keep to it."""

Floats = NDArray[np.float64]
Levels = NDArray[np.int16]


@dataclass(frozen=True, kw_only=True, eq=False)
class Coding:
    """How a column is read, by what one sample of real rows has in it.

    Args:
        labels: of the levels, as they are shown.
        categories: of a category; None: it is a number.
        edges: between levels of a number.
        few: whether each level is one value.
        exact: by how much two values may differ to be equal in a rule.
        near: by how much they may to keep to a rule.
    """

    labels: tuple[str, ...]
    categories: pd.Index | None
    edges: Floats
    few: bool
    exact: float
    near: float

    @classmethod
    def of(cls, column: pd.Series) -> "Coding":
        """Return how ``column`` is read."""
        if is_category(column):
            categories = column.cat.categories
            return cls(
                labels=tuple(map(str, categories)),
                categories=categories,
                edges=np.empty(0),
                few=True,
                exact=0.5,
                near=0.5,
            )
        known = column.dropna().to_numpy(np.float64)
        values = np.unique(known)
        few = len(values) <= MOST_LEVELS and len(values) * _ROWS_A_BIN <= max(len(known), 1)
        if few:
            edges = (values[:-1] + values[1:]) / 2
        else:
            bins = int(np.clip(len(known) // _ROWS_A_BIN, 2, MOST_LEVELS))
            edges = np.unique(np.quantile(known, np.arange(1, bins) / bins))
        spread = float(known.std()) if len(known) else 0.0
        return cls(
            labels=tuple(f"{value:.4g}" for value in values) if few else (),
            categories=None,
            edges=edges,
            few=few,
            exact=_EXACT * spread,
            near=_NEAR * spread,
        )

    @property
    def levels(self) -> int:
        """How many levels there are."""
        return len(self.edges) + 1 if self.categories is None else len(self.categories)

    def read(self, column: pd.Series) -> tuple[Floats, Levels]:
        """Return the numbers of a column (N,), NaN where it has none, and its levels, or -1.

        The numbers of a category are the places of its values.
        """
        if self.categories is not None:
            codes = np.asarray(column.cat.set_categories(self.categories).cat.codes, np.int64)
            return np.where(codes < 0, np.nan, codes), codes.astype(np.int16)
        numbers = column.to_numpy(np.float64)
        codes = np.searchsorted(self.edges, numbers)
        return numbers, np.where(np.isnan(numbers), -1, codes).astype(np.int16)


@dataclass(frozen=True, kw_only=True, eq=False)
class CodedTable:
    """Rows as rules read them.

    Args:
        codings: of its columns, by name.
        numbers: of each column (N,).
        levels: of each column (N,).
        units: (N,) whose a row is, from 0.
    """

    codings: Mapping[str, Coding]
    numbers: Mapping[str, Floats]
    levels: Mapping[str, Levels]
    units: NDArray[np.int64]

    @classmethod
    def of(
        cls, frame: pd.DataFrame, codings: Mapping[str, Coding], units: NDArray[np.uint64]
    ) -> "CodedTable":
        """Return the columns that have a coding."""
        read = {name: coding.read(frame[name]) for name, coding in codings.items()}
        return cls(
            codings=codings,
            numbers={name: numbers for name, (numbers, _) in read.items()},
            levels={name: levels for name, (_, levels) in read.items()},
            units=np.unique(units, return_inverse=True)[1].astype(np.int64),
        )

    def known(self, *names: str) -> NDArray[np.bool_]:
        """Return which rows have a value in all of these columns (N,)."""
        found: NDArray[np.bool_] = np.all([self.levels[name] >= 0 for name in names], axis=0)
        return found

    def units_of(self, rows: NDArray[np.bool_]) -> int:
        """Return how many units have one of these rows."""
        return len(np.unique(self.units[rows]))


def codings_of(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, Coding]:
    """Return how columns are read; categories of more than `MOST_LEVELS` are left out."""
    return {
        name: Coding.of(frame[name])
        for name in names
        if not is_category(frame[name]) or len(frame[name].cat.categories) <= MOST_LEVELS
    }
