"""A Markov random field over the bins of a table: its size, and its estimation.

Estimation is private-PGM's (McKenna, Sheldon and Miklau 2019), by the library mbi.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.descent import EVALUATIONS, descent, squared_misses
from distributed_privrl.marginals.estimation_backend import backend
from distributed_privrl.marginals.tables import Clique

ESTIMATING = "estimating the model"
"""Of released counts: what the progress bar is called."""
_FLOOR = 1e-4
"""Part of an even share that a cell has at least where estimation starts."""
_ITERATIONS, _LAST = 400, 1500
"""At most, between choices and of the model that rows are drawn from: cells of few rows come last.
"""
_TOLERANCE, _PATIENCE = 1e-6, 4
"""Part of the loss that mbi's blocks of 50 evaluations must find, and how often they may not."""


@dataclass(frozen=True, eq=False)
class Measured:
    """Noisy sums over cells of one clique.

    Args:
        clique: its columns.
        counts: of its cells, of the shape of the clique's sizes.
        deviations: of their noise, of the same shape, or one for all.
        lines: how much of each bin of each column is in each part, ``(K, P)``, where parts were
            counted; ``deviations`` are those of parts then.
    """

    clique: Clique
    counts: NDArray[np.float64]
    deviations: NDArray[np.float64] | float
    lines: tuple[NDArray[np.float64], ...] = ()


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


class _Whole(NamedTuple):
    """All cells, flat: a query, whose numbers are arguments of what is compiled."""

    def __call__(self, factor: Any) -> Any:
        return factor.datavector()

    def op_norm_sq(self) -> float:
        """Return the squared norm of the query."""
        return 1.0


class _Weighted(NamedTuple):
    """All cells, flat, by their weights: a query.

    Args:
        weights: of cells.
    """

    weights: Any

    def __call__(self, factor: Any) -> Any:
        return factor.datavector() * self.weights

    def op_norm_sq(self) -> float:
        """Return the squared norm of the query."""
        return float(np.max(np.asarray(self.weights) ** 2))


class _Parts(NamedTuple):
    """Sums over parts, of which each bin has a share: a query.

    What is found to be off in a part moves its bins by their shares, and so along straight lines;
    see `spreading`.

    Args:
        lines: ``(K, P)`` of each column.
    """

    lines: tuple[Any, ...]

    def __call__(self, factor: Any) -> Any:
        return self.of(factor.values)

    def of(self, table: Any) -> Any:
        """Return the sums of a table of bins, flat."""
        for line in self.lines:  # the first axis goes, and comes back as the last one
            table = (table.reshape(len(line), -1).T @ line).reshape(*table.shape[1:], -1)
        return table.reshape(-1)

    def op_norm_sq(self) -> float:
        """Return the squared norm of the query."""
        return float(np.prod([np.linalg.norm(line, 2) ** 2 for line in self.lines]))


def elimination(
    sizes: Sequence[int], cliques: Iterable[Clique], *, last: Collection[int] = ()
) -> tuple[list[tuple[int, Clique]], int]:
    """Return a greedy order in which columns are summed out, and how many cells that takes.

    Args:
        sizes: bins of each column.
        cliques: of the model.
        last: columns that are summed out after all others.

    Returns:
        each column with those it depends on, the first to be summed out first (drawn last); and the
        cells of all tables together.
    """
    neighbours: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for clique in cliques:
        for one in clique:
            neighbours[one] |= set(clique) - {one}
    order, cells = [], 0
    left = set(neighbours)

    def cost(one: int) -> tuple[int, int]:
        return math.prod(sizes[i] for i in (one, *neighbours[one])), one

    while left:
        one = min(left.difference(last) or left, key=cost)
        around = neighbours[one] & left
        cells += cost(one)[0]
        order.append((one, tuple(sorted(around))))
        for other in around:
            neighbours[other] |= around - {other}
            neighbours[other].discard(one)
        left.discard(one)
    return order, cells


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
    mbi = backend()
    domain = mbi.Domain([str(i) for i in range(len(sizes))], list(sizes))
    measurements = []
    unit = min(float(np.min(one.deviations)) for one in measured)  # mbi floors small numbers
    for one in measured:
        own = tuple(str(i) for i in one.clique)
        if one.lines:
            parts = _Parts(one.lines)
            values = np.asarray(parts.of(one.counts)) / unit
            scale = float(np.max(one.deviations)) / unit
            measurements.append(mbi.LinearMeasurement(values, own, scale, parts))
            continue
        deviations = (
            np.broadcast_to(np.asarray(one.deviations, np.float64), one.counts.shape) / unit
        )
        scale = float(np.median(deviations))
        weights = (scale / deviations).ravel()
        even = bool((weights == 1).all())
        query = _Whole() if even else _Weighted(weights)
        values = one.counts.ravel() / unit * weights
        measurements.append(mbi.LinearMeasurement(values, own, scale, query))
    names = {one.clique: tuple(str(i) for i in one.clique) for one in measured}
    tables = {
        names[clique]: mbi.Factor(domain.project(names[clique]), values)
        for clique, values in _factorised(measured).items()
    }
    blocks = itertools.count(mbi.estimation.CALLBACK_EVERY, mbi.estimation.CALLBACK_EVERY)
    most = _LAST if last else _ITERATIONS
    progress(ESTIMATING, 0, most)
    found = descent().estimate(
        domain,
        squared_misses(domain, measurements),
        known_total=total / unit,
        iters=EVALUATIONS * most,
        tol=_TOLERANCE,
        patience=_PATIENCE,
        callback_fn=lambda _: progress(ESTIMATING, min(next(blocks) // EVALUATIONS, most), most),
        warm_start=mbi.CliqueVector(domain, list(tables), tables),
    )
    progress(ESTIMATING, most, most)
    potentials = {
        tuple(int(name) for name in clique): np.asarray(found[clique].values)
        for clique in found.cliques
    }
    return Field(tuple(sizes), potentials, hidden=hidden)


def _factorised(measured: Sequence[Measured]) -> dict[Clique, NDArray[np.float64]]:
    """Return log-potentials of a chain: each clique's new columns given its old ones.

    The next one is the clique that tells most of its new columns, as in a tree of the largest
    mutual information.

    Reference: Chow and Liu 1968.
    """
    potentials: dict[Clique, NDArray[np.float64]] = {}
    known: set[int] = set()
    left = {one.clique: one.counts for one in measured}
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
