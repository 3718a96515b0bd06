"""The model of a table as released counts have it, and rows drawn from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import ColumnShape, drawn_numbers
from distributed_privrl.marginals.tables import Clique, counts_of, local_correlation

_UNRELATED = 0.05
"""Numbers whose bins correlate less than this lie in their bins independently of each other."""


@dataclass(frozen=True, eq=False)
class Coupling:
    """How a number lies in its bin, given how another lies in its own.

    Args:
        leader: the other's place.
        correlations: ``(K, L)``, for each of the other's bins and of the number's.
    """

    leader: int
    correlations: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NumberModel:
    """Which numbers lie in the bins of a table's rows; all of it released or public.

    Args:
        columns: of the table.
        shapes: of each column; those of columns that share one are the same.
        couplings: of numbers, by place.
    """

    columns: TableColumns
    shapes: tuple[ColumnShape, ...]
    couplings: dict[int, Coupling]

    def numbers(
        self,
        bins: NDArray[np.int32],
        random: np.random.Generator,
        *,
        places: Sequence[int] | None = None,
        scores: NDArray[np.float64] | None = None,
    ) -> list[NDArray[np.float64]]:
        """Return numbers, or categories from 0, of each column ``(N,)``.

        Args:
            bins: ``(N, V)``.
            random: of the draws.
            places: columns that are asked for; others are empty. None: all.
            scores: ``(N, V)`` normal scores of where numbers lie in their bins, written for those
                that are asked for, read for others. None: nothing is known.
        """
        asked = range(len(self.columns)) if places is None else places
        if scores is None:
            scores = np.zeros(bins.shape)
        numbers = [np.empty(0)] * len(self.columns)
        for place in self._leaders_first(asked):
            column = self.columns[place]
            if column.cells is not None:
                scores[:, place] = random.standard_normal(len(bins))
                coupling = self.couplings.get(place)
                if coupling is not None:
                    leader = coupling.leader
                    together = coupling.correlations[bins[:, leader], bins[:, place]]
                    scores[:, place] *= np.sqrt(1 - together**2)
                    scores[:, place] += together * scores[:, leader]
            numbers[place] = drawn_numbers(
                column, self.shapes[place], bins[:, place], ndtr(scores[:, place])
            )
        return numbers

    def _leaders_first(self, asked: Sequence[int]) -> list[int]:
        order: list[int] = []

        def add(place: int) -> None:
            if place in order or place not in asked:
                return
            if place in self.couplings:
                add(self.couplings[place].leader)
            order.append(place)

        for place in asked:
            add(place)
        return order

    def unit_shares(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how often rows of units of each class are drawn: as often as there are such rows.

        Args:
            weights: ``(K,)`` of all rows of each class, as they are counted.
        """
        sizes = self.columns.unit_sizes
        assert sizes is not None
        shares = weights * sizes.rows
        return np.asarray(shares / shares.sum())


@dataclass(frozen=True, eq=False)
class TableModel(NumberModel):
    """A distribution over rows of a table; all of it released or public.

    Args:
        field: over bins.
        lengths: weight of trajectories by the group of their last step; empty: nobody counted.
        laterals: shares of the cells of observations that go together after a step, too, and of
            which the field does not tell it; see `laterals`.
    """

    field: Field
    lengths: NDArray[np.float64]
    laterals: Mapping[Clique, NDArray[np.float64]] = dataclass_field(default_factory=dict)

    def transitions(self, count: int, random: np.random.Generator) -> Transitions:
        """Return ``count`` independent transitions."""
        rows = np.zeros((count, len(self.columns)), np.int32)
        for place in self.columns.of("unit"):
            self.draw_units(rows, self.shapes[place].bin_masses, random)
        Drawer(self.field, self.columns.of("unit")).fill(rows, random)
        return self.columns.transitions(self.numbers(rows, random))

    def draw_units(
        self, rows: NDArray[np.int32], weights: NDArray[np.float64], random: np.random.Generator
    ) -> None:
        """Draw how large the unit of each row is, as often as rows are of such units, in place.

        Args:
            rows: ``(N, V)``.
            weights: ``(K,)`` of all rows of each class, as they are counted.
            random: of the draws.
        """
        (place,) = self.columns.of("unit")
        shares = self.unit_shares(weights)
        rows[:, place] = random.choice(len(shares), len(rows), p=shares)


def couplings(
    columns: TableColumns,
    sizes: Sequence[int],
    cliques: Sequence[Clique],
    rows: NDArray[np.integer],
) -> dict[int, Coupling]:
    """Return how numbers lie in their bins, for those that were counted together.

    Args:
        columns: of the table.
        sizes: bins of each column.
        cliques: that were measured.
        rows: ``(N, V)``, drawn from the model.

    Each number follows at most one other, the one that it goes with most, among those before it.
    """
    found: dict[int, Coupling] = {}
    ranks = _ranks(rows)
    for place in range(len(columns)):
        if columns[place].cells is None:
            continue
        leaders = {
            other
            for clique in cliques
            if place in clique
            for other in clique
            if other < place and columns[other].cells is not None
        }
        if not leaders:
            continue
        strength = {one: abs(float(np.mean(ranks[:, one] * ranks[:, place]))) for one in leaders}
        leader = max(sorted(leaders), key=strength.__getitem__)
        if strength[leader] < _UNRELATED:
            continue
        table = counts_of(rows, (leader, place), sizes)
        found[place] = Coupling(leader, local_correlation(table))
    return found


def _ranks(rows: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the standardised ranks of each column's bins, ``(N, V)``."""
    ranks = np.zeros(rows.shape)
    for place in range(rows.shape[1]):
        counts = np.bincount(rows[:, place])
        middle = np.cumsum(counts) - counts / 2
        own = middle[rows[:, place]]
        deviation = own.std()
        ranks[:, place] = (own - own.mean()) / deviation if deviation > 0 else 0.0
    return ranks
