"""How large a model may be, and how fast it may grow."""

from collections.abc import Collection
from dataclasses import dataclass

from distributed_privrl.marginals.drawer import drawing_order
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.tables import Clique


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Limits of a model.

    Args:
        sizes: bins of each column.
        model_cells: of its tables together.
        row_cells: of the tables that one row is drawn by, where columns are given.
        given: columns that others are drawn given; see `drawer.Drawer`.
        planned: joint counts of the whole run.
    """

    sizes: tuple[int, ...]
    model_cells: int
    row_cells: int
    given: tuple[int, ...]
    planned: int

    def share(self, number: int) -> float:
        """Return how much of its size the model may have with so many joint counts.

        It may grow with each one alike: what the first ones took of its size would be lacking for
        relations that are as strong.

        Reference: McKenna et al., "AIM: an adaptive and iterative mechanism" (2022), algorithm 4.
        """
        return min(1.0, number / max(self.planned, 1))

    def allows(self, cliques: Collection[Clique], share: float = 1.0) -> bool:
        """Say whether a model of cliques stays within a share of its size."""
        _, cells = elimination(self.sizes, cliques)
        if cells > share * self.model_cells or not self.given:
            return cells <= share * self.model_cells
        _, cells = drawing_order(self.sizes, cliques, self.given)
        return cells <= share * self.row_cells
