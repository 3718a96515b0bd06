"""Figures of the reports, each returned as a self-contained SVG or PNG file in bytes.

A figure shows what it is given: one drawn from sensitive rows belongs into ``private/``.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.layout import category_of, grouped_columns
from distributed_privrl.environments import MazeLayout
from distributed_privrl.evaluation.embedding import Embedding
from distributed_privrl.evaluation.returns import LearningCurve
from distributed_privrl.evaluation.roc import Roc

ImageFormat = Literal["svg", "png"]

_COLOURS = ("#3b6fb6", "#d1782c", "#4c9a5b", "#a44a8f", "#7a6a55")
_KEPT = ("real", "synthetic")
"""What has the same colours in every figure: the first ones."""
_MOST_BARS = 12
"""Values of a category that have a bar with their name each; of more, the outline is drawn."""
_LONGEST_VALUE = 14
_MOST_NAMES = 60
"""Of columns, that a heat map writes beside it; of more, every second, third, ..."""
_LARGEST = 0.35 * _MOST_NAMES
"""Side of a heat map in inches."""
_BINS = 50
_POINTS = 4000
_VEIL = 0.75
"""How opaque the white over what is not sure is."""


def column_histograms(
    rows: Mapping[str, NDArray[Any]], names: Sequence[str], *, image_format: ImageFormat = "svg"
) -> bytes:
    """Return one histogram a column, all datasets over each other on the same bins.

    The one-hot columns of a category share one panel, which shows how often each value is met: as
    many panels as a row has numbers and categories, however many values these have.

    Args:
        rows: (N, D) rows of each dataset, by the name in the legend.
        names: (D,) names of the columns.
        image_format: svg or png.

    Raises:
        ConfigError: no dataset, or rows of another width than ``names``.
    """
    for label, values in rows.items():
        _check_columns(label, values, names)
    if not rows:
        raise ConfigError("rows must hold at least one dataset, got none")
    groups = grouped_columns(names)
    across = min(4, len(groups))
    down = math.ceil(len(groups) / across)
    figure = Figure(figsize=(2.6 * across, 1.9 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False).flat
    for panel, (name, columns) in enumerate(groups):
        parts = {label: values[:, columns] for label, values in rows.items()}
        if columns.stop - columns.start > 1:
            labels = [category_of(own)[1] for own in names[columns]]
            _category_shares(grid[panel], parts, labels)
        else:
            _number_histogram(grid[panel], parts)
        grid[panel].set_title(name, fontsize=9)
        grid[panel].tick_params(labelsize=7)
        grid[panel].set_yticks([])
    for axes in grid[len(groups) :]:
        axes.remove()
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return render(figure, image_format)


def _number_histogram(axes: Axes, parts: Mapping[str, NDArray[Any]]) -> None:
    finite = {label: values[np.isfinite(values[:, 0]), 0] for label, values in parts.items()}
    bins = np.histogram_bin_edges(np.concatenate([*finite.values()]), bins=_BINS)
    for (label, values), colour in zip(finite.items(), colours_of(finite), strict=True):
        counts = np.histogram(values, bins)[0] / np.diff(bins) / max(len(values), 1)
        axes.stairs(counts, bins, color=colour, label=label)


def _category_shares(axes: Axes, parts: Mapping[str, NDArray[Any]], labels: Sequence[str]) -> None:
    places, width = np.arange(len(labels)), 0.8 / len(parts)
    for number, ((label, values), colour) in enumerate(
        zip(parts.items(), colours_of(parts), strict=True)
    ):
        shares = values.mean(axis=0) if len(values) else np.zeros(len(labels))
        if len(labels) > _MOST_BARS:
            axes.stairs(shares, np.arange(len(labels) + 1) - 0.5, color=colour, label=label)
        else:
            shift = (number - (len(parts) - 1) / 2) * width
            axes.bar(places + shift, shares, width, color=colour, label=label)
    if len(labels) <= _MOST_BARS:
        texts = [text[:_LONGEST_VALUE] for text in labels]
        axes.set_xticks(places, texts, rotation=90 if max(map(len, texts)) > 2 else 0)


def maze_positions(
    positions: Mapping[str, NDArray[Any]],
    layout: MazeLayout | None = None,
    *,
    image_format: ImageFormat = "png",
) -> bytes:
    """Return where each dataset has been in a maze, side by side.

    Args:
        positions: (N, 2) x and y in metres of each dataset, by name; the first 4,000 are drawn.
        layout: walls and goal to draw; none without.
        image_format: svg or png.

    Raises:
        ConfigError: no dataset, or positions that are not (N, 2).
    """
    if not positions:
        raise ConfigError("positions must hold at least one dataset, got none")
    figure = Figure(figsize=(3.6 * len(positions), 3.6), layout="constrained")
    grid = figure.subplots(1, len(positions), squeeze=False, sharex=True, sharey=True).flat
    for axes, (label, points), colour in zip(
        grid, positions.items(), colours_of(positions), strict=True
    ):
        _check_columns(label, points, ("x", "y"))
        if layout is not None:
            draw_maze(axes, layout)
        shown = points[:_POINTS]
        axes.scatter(
            shown[:, 0], shown[:, 1], s=4, color=colour, alpha=0.5, linewidths=0, rasterized=True
        )
        axes.set_title(label, fontsize=10)
        axes.set_aspect("equal")
    return render(figure, image_format)


def learning_curves(
    curves: Mapping[str, Sequence[LearningCurve]],
    *,
    ylabel: str = "mean return",
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return the mean of each group's curves over gradient steps, and the range of its seeds.

    Args:
        curves: training runs that differ in their seed alone, by the name in the legend.
        ylabel: what the vertical axis shows.
        image_format: svg or png.

    Raises:
        ConfigError: no group, an empty one, or curves of a group with different steps.
    """
    if not curves:
        raise ConfigError("curves must hold at least one group, got none")
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for (label, group), colour in zip(curves.items(), colours_of(curves), strict=True):
        if len({curve.steps for curve in group}) != 1:
            raise ConfigError(f"curves of {label!r} must share their steps and hold one at least")
        means = np.array([[returns.mean for returns in curve.returns] for curve in group])
        steps = group[0].steps
        axes.plot(steps, means.mean(axis=0), color=colour, label=label)
        axes.fill_between(
            steps, means.min(axis=0), means.max(axis=0), color=colour, alpha=0.2, linewidth=0
        )
    axes.set_xlabel("gradient steps")
    axes.set_ylabel(ylabel)
    axes.legend()
    return render(figure, image_format)


