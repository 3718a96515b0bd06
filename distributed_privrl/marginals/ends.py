"""What lengths of trajectories say of the times at which they end; post-processing."""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import SHARED, Bins
from distributed_privrl.marginals.model import Measured
from distributed_privrl.marginals.steps import steps_and_last_ones
from distributed_privrl.marginals.tables import Clique

_SWEEPS = 20
"""Of proportional fitting; where lengths allow no end, it does not meet noisy counts of ends."""


def ends_in_time(bins: Bins, lengths: NDArray[np.float64]) -> dict[Clique, Measured]:
    """Return what lengths of trajectories say of ends and times, which are not counted together.

    A unit is taken to have as many trajectories as it usually has. The table is brought to what was
    counted of both columns.

    Args:
        bins: of a table's columns.
        lengths: ``(G,)`` see `steps_and_last_ones`; none: nobody counted them.

    Returns:
        by the clique of the two columns; empty where nothing is known.
    """
    columns = bins.columns
    places = (*columns.of("end"), *columns.of("time"))
    if len(places) < 2 or lengths.sum() <= 0:
        return {}
    (end, time), sizes = places, bins.sizes
    steps, last = steps_and_last_ones(
        lengths, columns.longest, columns[time].size, alike=columns.alike
    )
    wanted = [bins.own_margin(place).masses for place in places]
    kinds = wanted[0].copy()
    kinds[bins.shapes[end].bins[0]] = 0
    table = np.zeros((sizes[end], sizes[time]))
    for group, place in enumerate(bins.shapes[time].bins):
        table[:, place] += last[group] * kinds / max(float(kinds.sum()), 1e-300)
        table[bins.shapes[end].bins[0], place] += steps[group] - last[group]
    for _ in range(_SWEEPS):
        for axis, masses in enumerate(wanted):
            now = table.sum(axis=1 - axis)
            factor = np.divide(masses, now, out=np.zeros_like(now), where=now > 0)
            table *= np.expand_dims(factor, 1 - axis)
    deviation = SHARED * max(bins.shapes[place].deviation for place in places)
    clique = (end, time)
    if end > time:
        clique, table = (time, end), table.T
    return {clique: Measured(clique, bins.total * table / table.sum(), deviation)}
