"""Autocorrelation by lag: how long the columns of trajectories remember."""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories


def autocorrelation(
    trajectories: Trajectories, layout: RowLayout, lags: int
) -> NDArray[np.float64]:
    """Return the correlation of each column with itself, 1 to ``lags`` steps later, ``(L, C)``.

    Pairs lie inside a trajectory and are pooled over all of them. NaN where fewer than two pairs
    are so far apart, or a column does not vary.

    Args:
        trajectories: of the layout's spaces.
        layout: which column holds what; those of observation, action and reward are taken (C).
        lags: L.
    """
    rows, valid = layout.to_rows(trajectories.transitions(TRAJECTORY))
    rows = rows[:, : layout.blocks["reward"].stop]
    trajectory = np.repeat(np.arange(len(trajectories)), trajectories.lengths)
    found = np.full((lags, rows.shape[1]), np.nan)
    for lag in range(1, min(lags, len(rows) - 1) + 1):
        same = (trajectory[lag:] == trajectory[:-lag]) & valid[lag:] & valid[:-lag]
        if same.sum() >= 2:
            found[lag - 1] = _correlations(rows[:-lag][same], rows[lag:][same])
    return found


def _correlations(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    one, other = one - one.mean(axis=0), other - other.mean(axis=0)
    scale = np.sqrt((one**2).sum(axis=0) * (other**2).sum(axis=0))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlations: NDArray[np.float64] = (one * other).sum(axis=0) / scale
    return correlations
