"""Which joint counts are measured: a public set, by the table's columns and a seed alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.marginals.workload import workload
from distributed_privrl.methods.pgm.config import PgmTable, PgmTraining

_ATOMS = 3
"""Single values of a number (its ends, and zero) that may have bins of their own."""


def public_cliques(
    columns: TableColumns, table: PgmTable, training: PgmTraining, random: np.random.Generator
) -> tuple[Clique, ...]:
    """Return the joint counts that are measured, as many as the model has room for.

    Args:
        columns: of the table. Of two codings of a number, the one as it is stands for both.
        table: bins, and the size of the model.
        training: how many, and in which order they are tried.
        random: public.

    Privacy: no row, and nothing that was released, decides: the choice costs nothing.
    """
    sizes = most_bins(columns, table.bins)
    open_ = replace(columns, unused=frozenset(change for _, change in columns.codings))
    candidates = workload(open_, most_triples=10**9)
    chosen: list[Clique] = []
    left = {2: training.pairs, 3: training.triples}
    for clique in _in_order(list(candidates), candidates, training, random):
        cells = int(np.prod([sizes[i] for i in clique]))
        if not left[len(clique)] or cells > table.cells:
            continue
        if elimination(sizes, [*chosen, clique])[1] <= table.model_cells:
            chosen.append(clique)
            left[len(clique)] -= 1
    return tuple(chosen)


def most_bins(columns: TableColumns, bins: int) -> list[int]:
    """Return how many bins each column may have, whatever its counts are."""
    sizes = [
        one.size
        if one.cells is None or one.size <= bins
        else min(one.size, bins + _ATOMS + one.gaps)
        for one in columns.columns
    ]
    for as_it_is, change in columns.codings:
        sizes[as_it_is] = sizes[change] = max(sizes[as_it_is], sizes[change])
    return sizes


def _in_order(
    cliques: Sequence[Clique],
    weights: dict[Clique, int],
    training: PgmTraining,
    random: np.random.Generator,
) -> list[Clique]:
    """Return pairs, then triples, shuffled; by default those of larger weight first."""
    ranks = random.permutation(len(cliques))
    by_weight = training.order == "workload"

    def rank(place: int) -> tuple[int, int, int]:
        clique = cliques[place]
        return len(clique), -weights[clique] if by_weight else 0, int(ranks[place])

    return [cliques[place] for place in sorted(range(len(cliques)), key=rank)]
