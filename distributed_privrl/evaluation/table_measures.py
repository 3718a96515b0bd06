"""How far a synthetic table is from a real one: columns, pairs, rare cells, a classifier.

Functions of two tables and, where they draw, of a Generator. A column of type `CATEGORY` is a
category, every other one a number; missing values are left out. A column with one value has no
relation to any other (0). None of these is a private release.
"""

import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.data.named_rows import is_category

RARE = 0.01
"""Share of the real rows below which a cell is rare."""


def marginal(real: pd.Series, synthetic: pd.Series) -> float:
    """Return how alike two columns are: 1 - KS of numbers, 1 - total variation of categories.

    Args:
        real: (M,).
        synthetic: (N,) of the same kind. Two columns without a value are alike (1), one is not (0).

    Example:
        >>> marginal(pd.Series([0.0, 1.0]), pd.Series([1.0, 1.0]))
        0.5
    """
    one, other = real.dropna(), synthetic.dropna()
    if one.empty or other.empty:
        return float(one.empty and other.empty)
    if not is_category(real):
        return 1 - float(stats.ks_2samp(one, other, method="asymp").statistic)
    shares = pd.concat(
        [c.astype(object).value_counts(normalize=True) for c in (one, other)], axis=1
    )
    shares = shares.fillna(0.0)
    return 1 - float((shares.iloc[:, 0] - shares.iloc[:, 1]).abs().sum() / 2)


def marginals(real: pd.DataFrame, synthetic: pd.DataFrame) -> dict[str, float]:
    """Return `marginal` of each column, by name."""
    return {name: marginal(real[name], synthetic[name]) for name in real.columns}


def association(one: pd.Series, other: pd.Series) -> float:
    """Return how strongly two columns go together; 0 where nothing relates them.

    Args:
        one: (N,).
        other: (N,), the same rows.

    Returns:
        Spearman's correlation of two numbers; the correlation ratio (eta) of a number and a
        category; Cramer's V of two categories. The last two are corrected for what chance alone
        gives. Ranks, because a few rows far out decide of Pearson's correlation (`pearson`).

    Reference: Bergsma, "A bias-correction for Cramer's V and Tschuprow's T" (2013).

    Example:
        >>> association(pd.Series([1.0, 2.0, 3.0]), pd.Series([1.0, 4.0, 9.0]))
        1.0
    """
    return _association(_Coded.of(one), _Coded.of(other))


def pearson(one: pd.Series, other: pd.Series) -> float:
    """Return Pearson's correlation of two numbers, 0 where one is constant or either no number."""
    left, right = _together(one, other)
    if is_category(one) or is_category(other) or left.nunique() < 2 or right.nunique() < 2:
        return 0.0
    return _pearson(left.to_numpy(np.float64), right.to_numpy(np.float64))


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


def spread_over(column: pd.Series, times: pd.Series) -> float:
    """Return how the spread of a number changes with time, in [-1, 1].

    It is Spearman's correlation of time with a number's distance from the median of its time, so
    that it does not see how the number itself changes.

    Args:
        column: ``(N,)`` numbers.
        times: ``(N,)`` of each of them.

    Example:
        >>> times = pd.Series([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
        >>> round(spread_over(pd.Series([4.0, 5.0, 6.0, 1.0, 9.0, 17.0]), times), 2)
        0.41
    """
    numbers = column.astype(np.float64)
    away = (numbers - numbers.groupby(times.to_numpy()).transform("median")).abs()
    return association(away, times.astype(np.float64))


def associations(frame: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Return `association` of each pair of columns, by their names.

    Columns of numbers without a gap are ranked once for all their pairs, and every column is coded
    once.

    Args:
        frame: (N, D).

    Example:
        >>> associations(pd.DataFrame({"a": [1.0, 2, 3], "b": [1.0, 4, 9]}))
        {('a', 'b'): 1.0}
    """
    coded = {name: _Coded.of(column) for name, column in frame.items()}
    whole = [
        name
        for name, column in coded.items()
        if not column.category and column.known is None and not _constant(column.values)
    ]
    ranks = [stats.rankdata(coded[name].values) for name in whole]
    spearman = np.atleast_2d(np.corrcoef(ranks)) if ranks else np.empty((0, 0))
    place = {name: number for number, name in enumerate(whole)}
    return {
        (one, other): float(np.clip(spearman[place[one], place[other]], -1, 1))
        if one in place and other in place
        else _association(coded[one], coded[other])
        for one, other in itertools.combinations(frame.columns, 2)
    }


@dataclass(frozen=True, eq=False)
class _Coded:
    """A column as numbers.

    Args:
        values: (N,) numbers, or the codes of categories.
        known: (N,) which rows have a value; None: all of them.
        category: whether values are codes.
    """

    values: NDArray[Any]
    known: NDArray[np.bool_] | None
    category: bool

    @classmethod
    def of(cls, column: pd.Series) -> "_Coded":
        category, known = is_category(column), column.notna().to_numpy(np.bool_)
        values = column.cat.codes.to_numpy(np.int64) if category else column.to_numpy(np.float64)
        return cls(values, None if known.all() else known, category)


def _association(one: _Coded, other: _Coded) -> float:
    left, right = one.values, other.values
    masks = [column.known for column in (one, other) if column.known is not None]
    if masks:
        both = np.logical_and.reduce(masks)
        left, right = left[both], right[both]
    if _constant(left) or _constant(right):
        return 0.0
    if one.category and other.category:
        return _cramers_v(_dense(left), _dense(right))
    if one.category or other.category:
        number, codes = (right, left) if one.category else (left, right)
        return _correlation_ratio(number, _dense(codes))
    return _pearson(stats.rankdata(left), stats.rankdata(right))


def _constant(values: NDArray[Any]) -> bool:
    return not len(values) or bool((values == values[0]).all())


def _dense(codes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return codes from 0 to one less than the number of those that occur."""
    places = np.cumsum(np.bincount(codes) > 0) - 1
    return np.asarray(places[codes], np.int64)


def _together(one: pd.Series, other: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return the rows of which both columns have a value."""
    known = (one.notna() & other.notna()).to_numpy()
    return one[known], other[known]


def _pearson(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    return float(np.clip(np.corrcoef(left, right)[0, 1], -1, 1))


def _correlation_ratio(number: NDArray[np.float64], codes: NDArray[np.int64]) -> float:
    """Return the root of the share of variance between categories, adjusted for their number."""
    rows, levels = len(number), int(codes.max()) + 1
    if rows <= levels:
        return 0.0
    counts = np.bincount(codes)
    means = np.bincount(codes, number) / counts
    total = float(((number - number.mean()) ** 2).sum())
    within = float(((number - means[codes]) ** 2).sum())
    adjusted = 1 - within / total * (rows - 1) / (rows - levels)
    return float(np.sqrt(max(0.0, adjusted)))


def _cramers_v(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    rows, r, k = len(one), int(one.max()) + 1, int(other.max()) + 1
    table = np.bincount(one * k + other, minlength=r * k).reshape(r, k).astype(np.float64)
    expected = np.outer(table.sum(1), table.sum(0)) / rows
    phi = float(((table - expected) ** 2 / expected).sum()) / rows
    phi = max(0.0, phi - (r - 1) * (k - 1) / (rows - 1))
    smaller = min(r - (r - 1) ** 2 / (rows - 1), k - (k - 1) ** 2 / (rows - 1)) - 1
    return float(min(1.0, np.sqrt(phi / smaller))) if smaller > 0 else 0.0


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
