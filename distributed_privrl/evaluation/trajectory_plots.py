"""Figures of whole trajectories: their paths in a maze, and how long their columns remember."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments import MazeLayout
from distributed_privrl.evaluation.plots import ImageFormat, colours, colours_of, draw_maze, render

_PATHS = 30


def maze_paths(
    trajectories: Mapping[str, Trajectories],
    layout: MazeLayout | None = None,
    *,
    image_format: ImageFormat = "png",
) -> bytes:
    """Return the paths of each dataset in a maze, side by side, a dot where each begins.

    Args:
        trajectories: by the name of their dataset; x and y are the first two observations, and the
            first 30 paths are drawn.
        layout: walls and goal to draw; none without.
        image_format: svg or png.

    Raises:
        ConfigError: no dataset.
    """
    if not trajectories:
        raise ConfigError("trajectories must hold at least one dataset, got none")
    figure = Figure(figsize=(3.6 * len(trajectories), 3.6), layout="constrained")
    grid = figure.subplots(1, len(trajectories), squeeze=False, sharex=True, sharey=True).flat
    for axes, (label, some) in zip(grid, trajectories.items(), strict=True):
        if layout is not None:
            draw_maze(axes, layout)
        shown = min(_PATHS, len(some))
        for k, colour in enumerate(colours(shown)):
            path = some.observations[some.offsets[k] + k : some.offsets[k + 1] + k + 1, :2]
            axes.plot(*path.T, color=colour, linewidth=0.8, alpha=0.7)
            axes.plot(*path[0], color=colour, marker=".", markersize=4)
        axes.set_title(label, fontsize=10)
        axes.set_aspect("equal")
    return render(figure, image_format)


def autocorrelations(
    curves: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    *,
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return the autocorrelation of each column over the lag, all datasets over each other.

    Args:
        curves: (L, C) of lags 1 to L, by the name in the legend; NaN is left out.
        names: (C,) of the columns.
        image_format: svg or png.

    Raises:
        ConfigError: no dataset, or a width other than that of ``names``.
    """
    if not curves or any(values.shape[1] != len(names) for values in curves.values()):
        raise ConfigError(f"curves must hold at least one dataset, each of {len(names)} columns")
    across = min(4, len(names))
    down = math.ceil(len(names) / across)
    figure = Figure(figsize=(2.6 * across, 1.9 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True).flat
    for column, name in enumerate(names):
        for (label, values), colour in zip(curves.items(), colours_of(curves), strict=True):
            lags = np.arange(1, len(values) + 1)
            grid[column].plot(lags, values[:, column], color=colour, label=label)
        grid[column].set_title(name, fontsize=9)
        grid[column].tick_params(labelsize=7)
        grid[column].set_ylim(-1.05, 1.05)
    for axes in grid[len(names) :]:
        axes.remove()
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return render(figure, image_format)
