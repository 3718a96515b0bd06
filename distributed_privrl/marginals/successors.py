"""What counts of a step say of the step before: what it led to are the same rows.

A model of pairs knows of two observations that go together, and not that the next ones do. So the
counts of observations stand for those of next observations, too, and those of the action before for
the action. Observations also go together because an action was chosen by both; for that the model
has the next action as a hidden column, which is counted with next observations as the action is
with observations. Rows that are drawn alone have no next step, and so no hidden column. Where
nobody saw what follows an end, their next observations are other rows of the table, and go together
as these do; else they may be of none. All of it is post-processing of released counts.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.tables import Clique

Told = dict[Clique, tuple[NDArray[np.float64], Clique]]
"""Shares of the cells of some columns, and the clique that says so."""


class Successors:
    """Where the columns of a step are found one step before, in a model with hidden columns.

    Args:
        columns: of the table (V); hidden columns V, V + 1, ... are the parts of the next action.
    """

    def __init__(self, columns: TableColumns) -> None:
        steps = bool(columns.of("time"))
        after = columns.of("next_observation") if steps or columns.ends_unseen else ()
        actions = columns.of("action")
        reached = {columns[i].like: i for i in after if columns[i].like is not None}
        moving = {columns[i].place for i in after}
        self._columns = columns
        self.hidden: tuple[int, ...] = actions if moving and steps else ()
        """The columns whose successors are hidden, in order; none of rows that are drawn alone."""
        self._before: dict[int, int] = {
            i: reached.get(i, i)
            for i in columns.of("observation")
            if i in reached or columns[i].place not in moving
        }
        previous = zip(columns.of("previous"), actions, strict=False)
        self._before |= {one: action for one, action in previous if columns[one].cells is None}
        self._before |= {action: len(columns) + i for i, action in enumerate(self.hidden)}

    def told(
        self, clique: Clique, counts: NDArray[np.float64]
    ) -> tuple[Clique, NDArray[np.float64]] | None:
        """Return what a joint count says of the step before: columns, and shares of their cells.

        Args:
            clique: that was counted.
            counts: cleaned ones.

        Returns:
            None where it says nothing of two columns that is not counted with them anyway.
        """
        axes = [axis for axis, i in enumerate(clique) if i in self._before]
        places = [self._before[clique[axis]] for axis in axes]
        if len(axes) < 2 or all(place in clique for place in places):
            return None
        for axis in axes:
            if self._columns[clique[axis]].part == "previous":
                # the last category says that there was no step before
                counts = counts.take(range(counts.shape[axis] - 1), axis=axis)
        shares = _shares(counts, axes).transpose(np.argsort(places))
        return (tuple(sorted(places)), shares) if shares.any() else None

    def together(
        self, clique: Clique, counts: NDArray[np.float64]
    ) -> tuple[Clique, NDArray[np.float64]] | None:
        """Return which observations a joint count is of, and shares of their cells.

        Args:
            clique: that was counted.
            counts: cleaned ones.

        Returns:
            None where it is not of two, of which one moves.
        """
        columns = self._columns
        moving = {columns[i].place for i in columns.of("next_observation")}
        axes = [axis for axis, i in enumerate(clique) if i in columns.of("observation")]
        if len(axes) < 2 or not any(columns[clique[axis]].place in moving for axis in axes):
            return None
        return tuple(clique[axis] for axis in axes), _shares(counts, axes)

    def next_of(self, clique: Clique) -> Clique | None:
        """Return what observations become, by columns as they are; None: one is a change."""
        found = [self._before.get(i) for i in clique]
        return None if None in found else tuple(sorted(i for i in found if i is not None))

    def replayed(
        self,
        tables: Sequence[tuple[Clique, NDArray[np.float64]]],
        allows: Callable[[Collection[Clique]], bool],
    ) -> tuple[Told, Told]:
        """Return what joint counts say of the step before: what a model has room for, and the rest.

        What was counted comes first in a model: this takes what is left.

        Args:
            tables: cliques with their cleaned counts, in the order in which they were counted.
            allows: says whether a model has room for cliques beside those.

        Returns:
            shares of cells, and the clique that says so; none of columns that were counted together
            themselves.
        """
        found: Told = {}
        left: Told = {}
        counted = [clique for clique, _ in tables]
        for clique, counts in tables:
            told = self.told(clique, counts)
            if told is None:
                continue
            if any(set(told[0]) <= set(other) for other in (*counted, *found, *left)):
                continue
            fits = allows([*found, told[0]])
            (found if fits else left)[told[0]] = told[1], clique
        return found, left


def _shares(counts: NDArray[np.float64], axes: Collection[int]) -> NDArray[np.float64]:
    """Return shares of the cells of some axes; zeros where nothing was counted."""
    others = tuple(axis for axis in range(counts.ndim) if axis not in axes)
    found = counts.sum(axis=others)
    return np.asarray(found / max(float(found.sum()), 1e-300))
