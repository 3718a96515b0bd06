"""A Markov random field over the bins of a table: its size, and its estimation.

Estimation is private-PGM's (McKenna, Sheldon and Miklau 2019).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.descent import descend
from distributed_privrl.marginals.loss import Loss, Measured
from distributed_privrl.marginals.tables import Clique, maximal

_FLOOR = 1e-4
"""Part of an even share that a cell has at least where estimation starts."""
_ITERATIONS, _LAST = 400, 1500
"""At most, between choices and of the model that rows are drawn from: cells of few rows come last.
"""


@dataclass(frozen=True, eq=False)
class Field:
    """A distribution over rows of bins: log-potentials of cliques.

    Args:
        sizes: bins of each column.
        potentials: of each clique, of the shape of its sizes.
        hidden: so many of the last columns explain others, and are no part of a row.
    """

    sizes: tuple[int, ...]
    potentials: Mapping[Clique, NDArray[np.float64]]
    hidden: int = 0


def estimated(
    sizes: Sequence[int],
    measured: Sequence[Measured],
    *,
    total: float,
    hidden: int = 0,
    progress: Progress = silent,
    last: bool = False,
) -> Field:
    """Return the field of the largest entropy whose sums are nearest to the measured ones.

    Args:
        sizes: bins of each column.
        measured: noisy sums; each column has one at least.
        total: weight of all rows.
        hidden: so many of the last columns are hidden.
        progress: told how many steps are behind, of those that it may take at most.
        last: rows are drawn from it for good: it may take longer.

    Mirror descent starts from the measured counts as a chain of conditionals, which is the answer
    already where cliques make a tree.

    Reference: McKenna, Sheldon and Miklau 2019, algorithm 1 (mirror descent); see `descent`.
    """
    loss = Loss(sizes, measured, total)
    start = _factorised(measured)
    potentials = {one: np.zeros([sizes[i] for i in one]) for one in maximal(start)}
    found = descend(
        loss,
        np.concatenate([start.pop(one.clique, 0 * one.counts).ravel() for one in measured]),
        most=_LAST if last else _ITERATIONS,
        progress=progress,
    )
    for one, span in zip(measured, loss.spans, strict=True):
        home = next(clique for clique in potentials if set(one.clique) <= set(clique))
        extents = [sizes[i] if i in one.clique else 1 for i in home]
        potentials[home] += found[span].reshape(extents)
    return Field(tuple(sizes), potentials, hidden=hidden)


def _factorised(measured: Sequence[Measured]) -> dict[Clique, NDArray[np.float64]]:
    """Return log-potentials of a chain: each clique's new columns given its old ones.

    The next one is the clique that tells most of its new columns, as in a tree of the largest
    mutual information.

    Reference: Chow and Liu 1968.
    """
    potentials: dict[Clique, NDArray[np.float64]] = {}
    known: set[int] = set()
    left = {one.clique: np.maximum(one.counts, 0.0) for one in measured}
    while left:
        clique = max(left, key=lambda one: (bool(set(one) - known), _told(one, left[one], known)))
        counts = left.pop(clique)
        shares = np.maximum(counts / max(float(counts.sum()), 1e-300), _FLOOR / counts.size)
        new = tuple(axis for axis, column in enumerate(clique) if column not in known)
        if new:
            potentials[clique] = np.log(shares) - np.log(shares.sum(axis=new, keepdims=True))
        else:
            potentials[clique] = np.zeros(counts.shape)
        known |= set(clique)
    return potentials


def _told(clique: Clique, counts: NDArray[np.float64], known: Collection[int]) -> float:
    """Return what a clique's old columns, and its new ones together, tell of its new ones: nats."""
    total = max(float(counts.sum()), 1e-300)

    def entropy(axes: Collection[int]) -> float:
        """Return that of the columns at these axes."""
        others = tuple(axis for axis in range(counts.ndim) if axis not in axes)
        shares = np.maximum(counts.sum(axis=others) / total, 1e-300)
        return float(-(shares * np.log(shares)).sum())

    new = [axis for axis, column in enumerate(clique) if column not in known]
    old = [axis for axis, column in enumerate(clique) if column in known]
    return sum(entropy([axis]) for axis in new) + entropy(old) - entropy(range(counts.ndim))
