"""What a Markov random field puts into the cells of its cliques, by a junction tree.

The columns are summed out one after the other; what is summed at once is a *bag* of columns. Each
bag but the last of its tree hands a table over the columns it shares with the next one, upward, and
is told, downward, how large these sums are (Lauritzen and Spiegelhalter 1988; Shafer and Shenoy
1990). Sums upward are of logarithms, so that no cell is too rare; on the way down nothing is left
but to multiply.

Tables are small and passes many, so that all of them are made once, and every pass fills them.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.tables import Clique

Table = NDArray[np.float64]


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


@dataclass
class _Bag:
    """Columns that are in one table, and what passes through it.

    Args:
        columns: of the table's axes: those that no bag above has, and then those that it shares
            with the one above.
        own: how many it has for itself.
        above: the bag above; the last of a tree has none.
        table: logarithms, then shares of the own columns, then sums.
        added: potentials, and messages from below, that lie in the table: views.
    """

    columns: Clique
    own: int
    above: "_Bag | None"
    table: Table
    added: list[Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        extents = self.table.shape[self.own :]
        self._flat = self.table.reshape(-1, math.prod(extents))
        self._most, self._mass, self._message = np.zeros((3, math.prod(extents)))
        self._outside = np.zeros(extents)
        if self.above is not None:
            shared, places = self.columns[self.own :], self.above.columns
            self._others = tuple(axis for axis, i in enumerate(places) if i not in shared)
            self.above.added.append(_view(self._message.reshape(extents), shared, places))

    def pass_up(self) -> None:
        """Sum out the own columns: the table has their shares, the bag above the message."""
        table = self._flat
        first, *others = self.added
        np.copyto(self.table, first)
        for one in others:
            self.table += one
        table.max(axis=0, out=self._most)
        np.subtract(table, self._most, out=table)
        np.exp(table, out=table)
        table.sum(axis=0, out=self._mass)
        np.log(self._mass, out=self._message)
        self._message += self._most

    def pass_down(self, total: float) -> None:
        """Fill the table with sums, as the bag above has them of the columns it shares."""
        if self.above is None:
            self._outside.fill(total)
        else:
            self.above.table.sum(axis=self._others, out=self._outside)
        self._flat *= self._outside.reshape(-1) / self._mass


class JunctionTree:
    """Sums potentials of cliques over all columns that a clique lacks.

    Potentials of all cliques are in one vector ``(T,)``, a clique after the other, each flat; so
    are sums.

    Args:
        sizes: bins of each column.
        cliques: of the field, which hold all columns; one may lie in another.
        total: weight of all rows.
    """

    def __init__(self, sizes: Sequence[int], cliques: Sequence[Clique], total: float) -> None:
        self._total = total
        extents = [tuple(sizes[i] for i in clique) for clique in cliques]
        ends = np.cumsum([0, *map(math.prod, extents)]).tolist()
        self.spans = [slice(*ends) for ends in pairwise(ends)]
        self._potentials, self._sums = np.zeros((2, ends[-1]))
        self._bags = _bags(sizes, cliques)
        self._inner: list[tuple[Table, Table]] = []
        self._read: list[tuple[Table, tuple[int, ...], Table]] = []
        largest: dict[Clique, tuple[Table, Table]] = {}
        for place in sorted(range(len(cliques)), key=lambda one: -len(cliques[one])):
            clique, own = cliques[place], (self._potentials, self._sums)
            potentials, sums = (one[self.spans[place]].reshape(extents[place]) for one in own)
            around = next((one for one in largest if set(clique) <= set(one)), None)
            if around is None:
                largest[clique] = potentials, sums
                homes = [one for one in self._bags if set(clique) <= set(one.columns)]
                home = min(homes, key=lambda one: one.table.size)
                home.added.append(_view(potentials, clique, home.columns))
                columns, table = home.columns, home.table
            else:
                into, table = largest[around]
                self._inner.append((into, _view(potentials, clique, around)))
                columns = around
            others = tuple(axis for axis, i in enumerate(columns) if i not in clique)
            order = [clique.index(i) for i in columns if i in clique]
            self._read.append((table, others, sums.transpose(order)))

    def sums(self, potentials: Table) -> Table:
        """Return the weight of each clique's cells ``(T,)`` under its potentials ``(T,)``."""
        np.copyto(self._potentials, potentials)
        for into, one in self._inner:
            into += one
        for bag in self._bags:
            bag.pass_up()
        for bag in reversed(self._bags):
            bag.pass_down(self._total)
        for table, others, sums in self._read:
            table.sum(axis=others, out=sums)
        found: Table = self._sums.copy()
        return found


def _bags(sizes: Sequence[int], cliques: Sequence[Clique]) -> list[_Bag]:
    """Return the bags of a junction tree, each before the one above it."""
    order = elimination(sizes, cliques)[0]
    when = {column: step for step, (column, _) in enumerate(order)}
    members: list[tuple[list[int], set[int]]] = []  # own columns, and those that others have, too
    for column, around in order:
        whole = {column, *around}
        below = next((one for one in members if one[1] == whole), None)
        if below is None:
            members.append(([column], set(around)))
        else:  # it has all columns of this one: they are one bag
            below[0].append(column)
            below[1].remove(column)
    home = {column: place for place, (own, _) in enumerate(members) for column in own}
    found: dict[int, _Bag] = {}
    # The bag above sums out a column that is shared, which goes later than all that a bag owns.
    for place in sorted(range(len(members)), key=lambda one: -when[members[one][0][-1]]):
        own, shared = members[place]
        above = found[home[min(shared, key=when.__getitem__)]] if shared else None
        rest = [i for i in above.columns if i in shared] if above else []
        columns = (*own, *rest)
        found[place] = _Bag(columns, len(own), above, np.zeros([sizes[i] for i in columns]))
    return list(found.values())[::-1]


def _view(table: Table, clique: Clique, axes: Sequence[int]) -> Table:
    """Return a view of a clique's table whose axes lie as in ``axes``, of length one elsewhere."""
    moved = table.transpose([clique.index(i) for i in axes if i in clique])
    return np.expand_dims(moved, tuple(axis for axis, i in enumerate(axes) if i not in clique))
