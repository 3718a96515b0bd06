"""What public rows say of a table: relations that need no budget until sensitive rows differ.

Public rows are weighted until they agree with all that was released, and their joint counts then
stand in the model beside the released ones. So choices ask for what public rows do not know, and
what was measured wins over them.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StepSource
from distributed_privrl.marginals.tables import Clique, counts_of, raked

Told = TypeVar("Told")
_NOTHING = 1e-300
_PER_COLUMN = 2
"""Joint counts of public rows in a model, for each column."""


def public_cells(
    columns: TableColumns,
    sources: Sequence[StepSource],
    *,
    most: int,
    random: np.random.Generator,
) -> NDArray[np.int32]:
    """Return the cells ``(N, V)`` of public rows, of ``most`` that are drawn if there are more.

    Args:
        columns: of the table.
        sources: of public rows, which nobody is to be protected from.
        most: rows at most.
        random: of the draw.
    """
    parts = [np.empty((0, len(columns)), np.int32)]
    for source in sources:
        for steps, _ in source():
            coded = columns.coded(steps)
            parts.append(coded.cells[coded.valid])
    cells = np.concatenate(parts)
    if len(cells) > most:
        cells = cells[np.sort(random.choice(len(cells), most, replace=False))]
    return cells


class PublicRows:
    """Public rows in the bins of a table.

    Args:
        rows: ``(N, V)`` bins.
        sizes: bins of each column.
        candidates: joint counts, with their weights.
        margins: ``(K,)`` of each column, as released.
        columns: of the table; public rows tell nothing of units.
    """

    def __init__(
        self,
        rows: NDArray[np.int32],
        sizes: Sequence[int],
        candidates: Mapping[Clique, int],
        margins: Mapping[Clique, NDArray[np.float64]],
        columns: TableColumns,
    ) -> None:
        self._rows, self._sizes, self._columns = rows, sizes, columns
        self._followed = np.flatnonzero(columns.followed(rows))
        self._margins = self._told(margins)
        weights = self._weights({})
        strengths = {
            clique: weight * self._strength(clique, weights)
            for clique, weight in self._told(candidates).items()
            if len(clique) == 2  # three columns decide too much of a model's size
        }
        strongest = sorted((one for one in strengths if strengths[one] > 0), key=strengths.get)  # type: ignore[arg-type]
        self.cliques: tuple[Clique, ...] = tuple(strongest[::-1][: _PER_COLUMN * len(sizes)])
        """Pairs of columns that go together, the strongest first."""

    def tables(
        self, cliques: Sequence[Clique], released: Mapping[Clique, NDArray[np.float64]]
    ) -> dict[Clique, NDArray[np.float64]]:
        """Return shares of joint counts, by public rows that agree with all that was released.

        Args:
            cliques: that are asked for.
            released: cleaned joint counts.
        """
        weights = self._weights(released)
        return {one: self._shares(one, weights) for one in cliques}

    def _weights(self, released: Mapping[Clique, NDArray[np.float64]]) -> NDArray[np.float64]:
        even = np.full(len(self._rows), 1 / len(self._rows))
        tables = {**self._margins, **self._told(released)}
        within = {one: self._followed for one in released if self._columns.only_followed(one)}
        return raked(self._rows, even, tables, self._sizes, within=within)

    def _shares(self, clique: Clique, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return shares of a joint count's cells, of the rows that it is of."""
        if not self._columns.only_followed(clique):
            return counts_of(self._rows, clique, self._sizes, weights)
        own = weights[self._followed]
        found = counts_of(self._rows[self._followed], clique, self._sizes, own)
        return np.asarray(found / max(float(own.sum()), _NOTHING))

    def _told(self, tables: Mapping[Clique, Told]) -> dict[Clique, Told]:
        """Return those of columns that public rows tell of."""
        untold = set(self._columns.of("unit"))
        return {one: table for one, table in tables.items() if not untold & set(one)}

    def _strength(self, clique: Clique, weights: NDArray[np.float64]) -> float:
        """Return how far two columns are from unrelated, less what so few rows show by chance."""
        shares = self._shares(clique, weights)
        unrelated = np.outer(shares.sum(axis=1), shares.sum(axis=0))
        effective = 1 / float((weights**2).sum())
        chance = float(np.sqrt(2 * unrelated / (np.pi * effective)).sum())
        return float(np.abs(shares - unrelated).sum()) - chance
