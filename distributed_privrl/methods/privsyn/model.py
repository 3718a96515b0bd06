"""What a run of PrivSyn has released: marginals that agree, and rows that have them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.coupling import couplings
from distributed_privrl.marginals.drawing import NumberModel
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.methods.privsyn.updating import Bins, Target, adjusted, started


@dataclass(frozen=True, eq=False)
class Marginals:
    """Marginals of a table that agree with each other; all of it released or public.

    Args:
        columns: of the table.
        shapes: of each column.
        singles: weight of each bin ``(K,)`` of each column.
        pairs: weight of each cell of the pairs that were selected.
    """

    columns: TableColumns
    shapes: tuple[ColumnShape, ...]
    singles: list[NDArray[np.float64]]
    pairs: Mapping[Clique, NDArray[np.float64]]

    @property
    def targets(self) -> list[Target]:
        """What rows are to have: the pairs, and columns that are in none."""
        targets = [Target(clique, table / table.sum()) for clique, table in self.pairs.items()]
        paired = {i for clique in self.pairs for i in clique}
        for place, one in enumerate(self.singles):
            if place not in paired:
                targets.append(Target((place,), one / one.sum()))
        return targets

    def pool(
        self, count: int, *, iterations: int, streams: Streams, progress: Progress = silent
    ) -> "Pool":
        """Return ``count`` rows that have these marginals, about.

        Args:
            count: of rows.
            iterations: see `adjusted`.
            streams: of public randomness.
            progress: told where it stands.
        """
        random = streams.numpy("adjusting")
        rows = started(self.singles, count, random)
        rows = adjusted(rows, self.targets, iterations=iterations, random=random, progress=progress)
        sizes = [len(one) for one in self.singles]
        together = couplings(
            self.columns, self.shapes, sizes, list(self.pairs), rows.T[:_LOOKED_AT]
        )
        numbers = NumberModel(self.columns, self.shapes, together)
        return Pool(numbers, rows, streams.numpy("order"))


_LOOKED_AT = 200_000
"""Rows that tell how numbers of two columns go together in their bins."""


class Pool:
    """Rows of bins, each handed out once before the first is handed out again.

    Where rows of large units weigh less than others, rows are drawn as often as there are such.

    Args:
        numbers: which numbers lie in the bins.
        rows: ``(V, N)`` bins.
        random: of the order.
    """

    def __init__(self, numbers: NumberModel, rows: Bins, random: np.random.Generator) -> None:
        self._numbers, self._rows, self._random = numbers, rows, random
        self._left = np.empty(0, np.int64)

    def transitions(self, count: int, random: np.random.Generator) -> Transitions:
        """Return ``count`` transitions.

        Args:
            count: of them.
            random: of numbers in their bins.
        """
        while len(self._left) < count:
            self._left = np.concatenate([self._left, self._again()])
        taken, self._left = self._left[:count], self._left[count:]
        bins = self._rows[:, taken].T.astype(np.int32)
        return self._numbers.columns.transitions(self._numbers.numbers(bins, random))

    def _again(self) -> NDArray[np.int64]:
        """Return the places of all rows in a fresh order, or as often as there are such rows."""
        count, units = self._rows.shape[1], self._numbers.columns.of("unit")
        if not units:
            return self._random.permutation(count)
        classes = self._rows[units[0]]
        weights = np.bincount(classes, minlength=self._numbers.columns[units[0]].categories)
        shares = self._numbers.unit_shares(weights.astype(np.float64))
        each = np.divide(shares, weights, out=np.zeros(len(shares)), where=weights > 0)
        likely = each[classes]
        drawn = self._random.choice(count, count, p=likely / likely.sum())
        return np.asarray(drawn, np.int64)
