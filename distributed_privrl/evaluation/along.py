"""What rows of trajectories are along them: steps, lengths, returns, means at each step."""

from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import Rows, is_category

TIME = "step of the trajectory"
"""What pairs call the place of a row in its trajectory, from 0."""
_GROUPS = 8
"""Groups of steps at most, each of about as many rows."""
_TIMES = 16
"""Groups of the values of a clock, likewise."""
_GROWS = 0.2
"""Part of a number's variance, in ranks, between such groups from which on it grows with it."""


def timed(rows: Rows) -> Rows:
    """Return rows of trajectories with a column `TIME`, unless one is called so already."""
    if TIME in rows.frame:
        return rows
    groups = pd.Series(trajectory_numbers(rows))
    step = groups.groupby(groups).cumcount().astype(np.float64)
    return replace(rows, frame=rows.frame.assign(**{TIME: step.to_numpy()}))


def trajectory_numbers(rows: Rows) -> NDArray[np.int64]:
    """Return the number of each row's trajectory."""
    return np.concatenate([[0], np.cumsum(rows.ends)[:-1]]).astype(np.int64)


def lengths(rows: Rows) -> NDArray[np.float64]:
    """Return the number of steps of each trajectory, ``(K,)``."""
    return np.bincount(trajectory_numbers(rows)).astype(np.float64)


def returns(rows: Rows) -> NDArray[np.float64]:
    """Return the sum of rewards of each trajectory, ``(K,)``; gaps count as 0."""
    rewards = np.nan_to_num(_numbers(rows.frame[rows.reward]))
    return np.bincount(trajectory_numbers(rows), rewards).astype(np.float64)


def _numbers(column: pd.Series) -> NDArray[np.float64]:
    values = column.cat.codes if is_category(column) else column
    return np.asarray(values, dtype=np.float64)


def profile_gap(real: pd.DataFrame, other: pd.DataFrame) -> float:
    """Return how far the means of a number at each step are from the real ones, in deviations.

    Steps are taken together in up to eight groups of about as many real rows. Of the differences of
    their means the root mean square counts, each group by its real rows. What all steps have in
    common is left out: it is what the column's own distance sees.

    Args:
        real: ``(N, 2)``: a number, and `TIME`.
        other: ``(M, 2)``, the same columns.

    Example:
        >>> steps = np.tile(np.arange(3.0), 2)
        >>> real = pd.DataFrame({"x": [0.0, 2, 0, 0, 2, 0], TIME: steps})
        >>> profile_gap(real, real)
        0.0
        >>> round(profile_gap(real, real.assign(x=real["x"].mean())), 3)
        1.0
    """
    name = next(one for one in real if one != TIME)
    edges = np.unique(np.quantile(real[TIME], np.linspace(0, 1, _GROUPS + 1))[1:-1])
    means, counts = [], []
    for frame in (real, other):
        numbers = frame[name].to_numpy(np.float64)
        known = np.isfinite(numbers)
        groups = np.searchsorted(edges, frame[TIME].to_numpy(np.float64)[known], side="left")
        count = np.bincount(groups, minlength=len(edges) + 1)
        total = np.bincount(groups, numbers[known], minlength=len(edges) + 1)
        means.append(total / np.maximum(count, 1))
        counts.append(count)
    both = (counts[0] > 0) & (counts[1] > 0)
    deviation = float(np.nanstd(real[name].to_numpy(np.float64)))
    if not both.any() or not deviation > 0:
        return 0.0
    weights = counts[0] * both / (counts[0] * both).sum()
    gaps = (means[1] - means[0]) / deviation
    return float(np.sqrt(weights @ (gaps - weights @ gaps) ** 2))


def clocks(rows: Rows) -> list[str]:
    """Return the columns that tell how late a row is: `TIME`, and numbers of the state that rise.

    They never fall from a row to the next one, and do not stay in all of them.
    """
    found = [TIME] if TIME in rows.frame else []
    for now, after in zip(rows.state[: len(rows.successor)], rows.successor, strict=True):
        if not is_category(rows.frame[now]):
            change = (rows.frame[after] - rows.frame[now]).dropna()
            if len(change) and change.min() >= 0 and change.max() > 0:
                found.append(now)
    return found


def beside_others(
    one: pd.Series, other: pd.Series, times: pd.Series
) -> tuple[pd.Series, pd.Series] | None:
    """Return two numbers less their means of the same time, if the first one grows with time.

    Values of time are taken together in up to sixteen groups of about as many rows. Two numbers
    that grow go together because they do; what is left is of people of the same time.

    Args:
        one: ``(N,)``.
        other: ``(N,)``, of the same rows.
        times: ``(N,)``, of the same rows.

    Returns:
        None: it does not grow, or there are no rows with both.

    Example:
        >>> times = pd.Series([0.0, 0.0, 1.0, 1.0])
        >>> grown = beside_others(pd.Series([1.0, 2.0, 7.0, 8.0]), pd.Series(range(4)), times)
        >>> grown[0].tolist()
        [-0.5, 0.5, -0.5, 0.5]
    """
    known = (one.notna() & other.notna() & times.notna()).to_numpy()
    if not known.any():
        return None
    one, other, times = (column[known].astype(np.float64) for column in (one, other, times))
    edges = np.unique(np.quantile(times, np.linspace(0, 1, _TIMES + 1))[1:-1])
    groups = np.searchsorted(edges, times, side="left")
    ranks = one.rank()
    variance = float(ranks.var(ddof=0))
    between = float(ranks.groupby(groups).transform("mean").var(ddof=0))
    if not variance > 0 or between < _GROWS * variance:
        return None
    first, second = (column - column.groupby(groups).transform("mean") for column in (one, other))
    return first, second
