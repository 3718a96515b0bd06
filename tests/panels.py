"""Figures of one panel, where nobody looks at them: making panels takes most of their time."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure


def one_panel(
    figure: Figure, rows: int = 1, columns: int = 1, *, squeeze: bool = True, **_: object
) -> Any:
    """Return one panel in all places: what is undrawn is made of panels for the most part."""
    panel = figure.add_subplot()
    panel.remove = lambda: None  # type: ignore[method-assign]
    grid = np.full((rows, columns), panel, dtype=object)
    return panel if squeeze and grid.size == 1 else grid.squeeze() if squeeze else grid


class OnePanelled(Figure):
    """A figure whose panels are one."""

    subplots = one_panel
