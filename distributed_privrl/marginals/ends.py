"""What lengths of trajectories say of times, first steps and ends; post-processing."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.steps import steps_and_last_ones
from distributed_privrl.marginals.tables import Clique

_SWEEPS = 20
"""Of proportional fitting; where lengths allow no end, it does not meet noisy counts of ends."""
_NOTHING = 1e-12
"""Part of all steps below which a time, or what goes with it, has none."""


def told_by_lengths(
    columns: TableColumns,
    place: int,
    noisy: NDArray[np.float64],
    lengths: NDArray[np.float64],
    shapes: Sequence[ColumnShape],
    *,
    total: float,
) -> NDArray[np.float64] | None:
    """Return what lengths of trajectories say of a column's categories; None: nothing.

    Every trajectory has a first step, which nothing was done before, and a last one. Noise hides
    them where there are few people, and a step at a time that is not there, or after nothing, is
    drawn from nothing.

    Args:
        columns: of the table.
        place: of the column.
        noisy: its released counts.
        lengths: ``(G,)`` see `steps_and_last_ones`; none: nobody counted them.
        shapes: of the columns before it.
        total: weight of all rows.
    """
    column = columns[place]
    if column.cells is not None or not len(lengths) or lengths.sum() <= 0:
        return None
    (time,) = columns.of("time")
    steps, last = steps_and_last_ones(
        lengths, columns.longest, columns[time].size, alike=columns.alike
    )
    shares = steps / steps.sum()
    if column.part == "time":
        return np.asarray(total * shares)
    if column.part == "end":
        ended = float(last.sum() / steps.sum())
        kinds = np.arange(1, column.size) == 1 + int(np.argmax(noisy[1:]))
        return np.asarray(total * np.append(1 - ended, ended * kinds))
    if column.part == "previous":
        earlier = shapes[columns.of("action")[columns.of("previous").index(place)]].masses
        rest = (1 - shares[0]) * earlier / earlier.sum()
        return np.asarray(total * np.append(rest, shares[0]))
    return None


def told_in_time(
    columns: TableColumns,
    shapes: Sequence[ColumnShape],
    lengths: NDArray[np.float64],
    *,
    total: float,
) -> dict[Clique, Measured]:
    """Return what lengths of trajectories say of times together with ends, and with first steps.

    Trajectories end at the time that their length says, and nothing was done before the first step
    alone. A unit is taken to have as many trajectories as it usually has. The tables are brought to
    what was counted of each column.

    Args:
        columns: of the table.
        shapes: of each column.
        lengths: ``(G,)`` see `steps_and_last_ones`; none: nobody counted them.
        total: weight of all rows.

    Returns:
        by the cliques of two columns that are `told`; empty where nothing is known.
    """
    if not len(lengths) or lengths.sum() <= 0:
        return {}
    (time,) = columns.of("time")
    steps, last = steps_and_last_ones(
        lengths, columns.longest, columns[time].size, alike=columns.alike
    )
    found: dict[Clique, Measured] = {}
    for place in columns.of("end", "previous"):
        if not is_told(columns, place, time):
            continue
        own = _masses(shapes[place], total)
        if columns[place].part == "end":
            table = np.outer(own, last / max(float(own[1:].sum()), 1e-300))
            table[0] = steps - last
        else:
            table = np.outer(own, steps)
            table[-1] = 0.0
            table[:, 0] = np.where(np.arange(len(own)) == len(own) - 1, steps[0], 0.0)
        wanted = (own, _masses(shapes[time], total))
        for _ in range(_SWEEPS):
            for axis, masses in enumerate(wanted):
                now = table.sum(axis=1 - axis)
                least = _NOTHING * table.sum()
                factor = np.divide(masses, now, out=np.zeros_like(now), where=now > least)
                table = table * np.expand_dims(factor, 1 - axis)
        if table.sum() <= 0:  # noise has made lengths and times contradict each other
            continue
        deviation = max(shapes[i].deviation for i in (place, time))
        shares = table / table.sum()
        clique = (place, time) if place < time else (time, place)
        counts = total * (shares if place < time else shares.T)
        found[clique] = Measured(clique, counts, deviation)
    return found


def is_told(columns: TableColumns, one: int, other: int) -> bool:
    """Say whether lengths tell how two columns go together: time, and an end or what was before."""
    if not columns.longest:
        return False
    parts = {columns[i].part: columns[i] for i in (one, other)}
    if "time" not in parts:
        return False
    return "end" in parts or ("previous" in parts and parts["previous"].cells is None)


def _masses(shape: ColumnShape, total: float) -> NDArray[np.float64]:
    return np.asarray(shape.bin_masses * (total / shape.bin_masses.sum()))
