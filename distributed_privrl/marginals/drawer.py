"""Draws from a Markov random field, some of its columns given, and likelihoods of its rows."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.tables import Clique

_NUMBERS = 4_000_000
_LEAST_SHARE = np.finfo(np.float64).tiny


@dataclass(frozen=True, eq=False)
class _Factor:
    """Log-potentials of columns that are not given.

    Args:
        columns: places, rising.
        values: ``(E, ...)``, for each of E cases of the given columns; E is 1: alike for all.
    """

    columns: Clique
    values: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Conditional:
    """How a column is drawn.

    Args:
        column: its place.
        parents: columns that are drawn before it.
        shares: ``(E, ..., K)`` of its bins, for each case and each bin of each parent.
    """

    column: int
    parents: Clique
    shares: NDArray[np.float64]

    def of(self, rows: NDArray[np.int32], cases: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the shares ``(N, K)`` of rows ``(N, V)`` that belong to ``cases`` ``(N,)``."""
        own = cases if len(self.shares) > 1 else np.zeros_like(cases)
        return np.asarray(self.shares[(own, *(rows[:, i] for i in self.parents))])


class Drawer:
    """Draws rows of a field, a column after the other, each given those it depends on.

    What is given is looked up in the potentials, once for all rows that have the same, before other
    columns are summed out. So no table holds a given column, and a column may depend on as many of
    them as were counted with it.

    Args:
        field: the distribution.
        given: columns that the caller fills in.
        first: columns that are drawn before all others.
    """

    def __init__(
        self, field: Field, given: Iterable[int] = (), *, first: Collection[int] = ()
    ) -> None:
        self._field, self._sizes, known = field, field.sizes, set(given)
        self._mixed: list[tuple[Clique, NDArray[np.float64]]] = []
        self._alike: list[_Factor] = []
        varying: list[set[int]] = []
        for clique, values in field.potentials.items():
            free = tuple(i for i in clique if i not in known)
            if free == clique:
                self._alike.append(_Factor(clique, values[None]))
            elif free:
                self._mixed.append((clique, values))
                varying.append(set(free))
        self._known = tuple(sorted({i for one, _ in self._mixed for i in one} & known))
        order, self._cells = drawing_order(field.sizes, field.potentials, known, first=first)
        self._order = order
        self._same: dict[int, _Conditional] = {}
        for column, parents in order:
            if any(column in one for one in varying):
                varying = [one for one in varying if column not in one] + [set(parents)]
            else:
                found, self._alike = _sum_out(column, parents, self._alike, field.sizes)
                self._same[column] = found

    def in_order(self, columns: Collection[int]) -> list[int]:
        """Return some of the drawn columns in the order in which they are drawn."""
        return [column for column, _ in reversed(self._order) if column in columns]

    def shares(self, column: int, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return how likely each bin of a drawn column is, ``(N, K)``.

        Args:
            column: its place.
            rows: ``(N, V)``, with the hidden columns that it is drawn after.
        """
        if all(column != one for one, _ in self._order):
            raise ConfigError(f"column {column} is not drawn")
        shares = np.zeros((len(rows), self._sizes[column]))
        for places, cases, found in self._cases(rows):
            (own,) = (one for one in found if one.column == column)
            shares[places] = own.of(rows[places], cases)
        return shares

    def fill(self, rows: NDArray[np.int32], random: np.random.Generator) -> None:
        """Draw all columns of rows but the given ones, in place.

        Args:
            rows: ``(N, V)``, with or without the hidden columns.
            random: of the draws.
        """
        whole = self._whole(rows)
        uniforms = {column: random.random(len(rows)) for column, _ in reversed(self._order)}
        for places, cases, found in self._cases(rows):
            part = whole[places]
            for one in reversed(found):
                _draw(one, part, cases, uniforms[one.column][places])
            rows[places] = part[:, : rows.shape[1]]

    def log_likelihoods(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the log-probability ``(N,)`` of rows ``(N, V)``, given the columns not drawn.

        It is finite: what cannot be drawn is as likely as the smallest float. Whatever is hidden, a
        row is as likely as both together over the hidden given the row.
        """
        whole, seen = self._whole(rows), len(self._sizes) - self._field.hidden
        if not self._field.hidden:
            return self._log_shares(whole)
        hidden = Drawer(self._field, range(seen))
        hidden.fill(whole, np.random.default_rng(0))
        return self._log_shares(whole) - hidden._log_shares(whole)

    def _whole(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return rows with room for hidden columns."""
        lacking = len(self._sizes) - rows.shape[1]
        return np.pad(rows, [(0, 0), (0, lacking)]) if lacking else rows

    def _log_shares(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the log-probability of whole rows, given the columns not drawn."""
        total = np.zeros(len(rows))
        for places, cases, found in self._cases(rows):
            part = rows[places]
            for one in found:
                shares = one.of(part, cases)[np.arange(len(part)), part[:, one.column]]
                total[places] += np.log(np.maximum(shares, _LEAST_SHARE))
        return total

    def _cases(
        self, rows: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], list[_Conditional]]]:
        """Yield which rows ``(N,)``, the case ``(N,)`` of each, and how each column is drawn.

        Columns come in the order in which they are summed out, the last drawn first.
        """
        given, cases = np.unique(rows[:, self._known], axis=0, return_inverse=True)
        cases = np.asarray(cases, np.int64).reshape(-1)
        order = np.argsort(cases, kind="stable")
        step = max(1, _NUMBERS // max(self._cells, 1))
        ends = np.searchsorted(cases[order], np.arange(0, len(given) + step, step))
        for chunk, (start, stop) in enumerate(pairwise(ends)):
            first, places = chunk * step, order[start:stop]
            found = self._conditionals(given[first : first + step])
            most = max(1, _NUMBERS // max(self._sizes))
            for part in range(0, len(places), most):
                own = places[part : part + most]
                yield own, cases[own] - first, found

    def _conditionals(self, given: NDArray[np.int32]) -> list[_Conditional]:
        """Return how each column is drawn in each case ``(E, G)`` of the given columns."""
        known = dict(zip(self._known, given.T, strict=True))
        factors = list(self._alike)
        for clique, values in self._mixed:
            first = [axis for axis, i in enumerate(clique) if i in known]
            rest = [axis for axis, i in enumerate(clique) if i not in known]
            held = values.transpose(first + rest)[tuple(known[clique[axis]] for axis in first)]
            factors.append(_Factor(tuple(clique[axis] for axis in rest), held))
        found = []
        for column, parents in self._order:
            own = self._same.get(column)
            if own is None:
                own, factors = _sum_out(column, parents, factors, self._sizes)
            found.append(own)
        return found


def drawing_order(
    sizes: Sequence[int],
    cliques: Iterable[Clique],
    given: Iterable[int],
    *,
    first: Collection[int] = (),
) -> tuple[list[tuple[int, Clique]], int]:
    """Return the order in which columns are summed out, the given ones left out, and its cells.

    Args:
        sizes: bins of each column.
        cliques: of the model.
        given: columns that others are drawn given.
        first: columns that are drawn before all others.

    Returns:
        each column with those it is drawn after; and the cells of all tables of one row together.
    """
    known = set(given)
    order, cells = elimination(
        [1 if i in known else size for i, size in enumerate(sizes)],
        [tuple(i for i in clique if i not in known) for clique in cliques],
        last=first,
    )
    return [one for one in order if one[0] not in known], cells - len(known)


def _sum_out(
    column: int, parents: Clique, factors: Sequence[_Factor], sizes: Sequence[int]
) -> tuple[_Conditional, list[_Factor]]:
    """Return how a column is drawn, and the factors of the others without it."""
    own = [one for one in factors if column in one.columns]
    left = [one for one in factors if column not in one.columns]
    axes = (*parents, column)
    joint = np.zeros((1, *(sizes[i] for i in axes)))
    for one in own:
        joint = joint + _aligned(one, axes)
    most = joint.max(axis=-1, keepdims=True)
    with np.errstate(all="ignore"):
        masses = np.exp(joint - np.where(np.isfinite(most), most, 0.0))
    sums = masses.sum(axis=-1, keepdims=True)
    even = np.full(masses.shape, 1 / masses.shape[-1])
    shares = np.divide(masses, sums, out=even, where=sums > 0)
    if parents:
        with np.errstate(all="ignore"):
            left.append(_Factor(parents, np.log(sums[..., 0]) + most[..., 0]))
    return _Conditional(column, parents, shares), left


def _aligned(factor: _Factor, axes: Sequence[int]) -> NDArray[np.float64]:
    """Return a factor with its axes where ``axes`` has them, and of length one elsewhere."""
    moved = factor.values.transpose(
        [0, *(1 + factor.columns.index(i) for i in axes if i in factor.columns)]
    )
    extents = iter(moved.shape[1:])
    return moved.reshape([len(moved), *(next(extents) if i in factor.columns else 1 for i in axes)])


def _draw(
    conditional: _Conditional,
    rows: NDArray[np.int32],
    cases: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> None:
    cumulated = conditional.of(rows, cases).cumsum(axis=-1)
    above = (cumulated <= uniforms[:, None]).sum(axis=1)
    rows[:, conditional.column] = np.minimum(above, cumulated.shape[-1] - 1)
