"""How alike two columns of tables are, and how strongly two columns of one table go together.

A column of type `CATEGORY` is a category, every other one a number; missing values are left out. A
column with one value has no relation to any other (0). None of these is a private release.
"""

from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

CATEGORY: Final = "category"


def is_category(column: "pd.Series[Any]") -> bool:
    """Say whether a column holds categories."""
    return isinstance(column.dtype, pd.CategoricalDtype)


def marginal(real: pd.Series, synthetic: "pd.Series[Any]") -> float:
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


def association(one: pd.Series, other: "pd.Series[Any]") -> float:
    """Return how strongly two columns go together; 0 where nothing relates them.

    Args:
        one: (N,).
        other: (N,), the same rows.

    Returns:
        Spearman's correlation of two numbers; the correlation ratio (eta) of a number and a
        category; Cramer's V of two categories. The last two are corrected for what chance alone
        gives. Ranks, because a few rows far out decide of Pearson's correlation (Pearson).

    Reference: Bergsma, "A bias-correction for Cramer's V and Tschuprow's T" (2013).

    Example:
        >>> association(pd.Series([1.0, 2.0, 3.0]), pd.Series([1.0, 4.0, 9.0]))
        1.0
    """
    left, right = together(one, other)
    kinds = is_category(one) + is_category(other)
    if left.nunique() < 2 or right.nunique() < 2:
        return 0.0
    if kinds == 0:
        return correlation(stats.rankdata(left), stats.rankdata(right))
    if kinds == 1:
        number, category = (right, left) if is_category(one) else (left, right)
        return _correlation_ratio(number.to_numpy(np.float64), _codes(category))
    return _cramers_v(_codes(left), _codes(right))


def together(one: pd.Series, other: "pd.Series[Any]") -> tuple["pd.Series[Any]", "pd.Series[Any]"]:
    """Return the rows of which both columns have a value."""
    known = (one.notna() & other.notna()).to_numpy()
    return one[known], other[known]


def correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Return Pearson's correlation of two columns ``(N,)`` that are not constant."""
    return float(np.clip(np.corrcoef(left, right)[0, 1], -1, 1))


def _codes(category: "pd.Series[Any]") -> NDArray[np.int64]:
    return pd.factorize(category.astype(object))[0].astype(np.int64)


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
