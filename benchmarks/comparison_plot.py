"""The picture of the comparison: epsilon against what is kept, a panel a table and a measure."""

import io
from collections.abc import Mapping

import matplotlib
from matplotlib.figure import Figure

Panel = tuple[str, str]
"""Table and measure."""
_TITLES = {
    "association gap": "gap of pairs (0 at best)",
    "area s, a, r": "classifier's area (.5 at best)",
    "exact value": "survival, exact",
    "grid points": "grid judge, points of 100",
}


def plot(
    series: Mapping[Panel, Mapping[str, Mapping[float, float]]], *, levels: Mapping[Panel, float]
) -> bytes:
    """Return an SVG: a row of panels for each table; the same figures give the same bytes.

    Args:
        series: points of each method by panel: epsilon to a figure.
        levels: what fresh real rows have, by panel.
    """
    tables = list(dict.fromkeys(table for table, _ in series)) or ["no table"]
    names = {table: [name for one, name in series if one == table] for table in tables}
    methods = list(dict.fromkeys(method for lines in series.values() for method in lines))
    columns = max(1, *(len(found) for found in names.values()))
    figure = Figure(figsize=(3.4 * columns, 2.6 * len(tables) + 0.5), layout="constrained")
    grid = figure.subplots(len(tables), columns, squeeze=False)
    colours = matplotlib.colormaps["tab10"]
    for table, axes_of_row in zip(tables, grid, strict=True):
        for axes in axes_of_row[len(names[table]) :]:
            axes.set_axis_off()
        for name, axes in zip(names[table], axes_of_row, strict=False):
            for method, points in series[table, name].items():
                at = sorted(points)
                heights = [points[epsilon] for epsilon in at]
                index = methods.index(method)
                axes.plot(
                    at, heights, color=colours(index), marker="osD^vPXh"[index % 8], label=method
                )
            if (level := levels.get((table, name))) is not None:
                axes.axhline(level, color="#888888", linewidth=0.8, label="fresh real rows")
            axes.set_xscale("log")
            at = sorted({epsilon for points in series[table, name].values() for epsilon in points})
            axes.set_xticks(at, [f"{epsilon:g}" for epsilon in at])
            axes.minorticks_off()
            axes.set_title(f"{table}: {_TITLES.get(name, name)}", fontsize=8)
            axes.set_xlabel("epsilon", fontsize=7)
            axes.tick_params(labelsize=7)
    handles = {
        label: handle
        for axes in grid.flat
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=5, fontsize=7)
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "comparison", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
