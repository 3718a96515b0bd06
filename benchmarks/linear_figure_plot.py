"""The plot of figure 1: suboptimality against episodes, both instances."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

Line = tuple[str, str, float | None]
"""Constants, method and rho of a line."""

_COLOURS = {None: "#444444", 0.1: "#c2352b", 1.0: "#d1782c", 5.0: "#4c9a5b", 25.0: "#3b6fb6"}


def plot(
    rows: Sequence[Mapping[str, Any]],
    panels: Mapping[str, Sequence[Line]],
    *,
    levels: Mapping[str, float],
) -> bytes:
    """Return a PNG: a row of panels for each instance.

    Args:
        rows: of the table, with ``K=...`` columns.
        panels: titles and their lines.
        levels: suboptimality of the behaviour policy, by instance.
    """
    figure = Figure(figsize=(4.2 * len(panels), 3.4 * len(levels)), layout="constrained")
    grid = figure.subplots(len(levels), len(panels), squeeze=False, sharex=True, sharey=True)
    for (instance, level), axes_of_row in zip(levels.items(), grid, strict=True):
        for (title, lines), axes in zip(panels.items(), axes_of_row, strict=True):
            for constants, method, budget in lines:
                wanted = {"constants": constants, "method": method, "rho": budget}
                wanted["instance"] = instance
                row = next(r for r in rows if all(r[key] == wanted[key] for key in wanted))
                counts = [int(key[2:]) for key in row if key.startswith("K=")]
                axes.plot(
                    counts,
                    [row[f"K={count}"] for count in counts],
                    color=_COLOURS[budget],
                    linestyle="--" if "PEVI" in method and "DP" not in method else "-",
                    marker="o" if method.endswith("ours") else None,
                    markersize=3,
                    label=method if budget is None else f"{method}, rho = {budget:g}",
                )
            axes.axhline(level, color="#bbbbbb", linewidth=0.8, label="behaviour policy")
            axes.set_xscale("log")
            axes.set_title(f"instance {instance}: {title}", fontsize=9)
            axes.set_xlabel("episodes K", fontsize=8)
            axes.legend(fontsize=6)
        axes_of_row[0].set_ylabel("suboptimality", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, metadata={"Software": None})
    return buffer.getvalue()