def pair_differences(
    differences: NDArray[Any],
    names: Sequence[str],
    *,
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return a heat map of a difference, from -1 to 1, for each pair of columns.

    Args:
        differences: (D, D).
        names: (D,) names of the columns.
        image_format: svg or png.

    Raises:
        ConfigError: no table of that many columns.
    """
    if differences.shape != (len(names), len(names)):
        raise ConfigError(
            f"differences must be {len(names)} x {len(names)}, got {differences.shape}"
        )
    side = min(max(3.6, 0.35 * len(names)), _LARGEST)
    figure = Figure(figsize=(side + 1, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(differences, cmap="RdBu", vmin=-1, vmax=1)
    places = range(0, len(names), math.ceil(len(names) / _MOST_NAMES))
    shown = [names[place] for place in places]
    axes.set_xticks(places, shown, rotation=90, fontsize=7)
    axes.set_yticks(places, shown, fontsize=7)
    figure.colorbar(image, ax=axes, shrink=0.8)
    return render(figure, image_format)


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedShares:
    """Shares of the cells of two columns, on two sides.

    Args:
        names: of the columns.
        labels: of each column's cells, K and L.
        real: (K, L), of the sensitive rows, with noise.
        released: (K, L), of the released ones.
    """

    names: tuple[str, str]
    labels: tuple[Sequence[str], Sequence[str]]
    real: NDArray[np.float64]
    released: NDArray[np.float64]


def paired_shares(pairs: Sequence[PairedShares], *, image_format: ImageFormat = "svg") -> bytes:
    """Return heat maps of the shares of pairs of columns, noisy ones beside released ones.

    Args:
        pairs: at least one.
        image_format: svg or png.
    """
    figure = Figure(figsize=(7.2, 3.0 * len(pairs)), layout="constrained")
    for axes, pair in zip(figure.subplots(len(pairs), 2, squeeze=False), pairs, strict=True):
        most = max(float(pair.real.max()), float(pair.released.max()))
        for ax, side, title in zip(
            axes, (pair.real, pair.released), ("sensitive, with noise", "released"), strict=True
        ):
            image = ax.imshow(side, cmap="viridis", vmin=0, vmax=most, aspect="auto")
            ax.set_title(title, fontsize=8)
            ax.set_yticks(range(len(pair.labels[0])), pair.labels[0], fontsize=6)
            ax.set_xticks(range(len(pair.labels[1])), pair.labels[1], fontsize=6, rotation=90)
            ax.set_ylabel(pair.names[0], fontsize=8)
            ax.set_xlabel(pair.names[1], fontsize=8)
        figure.colorbar(image, ax=axes, shrink=0.8)
    return render(figure, image_format)


def value_map(
    values: NDArray[Any],
    *,
    sure: NDArray[np.bool_] | None = None,
    ylabel: str = "time step",
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return a heat map of the value of each state at each time step, with its colour bar.

    Args:
        values: (T, S).
        sure: (T, S), the others are pale; None: all are.
        ylabel: what the rows are.
        image_format: svg or png.

    Raises:
        ConfigError: not a table, or ``sure`` is of another shape.
    """
    if values.ndim != 2 or not values.size:
        raise ConfigError(f"values must be (T, S), got shape {values.shape}")
    if sure is not None and sure.shape != values.shape:
        raise ConfigError(f"sure must be {values.shape}, got shape {sure.shape}")
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, aspect="auto", cmap="viridis", interpolation="nearest")
    if sure is not None:
        veil = np.ones((*values.shape, 4))
        veil[..., 3] = np.where(sure, 0.0, _VEIL)
        axes.imshow(veil, aspect="auto", interpolation="nearest")
    axes.set_xlabel("state")
    axes.set_ylabel(ylabel)
    figure.colorbar(image, ax=axes, label="value")
    return render(figure, image_format)


