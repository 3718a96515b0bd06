"""Quantiles of bounded columns with differential privacy: array in, bounds out.

Each quantile is a cell of a public grid, drawn by permute-and-flip with OpenDP's exact sampler from
integers that count rows. A unit spreads one weight over its rows, so that it moves those integers
no further with a thousand rows than with one.

Reference: Smith 2011 (quantiles by a choice among candidates); McKenna and Sheldon 2020
    (permute-and-flip: never further off than the exponential mechanism at the same epsilon).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.choosing import LARGEST_DISTANCE, Chooser, rounded_up
from distributed_privrl.privacy.events import PERMUTE_AND_FLIP, PureDpEvent
from distributed_privrl.privacy.units import Relation

CELLS = 1024
"""Cells of a column's grid."""
UNIT_WEIGHT = 2**20
"""What a unit spreads over its rows: the largest number of rows of which each still counts."""
_RANKS = 10_000


def row_weights(rows_of_unit: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the weight of each row, (N,), given the number of rows of the unit that owns it.

    Privacy: the rows of one unit weigh `UNIT_WEIGHT` together at most, whatever they hold.

    Example:
        >>> row_weights(np.array([1, 2, 2])).tolist() == [2**20, 2**19, 2**19]
        True
    """
    return np.asarray(UNIT_WEIGHT // rows_of_unit, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnGrid:
    """Cells of equal width between the public ends of each column.

    Args:
        lower: (B,), public; smaller values count as this one.
        upper: (B,), public, above ``lower``; larger values count as this one.
        cells: of each column (G).

    Raises:
        ConfigError: a range is empty or not finite.
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    cells: int = CELLS

    def __post_init__(self) -> None:
        check_positive("cells", self.cells)
        for name in ("lower", "upper"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape:
            raise ConfigError(
                f"lower and upper must be (B,), got {self.lower.shape} and {self.upper.shape}"
            )
        with np.errstate(invalid="ignore", over="ignore"):
            width = self.upper - self.lower
        if not (np.isfinite(width).all() and (width > 0).all()):
            raise ConfigError(
                f"each column needs lower < upper, both finite, got {self.lower.tolist()} and"
                f" {self.upper.tolist()}"
            )

    def edges(self, positions: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the edges (B, ..) at ``positions``, which are 0 to ``cells``."""
        share = (positions / self.cells).T
        return np.asarray((self.lower * (1 - share) + self.upper * share).T)

    def cells_of(self, column: int, values: NDArray[np.floating]) -> NDArray[np.int64]:
        """Return the cell, (N,), of each finite value of a column."""
        low, high = self.lower[column], self.upper[column]
        share = (np.clip(values.astype(np.float64), low, high) - low) / (high - low)
        return np.asarray(np.minimum(share * self.cells, self.cells - 1), np.int64)


class CellWeights:
    """How much of the units' weight lies in each cell; raw private data.

    Args:
        grid: of the columns.
    """

    def __init__(self, grid: ColumnGrid) -> None:
        self.grid = grid
        self.weights = np.zeros((len(grid.lower), grid.cells), dtype=np.int64)

    def add(self, values: NDArray[np.floating], weights: NDArray[np.int64]) -> None:
        """Add rows; values that are not finite are left out, silently.

        Args:
            values: (N, B).
            weights: (N,), as from `row_weights`.
        """
        if values.ndim != 2 or values.shape[1] != len(self.weights):
            raise ConfigError(f"values must be (N, {len(self.weights)}), got {values.shape}")
        for column, total in enumerate(self.weights):
            finite = np.isfinite(values[:, column])
            cells = self.grid.cells_of(column, values[finite, column])
            np.add.at(total, cells, weights[finite])


def rank_sensitivity(relation: Relation, quantiles: Sequence[float]) -> Fraction:
    """Return by how many units' ranks one unit moves the distance of a cell from a quantile.

    With a share b of its weight below the cell and a share a above, a + b <= 1, a unit that comes
    or goes moves ``below - q n`` by (1 - q) b - q a at most, between -q and 1 - q; a unit that
    becomes another one moves it by the difference of two such numbers, 1 at most.

    Args:
        relation: when two datasets are neighbours.
        quantiles: in (0, 1), with four decimals at most.

    Raises:
        ConfigError: a quantile is out of range, or the relation has no units with rows.
    """
    if relation is Relation.POLICY_LEVEL:
        raise ConfigError("relation policy_level protects policies: it has no columns to bound")
    ranks = [_ranks(quantile) for quantile in quantiles]
    if relation is Relation.REPLACE_ONE:
        return Fraction(1)
    return Fraction(max(max(rank, _RANKS - rank) for rank in ranks), _RANKS)


def _ranks(quantile: float) -> int:
    ranks = round(quantile * _RANKS) if 0 < quantile < 1 else 0
    if not 0 < ranks < _RANKS or not math.isclose(ranks, quantile * _RANKS, rel_tol=1e-9):
        raise ConfigError(
            f"quantiles must lie in (0, 1) and have four decimals at most, got {quantile!r}"
        )
    return ranks


@dataclass(frozen=True, kw_only=True)
class QuantileRelease:
    """The release of the same quantiles of several columns.

    Args:
        epsilon: of all quantiles of all columns together.
        quantiles: (Q,), rising, each in (0, 1), with four decimals at most.
        columns: how many (B).
        relation: when two datasets are neighbours.

    Raises:
        ConfigError: a value is out of range.

    Privacy:
        Unit: whatever `row_weights` was told of. Relation: ``relation``. Sensitivity of a cell's
        distance: `rank_sensitivity`, whatever the number of the unit's rows. Event: ``pure_dp``,
        one for each column and quantile, whose ``derivation`` gives sensitivity and scale:
        epsilon = 2 sensitivity / scale.
    """

    epsilon: float
    quantiles: tuple[float, ...]
    columns: int
    relation: Relation

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_positive("columns", self.columns)
        if not self.quantiles or list(self.quantiles) != sorted(set(self.quantiles)):
            raise ConfigError(f"quantiles must rise, got {self.quantiles}")
        rank_sensitivity(self.relation, self.quantiles)

    @property
    def choices(self) -> int:
        """Cells that are drawn: one for each column and quantile."""
        return self.columns * len(self.quantiles)

    @property
    def event(self) -> PureDpEvent:
        """What the release is charged as."""
        return PureDpEvent(
            epsilon=self._epsilon_of_each,
            count=self.choices,
            derivation={
                "mechanism": PERMUTE_AND_FLIP,
                "quantiles": " ".join(f"{quantile:g}" for quantile in self.quantiles),
                "columns": self.columns,
                "sensitivity": float(self._sensitivity),
                "scale": self.scale,
            },
        )

    @property
    def _sensitivity(self) -> Fraction:
        return rank_sensitivity(self.relation, self.quantiles)

    @property
    def _epsilon_of_each(self) -> float:
        each = self.epsilon / self.choices
        return each if each * self.choices <= self.epsilon else math.nextafter(each, 0)

    @property
    def scale(self) -> float:
        """Scale of the choice, in units' ranks; rounded up."""
        return rounded_up(2 * self._sensitivity / Fraction(self._epsilon_of_each))

    def units_needed(self, cells: int = CELLS) -> int:
        """Return the number of units below which a choice is mostly noise.

        Outside the outermost quantile lie so many units that all wrong cells together are as
        likely as the right one.
        """
        tail = min(_ranks(self.quantiles[0]), _RANKS - _ranks(self.quantiles[-1])) / _RANKS
        return math.ceil(self.scale * math.log(cells) / tail)

    def distances(self, weights: NDArray[np.int64], quantile: float) -> list[int]:
        """Return how far each cell is from holding a quantile, in 1/10,000 of a row's weight.

        Args:
            weights: (G,), of one column.
            quantile: which one.

        Returns:
            (G,): 0 where the rank of the quantile falls into the cell; otherwise how many ranks
            are missing. Private.
        """
        ranks = _ranks(quantile)
        up_to = np.cumsum(weights).tolist()
        wanted = ranks * up_to[-1]
        distances, below = [], 0
        for through in up_to:
            away = max(0, _RANKS * below - wanted, wanted - _RANKS * through)
            distances.append(min(away, LARGEST_DISTANCE))
            below = through
        return distances

    def release(self, cells: CellWeights, chooser: Chooser) -> NDArray[np.int64]:
        """Return the cell of each quantile of each column, (B, Q), rising in each column.

        Args:
            cells: of ``columns`` columns.
            chooser: draws.

        Raises:
            ConfigError: another number of columns.
        """
        if len(cells.weights) != self.columns:
            raise ConfigError(f"columns={self.columns}, but {len(cells.weights)} were counted")
        scale = rounded_up(Fraction(self.scale) * UNIT_WEIGHT * _RANKS)
        chosen = [
            chooser.choose(
                self.distances(weights, quantile),
                scale=scale,
                tag=column * len(self.quantiles) + index,
            )
            for column, weights in enumerate(cells.weights)
            for index, quantile in enumerate(self.quantiles)
        ]
        return np.sort(np.array(chosen, np.int64).reshape(self.columns, -1), axis=1)


def bounds_between(grid: ColumnGrid, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return (B, 2): the outer edges of the first and the last chosen cell of each column.

    Args:
        grid: of the columns.
        chosen: (B, Q), from `QuantileRelease.release`.
    """
    return grid.edges(np.stack([chosen[:, 0], chosen[:, -1] + 1], axis=1))
