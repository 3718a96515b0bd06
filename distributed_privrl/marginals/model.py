"""A Markov random field over the bins of a table: its size, its estimation, draws from it.

Estimation is private-PGM's (McKenna, Sheldon and Miklau 2019), by the library mbi; draws are ours,
as they take a column after the other, some of them given.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.marginals.tables import Clique

_FLOOR = 1e-4
"""Part of an even share that a cell has at least where estimation starts."""
_ITERATIONS = 1000
_TOLERANCE = 1e-6
_NUMBERS = 4_000_000
_LEAST_SHARE = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class Measured:
    """Noisy sums over cells of one clique.

    Args:
        clique: its columns.
        counts: of its cells, of the shape of the clique's sizes.
        deviations: of their noise, of the same shape, or one for all.
    """

    clique: Clique
    counts: NDArray[np.float64]
    deviations: NDArray[np.float64] | float


@dataclass(frozen=True, eq=False)
class Field:
    """A distribution over rows of bins: log-potentials of cliques.

    Args:
        sizes: bins of each column (V).
        potentials: of each clique, of the shape of its sizes.
    """

    sizes: tuple[int, ...]
    potentials: Mapping[Clique, NDArray[np.float64]]

    def drawer(self, given: Iterable[int] = ()) -> "Drawer":
        """Return what draws rows; the columns ``given`` are not drawn."""
        return Drawer(self, tuple(given))


def elimination(
    sizes: Sequence[int], cliques: Iterable[Clique], given: Iterable[int] = ()
) -> tuple[list[tuple[int, Clique]], int]:
    """Return a greedy order in which columns are summed out, and how many cells that takes.

    Args:
        sizes: bins of each column.
        cliques: of the model.
        given: columns that come last, as others are drawn given them.

    Returns:
        each column with those it depends on, the first to be summed out first (drawn last); and the
        cells of all tables together.
    """
    neighbours: dict[int, set[int]] = {i: set() for i in range(len(sizes))}
    for clique in cliques:
        for one in clique:
            neighbours[one] |= set(clique) - {one}
    last, order, cells = set(given), [], 0
    left = set(neighbours)

    def cost(one: int) -> tuple[bool, int, int]:
        return one in last, math.prod(sizes[i] for i in (one, *neighbours[one])), one

    while left:
        one = min(left, key=cost)
        around = neighbours[one] & left
        cells += cost(one)[1]
        order.append((one, tuple(sorted(around))))
        for other in around:
            neighbours[other] |= around - {other}
            neighbours[other].discard(one)
        left.discard(one)
    return order, cells


def estimated(sizes: Sequence[int], measured: Sequence[Measured], *, total: float) -> Field:
    """Return the field of the largest entropy whose sums are nearest to the measured ones.

    Args:
        sizes: bins of each column.
        measured: noisy sums; each column has one at least.
        total: weight of all rows.

    Mirror descent starts from the measured counts as a chain of conditionals, which is the answer
    already where cliques make a tree.

    Reference: McKenna, Sheldon and Miklau 2019, algorithm 1 (mirror descent), by mbi.
    """
    from distributed_privrl.marginals.estimation_backend import backend

    mbi = backend()
    domain = mbi.Domain([str(i) for i in range(len(sizes))], list(sizes))
    measurements = []
    unit = min(float(np.min(one.deviations)) for one in measured)  # mbi floors small numbers
    for one in measured:
        deviations = (
            np.broadcast_to(np.asarray(one.deviations, np.float64), one.counts.shape) / unit
        )
        scale = float(np.median(deviations))
        weights = (scale / deviations).ravel()
        even = bool((weights == 1).all())
        query = (
            mbi.marginal_loss.DatavectorQuery()
            if even
            else mbi.marginal_loss.WeightedQuery(weights)
        )
        own = tuple(str(i) for i in one.clique)
        values = one.counts.ravel() / unit * weights
        measurements.append(mbi.LinearMeasurement(values, own, scale, query))
    names = {one.clique: tuple(str(i) for i in one.clique) for one in measured}
    tables = {
        names[clique]: mbi.Factor(domain.project(names[clique]), values)
        for clique, values in _factorised(measured).items()
    }
    found = mbi.estimation.MirrorDescent().estimate(
        domain,
        measurements,
        known_total=total / unit,
        iters=_ITERATIONS,
        tol=_TOLERANCE,
        warm_start=mbi.CliqueVector(domain, list(tables), tables),
    )
    potentials = {
        tuple(int(name) for name in clique): np.asarray(found.potentials[clique].values)
        for clique in found.potentials.cliques
    }
    return Field(tuple(sizes), potentials)


def _factorised(measured: Sequence[Measured]) -> dict[Clique, NDArray[np.float64]]:
    """Return log-potentials of a chain: each clique's new columns given its old ones."""
    potentials: dict[Clique, NDArray[np.float64]] = {}
    known: set[int] = set()
    left = {one.clique: one.counts for one in measured}
    while left:
        # the clique with the most old columns among those that bring new ones, else any
        clique = max(
            left, key=lambda one: (bool(set(one) - known), len(set(one) & known), len(one))
        )
        counts = left.pop(clique)
        shares = np.maximum(counts / max(float(counts.sum()), 1e-300), _FLOOR / counts.size)
        new = tuple(axis for axis, column in enumerate(clique) if column not in known)
        if new:
            potentials[clique] = np.log(shares) - np.log(shares.sum(axis=new, keepdims=True))
        else:
            potentials[clique] = np.zeros(counts.shape)
        known |= set(clique)
    return potentials


