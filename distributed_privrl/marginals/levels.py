"""The level of a number: a mean of its values so far, in which late ones weigh more."""

import numpy as np
from numpy.typing import NDArray

WEIGHT = 1 / 7
"""Of the last value, once there are seven; before, all weigh the same.

The smaller, the longer a trajectory keeps to its own level; the larger, the better the level
follows what wanders. Of public tables (lipid tests, purchases, scores of pupils, wages) weights
from a tenth to a third tell the next value about as well: docs/design/0019-gaps-and-memory.md.
"""

_TOGETHER = 512
"""Steps up to which trajectories are told side by side; later ones are few, and told in turn."""


def updated(
    levels: NDArray[np.float64], seen: NDArray[np.int64], numbers: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return levels with one more value each, and of how many values they are, ``(N,)``.

    Args:
        levels: so far, ``(N,)``; nan where there was no value.
        seen: of how many values they are, ``(N,)``.
        numbers: the next ones, ``(N,)``; what is not finite changes nothing.

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
