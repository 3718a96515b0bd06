"""How far a synthetic table is from a real one: columns, pairs, rare cells, a classifier.

Functions of two tables and, where they draw, of a Generator. Columns are as
in `distributed_privrl.evaluation.associations`. None of these is a private release.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.evaluation.associations import (
    association,
    correlation,
    is_category,
    marginal,
    together,
)

RARE = 0.01
"""Share of the real rows below which a cell is rare."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Transitions with named columns.

    Args:
        frame: (N, columns): state, action, ``reward``, successor (missing after a terminal row) and
            ``terminated``.
        state: columns of the state.
        action: of the action.
        successor: of the next state.
        units: (N,) whose a row is; of synthetic rows, which are nobody's, any number.
        ends: (N,) whether a row is the last of its trajectory.
    """

    frame: pd.DataFrame
    state: tuple[str, ...]
    action: tuple[str, ...]
    successor: tuple[str, ...]
    units: NDArray[np.uint64]
    ends: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.frame)

    def select(self, chosen: NDArray[Any]) -> "Rows":
        """Return the rows at ``chosen`` (positions, or a mask)."""
        return Rows(
            frame=self.frame.iloc[np.arange(len(self))[chosen]].reset_index(drop=True),
            state=self.state,
            action=self.action,
            successor=self.successor,
            units=self.units[chosen],
            ends=self.ends[chosen],
        )

    def halves(self, rng: np.random.Generator) -> tuple["Rows", "Rows"]:
        """Return the rows of a random half of the units, and those of the others."""
        units = np.unique(self.units)
        mine = np.isin(self.units, rng.permutation(units)[: len(units) // 2])
        return self.select(mine), self.select(~mine)

    def sample(self, count: int, rng: np.random.Generator) -> "Rows":
        """Return ``count`` random rows, or all, in their order."""
        if len(self) <= count:
            return self
        return self.select(np.sort(rng.choice(len(self), count, replace=False)))


def marginals(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, float]:
    """Return `marginal` of each column, by name."""
    return {name: marginal(real[name], synthetic[name]) for name in real.columns}


def pearson(one: pd.Series, other: pd.Series) -> float:
    """Return Pearson's correlation of two numbers, 0 where one is constant or either no number."""
    left, right = together(one, other)
    if is_category(one) or is_category(other) or left.nunique() < 2 or right.nunique() < 2:
        return 0.0
    return correlation(left.to_numpy(np.float64), right.to_numpy(np.float64))


def gaps(
    real: pd.DataFrame,
    synthetic: pd.DataFrame,
    measure: Callable[[pd.Series, pd.Series], float] = association,
) -> dict[tuple[str, str], float]:
    """Return the absolute difference of a measure of each pair of columns, by their names.

    Args:
        real: (M, D).
        synthetic: (N, D).
        measure: `association` or `pearson`.
    """
    return {
        (one, other): abs(
            measure(real[one], real[other]) - measure(synthetic[one], synthetic[other])
        )
        for one, other in itertools.combinations(real.columns, 2)
    }


@dataclass(frozen=True, kw_only=True)
class RareCells:
    """What becomes of cells of the table that are rare, or empty, in the real rows.

    Args:
        real: share of the real rows in rare cells.
        synthetic: share of the synthetic rows in the same cells.
        missed: of the real rows in rare cells, the share whose cell has no synthetic row.
        invented: share of the synthetic rows in cells without any real row.
    """

    real: float
    synthetic: float
    missed: float
    invented: float

    @property
    def ratio(self) -> float | None:
        """Synthetic share over real share; None where no real cell is rare."""
        return self.synthetic / self.real if self.real else None


def rare_cells(
    real: Sequence[Hashable], synthetic: Sequence[Hashable], *, below: float = RARE
) -> RareCells:
    """Return what becomes of rare cells.

    Args:
        real: (M,) cell of each real row.
        synthetic: (N,) of each synthetic row.
        below: share of the real rows below which a cell is rare.

    Example:
        >>> rare_cells(["a"] * 3 + ["b"], ["a", "c"], below=0.5).invented
        0.5
    """
    mine = pd.Series(list(real), dtype=object).value_counts(normalize=True)
    theirs = pd.Series(list(synthetic), dtype=object).value_counts(normalize=True)
    rare = mine[mine < below]
    gone = rare[~rare.index.isin(theirs.index)]
    return RareCells(
        real=float(rare.sum()),
        synthetic=float(theirs[theirs.index.isin(rare.index)].sum()),
        missed=float(gone.sum() / rare.sum()) if len(rare) else 0.0,
        invented=float(theirs[~theirs.index.isin(mine.index)].sum()),
    )


def cells_of(frame: pd.DataFrame, edges: Mapping[str, Sequence[float]]) -> list[Hashable]:
    """Return the cell of each row: its categories, and the intervals of some of its numbers.

    Args:
        frame: (N, D).
        edges: columns that tell cells apart, and public cuts of those that are numbers (none: the
            value itself).
    """
    columns = [
        np.searchsorted(cuts, frame[name].to_numpy(np.float64), side="right")
        if len(cuts)
        else frame[name].to_numpy(np.float64)
        for name, cuts in edges.items()
    ]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def relation_values(
    rows: Rows, relations: Mapping[str, Callable[[Rows], float]]
) -> dict[str, float]:
    """Return each declared relation of a table, by name."""
    return {name: float(relation(rows)) for name, relation in relations.items()}
