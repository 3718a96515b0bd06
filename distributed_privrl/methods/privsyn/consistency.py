"""Noisy marginals that agree with each other, add up to one total, and have no negative cell.

All of it is post-processing of released counts.

Reference: PrivSyn, section 5.1 (weighted averages of what marginals have in common; Norm-Sub).
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.cleaning import norm_sub
from distributed_privrl.marginals.tables import Clique, Margin

_ROUNDS = 20
"""Times that agreement and no negative cells are restored in turn."""


def consistent(
    margins: Sequence[Margin],
    pairs: Mapping[Clique, NDArray[np.float64]],
    deviations: Mapping[Clique, float],
    total: float,
) -> tuple[list[NDArray[np.float64]], dict[Clique, NDArray[np.float64]]]:
    """Return each column's counts, and each pair's, without negative cells and nearly agreeing.

    Args:
        margins: of each column, from counts of its own.
        pairs: released joint counts.
        deviations: of the noise of a cell of each.
        total: of all rows.

    Returns:
        ``(K,)`` of each column, and of each pair of the shape that it had; all add up to ``total``.
    """
    singles = [norm_sub(one.masses, total) for one in margins]
    tables = {clique: table.astype(np.float64) for clique, table in pairs.items()}
    for _ in range(_ROUNDS):
        for place in range(len(margins)):
            singles[place] = _agreed(place, margins[place], tables, deviations, total)
        tables = {clique: norm_sub(table, total) for clique, table in tables.items()}
    return singles, tables


def _agreed(
    place: int,
    margin: Margin,
    tables: dict[Clique, NDArray[np.float64]],
    deviations: Mapping[Clique, float],
    total: float,
) -> NDArray[np.float64]:
    """Return the best counts of a column, and have all pairs with it agree, in place.

    They are the average of what is known of them, each weighed by the inverse of its variance.

    Reference: PrivSyn, equations 4 and 5.
    """
    precision = 1 / margin.deviations**2
    mean = margin.masses * precision
    own = [clique for clique in tables if place in clique]
    for clique in own:
        other = 1 - clique.index(place)
        table = tables[clique]
        weight = 1 / (deviations[clique] ** 2 * table.shape[other])
        mean, precision = mean + weight * table.sum(axis=other), precision + weight
    best = norm_sub(mean / precision, total)
    for clique in own:
        other = 1 - clique.index(place)
        table = tables[clique]
        lacking = np.expand_dims((best - table.sum(axis=other)) / table.shape[other], other)
        tables[clique] = table + lacking
    return best