def lines_with_spread(
    lines: Mapping[str, Mapping[float, Sequence[float]]],
    *,
    xlabel: str,
    ylabel: str,
    levels: Mapping[str, float] | None = None,
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return the mean and the range of several runs over a logarithmic axis.

    Args:
        lines: by the name in the legend: x to the figures of each run.
        xlabel: what the horizontal axis shows.
        ylabel: what the vertical axis shows.
        levels: horizontal lines by name.
        image_format: svg or png.

    Raises:
        ConfigError: nothing to draw.
    """
    if not lines or not all(lines.values()):
        raise ConfigError("lines must hold at least one line of one point")
    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for (label, points), colour in zip(lines.items(), colours_of(lines), strict=True):
        places = sorted(points)
        runs = [np.asarray(points[place], dtype=np.float64) for place in places]
        axes.plot(places, [run.mean() for run in runs], color=colour, label=label, marker=".")
        axes.fill_between(
            places,
            [run.min() for run in runs],
            [run.max() for run in runs],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    for style, (label, level) in zip(("--", ":", "-."), (levels or {}).items(), strict=False):
        axes.axhline(level, linestyle=style, color="#555555", linewidth=1, label=label)
    axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.legend(fontsize=8)
    return render(figure, image_format)


def embedded_points(embedding: Embedding, *, image_format: ImageFormat = "png") -> bytes:
    """Return the points of each dataset in the plane, over each other.

    Args:
        embedding: the points; the first 4,000 of each dataset are drawn.
        image_format: svg or png.
    """
    figure = Figure(figsize=(5.6, 4.8), layout="constrained")
    axes = figure.subplots()
    for (label, points), colour in zip(
        embedding.points.items(), colours_of(embedding.points), strict=True
    ):
        shown = points[:_POINTS]
        axes.scatter(
            shown[:, 0], shown[:, 1], s=5, color=colour, alpha=0.4, linewidths=0, label=label
        )
    axes.set_xlabel(embedding.axes[0])
    axes.set_ylabel(embedding.axes[1])
    axes.legend(markerscale=3)
    return render(figure, image_format)


def roc_curves(curves: Mapping[str, Roc], *, image_format: ImageFormat = "svg") -> bytes:
    """Return receiver operating characteristics on logarithmic axes, guessing dashed.

    Args:
        curves: by the name in the legend.
        image_format: svg or png.

    Raises:
        ConfigError: no curve.
    """
    if not curves:
        raise ConfigError("curves must hold at least one ROC, got none")
    figure = Figure(figsize=(4.8, 4.4), layout="constrained")
    axes = figure.subplots()
    lowest = 1e-3
    axes.plot([lowest, 1], [lowest, 1], linestyle="--", color="#555555", label="guessing")
    for (label, roc), colour in zip(curves.items(), colours_of(curves), strict=True):
        axes.step(
            np.maximum(roc.false_positive_rates, lowest),
            np.maximum(roc.true_positive_rates, lowest),
            where="post",
            color=colour,
            label=label,
        )
    axes.set(xscale="log", yscale="log", xlim=(lowest, 1), ylim=(lowest, 1))
    axes.set_xlabel("false-positive rate")
    axes.set_ylabel("true-positive rate")
    axes.legend(loc="lower right")
    return render(figure, image_format)


def draw_maze(axes: Axes, layout: MazeLayout) -> None:
    """Draw walls and goal."""
    height, width = np.asarray(layout.cells.shape) * layout.scaling
    extent = (-width / 2, width / 2, -height / 2, height / 2)
    axes.imshow(layout.cells, cmap="Greys", vmin=0, vmax=4, extent=extent, interpolation="nearest")
    axes.plot(*layout.goal, marker="*", markersize=12, color="#c2352b", zorder=3)


def _check_columns(label: str, rows: NDArray[Any], names: Sequence[str]) -> None:
    if rows.ndim != 2 or rows.shape[1] != len(names):
        raise ConfigError(f"{label} must have {len(names)} columns, got shape {rows.shape}")


def colours_of(labels: Iterable[str]) -> list[str]:
    """Return the colour of each label: real and synthetic rows have theirs in every figure."""
    every = list(labels)
    begin = len(_KEPT) if any(label in _KEPT for label in every) else 0
    others = iter([*_COLOURS[begin:], *_COLOURS] * len(every))
    return [_COLOURS[_KEPT.index(label)] if label in _KEPT else next(others) for label in every]


def colours(count: int) -> list[str]:
    """Return ``count`` colours, the same ones again if there are too few."""
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]


def render(figure: Figure, image_format: ImageFormat) -> bytes:
    """Return the file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if image_format == "svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": "privrl"}):
        figure.savefig(buffer, format=image_format, dpi=110, metadata=metadata)
    return buffer.getvalue()