class Drawer:
    """Draws rows of a field, a column after the other, each given those it depends on.

    Args:
        field: the distribution.
        given: columns that the caller fills in.
    """

    def __init__(self, field: Field, given: tuple[int, ...] = ()) -> None:
        self._given = set(given)
        order, _ = elimination(field.sizes, field.potentials, given)
        factors = [(set(clique), clique, values) for clique, values in field.potentials.items()]
        self._conditionals: list[tuple[int, Clique, NDArray[np.float64]]] = []
        self._log_shares: list[NDArray[np.float64]] = []
        for column, parents in order:
            if column in self._given:
                break
            own = [factor for factor in factors if column in factor[0]]
            factors = [factor for factor in factors if column not in factor[0]]
            axes = (*parents, column)
            joint = np.zeros([field.sizes[i] for i in axes])
            for _, clique, values in own:
                joint = joint + _aligned(values, clique, axes)
            most = joint.max(axis=-1, keepdims=True)
            with np.errstate(all="ignore"):
                masses = np.exp(joint - np.where(np.isfinite(most), most, 0.0))
            sums = masses.sum(axis=-1, keepdims=True)
            even = np.full(masses.shape, 1 / masses.shape[-1])
            shares = np.divide(masses, sums, out=even, where=sums > 0)
            self._conditionals.append((column, parents, np.cumsum(shares, axis=-1)))
            self._log_shares.append(np.log(np.maximum(shares, _LEAST_SHARE)))
            if parents:
                with np.errstate(all="ignore"):
                    message = np.log(sums[..., 0]) + most[..., 0]
                factors.append((set(parents), parents, message))
        self._conditionals.reverse()
        self._log_shares.reverse()

    def shares(self, column: int, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return how likely each bin of a drawn column is in rows, ``(N, K)``."""
        for one, parents, cumulated in self._conditionals:
            if one == column:
                chosen = cumulated[tuple(rows[:, parent] for parent in parents)]
                chosen = np.broadcast_to(chosen, (len(rows), cumulated.shape[-1]))
                return np.diff(chosen, axis=1, prepend=0.0)
        raise ConfigError(f"column {column} is not drawn")

    def fill(self, rows: NDArray[np.int32], random: np.random.Generator) -> None:
        """Draw all columns of rows ``(N, V)`` but the given ones, in place."""
        for column, parents, cumulated in self._conditionals:
            size = cumulated.shape[-1]
            flat = cumulated.reshape(-1, size)
            places = np.zeros(len(rows), np.int64)
            for parent, extent in zip(parents, cumulated.shape, strict=False):
                places = places * extent + rows[:, parent]
            uniforms = random.random(len(rows))
            step = max(1, _NUMBERS // size)
            for start in range(0, len(rows), step):
                part = slice(start, start + step)
                above = flat[places[part]] <= uniforms[part, None]
                rows[part, column] = np.minimum(above.sum(axis=1), size - 1)

    def log_likelihoods(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the log-probability ``(N,)`` of rows ``(N, V)``, given the columns not drawn.

        It is finite: what cannot be drawn is as likely as the smallest float.
        """
        total = np.zeros(len(rows))
        for (column, parents, _), logs in zip(self._conditionals, self._log_shares, strict=True):
            total += logs[tuple(rows[:, i] for i in (*parents, column))]
        return total


def _aligned(
    values: NDArray[np.float64], clique: Clique, axes: Sequence[int]
) -> NDArray[np.float64]:
    """Return a factor with its axes where ``axes`` has them, and of length one elsewhere."""
    moved = values.transpose([clique.index(i) for i in axes if i in clique])
    extents = iter(moved.shape)
    return moved.reshape([next(extents) if i in clique else 1 for i in axes])
