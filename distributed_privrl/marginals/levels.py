"""The level of a number: a mean of its values so far, in which late ones weigh more.

Of a category it is the usual one: that which such a mean has most of.
"""

import numpy as np
from numpy.typing import NDArray

WEIGHT = 1 / 7
"""Of the last value, once there are seven; before, all weigh the same.

The smaller, the longer a trajectory keeps to its own level; the larger, the better the level
follows what wanders. Of public tables (lipid tests, purchases, scores of pupils, wages) weights
from a tenth to a third tell the next value about as well: docs/design/0019-gaps-and-memory.md.
"""

_ALIKE = 1e-9
_SURE = 0.6
"""Of the usual category, as if one more value had been another one."""
_AT_ONCE = 16_384
"""Trajectories whose categories are told side by side."""
_TOGETHER = 512
"""Steps up to which trajectories are told side by side; later ones are few, and told in turn."""


def updated(
    levels: NDArray[np.float64], seen: NDArray[np.int64], numbers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return levels with one more value each, and of how many values they are, of any shape.

    Args:
        levels: so far; nan where there was no value.
        seen: of how many values they are.
        numbers: the next ones; what is not finite changes nothing.

    Example:
        >>> updated(np.array([np.nan, 2.0]), np.array([0, 1]), np.array([5.0, 4.0]))[0].tolist()
        [5.0, 3.0]
    """
    there = np.isfinite(numbers)
    seen = seen + there
    before = np.where(np.isnan(levels), 0.0, levels)
    weight = np.maximum(1 / np.maximum(seen, 1), WEIGHT)
    following = before + weight * (np.where(there, numbers, 0.0) - before)
    return np.where(there, following, levels), seen


def usual(
    levels: NDArray[np.float64], seen: NDArray[np.int64], last: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Return which category is the usual one, and whether that is sure, ``(N,)``.

    It is the one whose level is largest; of several the last value, if it is one.

    Args:
        levels: of each category, ``(N, K)``: of 1 where it is the value, else 0.
        seen: of how many values they are, ``(N,)``.
        last: the last value, ``(N,)``, from 0.

    Returns:
        twice the category, from 0, and 1 more where it is sure.
    """
    rows, count = np.arange(len(levels)), np.minimum(seen, round(1 / WEIGHT))
    highest = levels.max(axis=1, initial=0.0)
    found = np.where(levels[rows, last] >= highest - _ALIKE, last, levels.argmax(axis=1))
    sure = levels[rows, found] * count / (count + 1) >= _SURE
    return np.asarray(2 * found + sure, np.int64)


def usual_so_far(
    codes: NDArray[np.int64], times: NDArray[np.int64], categories: int
) -> NDArray[np.int64]:
    """Return the usual category of each row of whole trajectories, its own included, ``(N,)``.

    See `usual`.

    Args:
        codes: ``(N,)``, from 0, trajectory after trajectory; others are none.
        times: ``(N,)``, rows before each in its trajectory.
        categories: how many there are.

    Returns:
        -1 where the row has none.

    Privacy: as `levels_so_far`.
    """
    proper = (codes >= 0) & (codes < categories)
    found = np.full(len(codes), -1, np.int64)
    starts = np.append(np.flatnonzero(times == 0), len(codes))
    for first in range(0, len(starts) - 1, _AT_ONCE):
        begins = starts[first : first + _AT_ONCE + 1]
        begins, end = (begins[:-1], begins[-1]) if len(begins) > _AT_ONCE else (begins, len(codes))
        begins = begins[begins < end]
        lengths = np.diff(np.append(begins, end))
        levels = np.zeros((len(begins), categories))
        seen = np.zeros(levels.shape, np.int64)
        for time in range(int(lengths.max(initial=0))):
            own = np.flatnonzero(lengths > time)
            rows = begins[own] + time
            own, rows = own[proper[rows]], rows[proper[rows]]
            now = (codes[rows, None] == np.arange(categories)).astype(np.float64)
            levels[own], seen[own] = updated(levels[own], seen[own], now)
            found[rows] = usual(levels[own], seen[own, 0], codes[rows])
    return found


def changes_so_far(numbers: NDArray[np.float64], times: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how far each number is above the one before it in its trajectory, ``(N,)``.

    Args:
        numbers: ``(N,)``, trajectory after trajectory; what is not finite is none.
        times: ``(N,)``, rows before each in its trajectory.

    Returns:
        nan in first rows, and where one of both is no number.
    """
    before = np.roll(numbers, 1)
    with np.errstate(invalid="ignore"):
        return np.where(times > 0, numbers - before, np.nan)


def levels_so_far(
    numbers: NDArray[np.float64], times: NDArray[np.int64], low: float, high: float
) -> NDArray[np.float64]:
    """Return the level of each row of whole trajectories, its own value included, ``(N,)``.

    Args:
        numbers: ``(N,)``, trajectory after trajectory; what is not finite is none.
        times: ``(N,)``, rows before each in its trajectory.
        low: what is less counts as this.
        high: what is more counts as this.

    Returns:
        nan where the trajectory has no number so far.

    Privacy: a row's level depends on rows of its own trajectory alone, which are of one unit.
    """
    with np.errstate(all="ignore"):
        numbers = np.where(np.isfinite(numbers), np.clip(numbers, low, high), np.nan)
    found, seen = np.full(len(numbers), np.nan), np.zeros(len(numbers), np.int64)
    early = np.flatnonzero(times < _TOGETHER)
    order = early[np.argsort(times[early], kind="stable")]
    ends = np.searchsorted(times[order], np.arange(int(times[early].max(initial=-1)) + 2))
    for time in range(len(ends) - 1):
        rows = order[ends[time] : ends[time + 1]]
        if time:
            before = found[rows - 1], seen[rows - 1]
        else:
            before = np.full(len(rows), np.nan), np.zeros(len(rows), np.int64)
        found[rows], seen[rows] = updated(*before, numbers[rows])
    for row in np.flatnonzero(times >= _TOGETHER).tolist():  # of few trajectories
        level, number = float(found[row - 1]), float(numbers[row])
        seen[row] = seen[row - 1] + (number == number)
        if number == number and level == level:
            found[row] = level + max(1 / int(seen[row]), WEIGHT) * (number - level)
        else:
            found[row] = level if level == level else number
    return found
