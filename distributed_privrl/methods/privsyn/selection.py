"""DenseMarg: which pairs of columns are measured, by how far they are from unrelated.

Reference: Zhang, Wang, Li, Honorio, Backes, He, Chen and Zhang 2021 (PrivSyn), section 4.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.tables import Clique

FINEST_WEIGHT = 2**12
"""Weights of joint counts are whole numbers whose squares add up to at most the square of this."""


def pairs_of(columns: TableColumns, sizes: Sequence[int], most_cells: int) -> list[Clique]:
    """Return the pairs of columns that may be measured.

    Args:
        columns: of the table; unused ones are left out.
        sizes: bins of each column.
        most_cells: of a joint count.
    """
    places = [i for i in range(len(columns)) if i not in columns.unused]
    pairs = itertools.combinations(places, 2)
    return [one for one in pairs if sizes[one[0]] * sizes[one[1]] <= most_cells]


def independent_difference(counts: NDArray[np.int64], expected: NDArray[np.int64]) -> int:
    """Return how far a pair's joint count is from that of unrelated columns, in L1.

    Args:
        counts: exact, of the pair's cells: raw private data.
        expected: of unrelated columns, by released counts of each; public.

    Privacy: it moves by as much as the cells do in L1: by `UNIT_WEIGHT` where a unit is added or
    taken away. The paper's InDif takes the product of exact columns, and moves by 4 times that.

    Reference: PrivSyn, definition 2 and lemma 3.
    """
    return int(np.abs(counts - expected).sum())


def dense_pairs(
    differences: NDArray[np.float64], cells: NDArray[np.int64], deviation: float
) -> list[int]:
    """Return which pairs to measure, the most useful first.

    A pair that is not measured is off by its difference; one that is, by its noise, of which all
    have the more, the more are measured. Each next pair is the one that lowers the sum most.

    Args:
        differences: ``(m,)``, released, of each pair.
        cells: ``(m,)`` of each pair's joint count.
        deviation: of a cell's noise if one pair had all of the budget.

    Reference: PrivSyn, algorithm 1 (greedy) and equation 3 (the best allocation, by cells^(2/3)).
    """
    sizes = cells.astype(np.float64) ** (2 / 3)
    of_noise = math.sqrt(2 / math.pi) * deviation
    chosen: list[int] = []
    taken, error = 0.0, 0.0
    open_ = np.ones(len(cells), np.bool_)
    while open_.any():
        noise = of_noise * (taken + sizes) ** 1.5
        change = np.where(open_, noise - of_noise * taken**1.5 - differences, math.inf)
        best = int(np.argmin(change))
        if change[best] >= 0:
            break
        chosen.append(best)
        taken, error = taken + float(sizes[best]), error + float(change[best])
        open_[best] = False
    return chosen


def weights_of(cells: NDArray[np.int64]) -> list[int]:
    """Return the weight ``w`` of each joint count, whose noise is that of all divided by ``w``.

    The more cells, the more of the budget: shares by cells^(2/3), which has the least noise in all.

    Args:
        cells: ``(k,)``.

    Returns:
        whole numbers of at least 0; their squares add up to `FINEST_WEIGHT`^2 at most.

    Reference: PrivSyn, equation 3.
    """
    shares = cells.astype(np.float64) ** (2 / 3)
    shares /= shares.sum()
    return [int(one) for one in np.floor(FINEST_WEIGHT * np.sqrt(shares))]
