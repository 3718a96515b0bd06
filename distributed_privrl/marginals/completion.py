"""Counts of rows of which somebody saw what follows, completed to counts of all rows.

A model is of all rows, and after a last row nobody saw anything. There the model has what follows
other rows, given what else was counted with it; nothing is drawn from it. All of it is
post-processing of released counts.

Reference: Little and Rubin 2019, chapter 1.3 (missing at random).
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.tables import all_but

_CASES = 3.0
"""Deviations of its noise that a case weighs of which half is believed what follows."""
_UNRELATED = 0.02
"""Part of the cases that is taken to be unrelated, where those that go on are not all cases."""
_SWEEPS = 10
_NOTHING = 1e-9


class Completion:
    """Completes counts, so that all of them are of the same rows.

    If some last rows are unlike others, a column would become something else by each count of it.
    So the count with the column itself before the step, or else the first one, says how frequent
    its bins are, and all others are fitted to that.

    Args:
        bins: of the columns.
        masses: ``(K,)`` of each column's bins, in all rows.
        complete: what is known of all rows already.
    """

    def __init__(
        self,
        bins: Bins,
        masses: Sequence[NDArray[np.float64]],
        complete: Sequence[Measured] = (),
    ) -> None:
        self._bins, self._masses = bins, masses
        self._after = frozenset(bins.columns.of("next_observation"))
        self._reached: dict[int, NDArray[np.float64]] = {}
        for one in complete:
            for axis, i in enumerate(one.clique):
                if bins.columns.only_followed([i]):
                    self._reached[i] = one.counts.sum(axis=all_but(axis, one.counts.ndim))

    def of_all(self, measured: Sequence[Measured]) -> list[Measured]:
        """Return counts, in the same order, those of rows that something follows completed."""
        found = list(measured)
        order = [
            place
            for place, one in enumerate(measured)
            if self._bins.columns.only_followed(one.clique)
        ]
        for place in sorted(order, key=lambda i: self._rank(measured[i])):
            found[place] = self._completed(measured[place])
        return found

    def fitted(self, measured: Measured) -> Measured:
        """Return what is told of next observations with each as frequent as counts say.

        What two columns have in common in all rows they have after a step; how frequent they are
        there is another matter, such as a first grade that nobody comes to.

        Args:
            measured: of all rows; after `of_all`.
        """
        table = np.maximum(measured.counts, _NOTHING * measured.counts.sum())
        known = [axis for axis, i in enumerate(measured.clique) if i in self._reached]
        for _ in range(_SWEEPS if known else 0):
            for axis in known:
                own = self._reached[measured.clique[axis]]
                table = table * _ratio(own, table, all_but(axis, table.ndim))
        return replace(measured, counts=table) if known else measured

    def _rank(self, measured: Measured) -> tuple[int, int]:
        """Return how early a count is completed: columns with themselves first, pairs first."""
        columns = [self._bins.columns[i] for i in measured.clique]
        before = {one.place for one in columns if one.part == "observation"}
        own = any(one.part == "next_observation" and one.place in before for one in columns)
        known = any(i not in self._after for i in measured.clique)
        return 2 - own - known, len(columns)

    def _completed(self, measured: Measured) -> Measured:
        """Return one count: of each case as much more as there are more rows of it.

        Of a case that noise hides nothing is known but what follows any.
        """
        bins, clique = self._bins, measured.clique
        axes = range(len(clique))
        after = tuple(axis for axis in axes if clique[axis] in self._after)
        before = tuple(axis for axis in axes if axis not in after)
        counts, least = measured.counts, _CASES * float(np.max(measured.deviations))
        cases = counts.sum(axis=after, keepdims=True)
        usual = counts.sum(axis=before, keepdims=True) / counts.sum()
        wanted = self._cases([clique[axis] for axis in before], cases.sum(axis=after))
        wanted = wanted.reshape(cases.shape)
        table = wanted * (counts * cases + least**2 * usual) / (cases**2 + least**2)
        known = {
            axis: self._reached[clique[axis]] for axis in after if clique[axis] in self._reached
        }
        for _ in range(_SWEEPS if known else 0):
            for axis, masses in known.items():
                table = table * _ratio(masses, table, all_but(axis, table.ndim))
            table = table * _ratio(wanted, table, after, keep=True)
        for axis in after:
            self._reached.setdefault(clique[axis], table.sum(axis=all_but(axis, table.ndim)))
        if measured.lines:
            return replace(
                measured,
                counts=table,
                deviations=measured.deviations * bins.total / bins.followed,
            )
        more = np.maximum(wanted / (cases + least), 1.0)
        deviations = measured.deviations * np.broadcast_to(more, counts.shape)
        return replace(measured, counts=table, deviations=deviations)

    def _cases(self, clique: Sequence[int], followed: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the weights of all rows in the cells of some columns.

        Args:
            clique: columns; their own counts say how frequent each of their bins is.
            followed: weights of the rows that something follows, which say how bins go together.
        """
        total = self._bins.total
        found: NDArray[np.float64] = followed * (total / followed.sum())
        masses = [self._masses[i] * (total / self._masses[i].sum()) for i in clique]
        if masses:
            unrelated = total * functools.reduce(np.multiply.outer, [one / total for one in masses])
            found = (1 - _UNRELATED) * found + _UNRELATED * unrelated
        for _ in range(_SWEEPS):
            for axis, own in enumerate(masses):
                found = found * _ratio(own, found, all_but(axis, found.ndim))
        return found


def _ratio(
    wanted: NDArray[np.float64],
    table: NDArray[np.float64],
    axes: tuple[int, ...],
    *,
    keep: bool = False,
) -> NDArray[np.float64]:
    """Return by what a table's cells are multiplied so that its sums over axes are as wanted.

    Args:
        wanted: sums.
        table: of cells.
        axes: that are summed over.
        keep: whether ``wanted`` has these axes, too.
    """
    now = table.sum(axis=axes, keepdims=True)
    wanted = wanted if keep else np.expand_dims(wanted, axes)
    return np.asarray(np.divide(wanted, now, out=np.zeros_like(now), where=now > 0))
