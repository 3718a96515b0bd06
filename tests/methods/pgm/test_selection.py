"""Which joint counts are measured: a public set that the model has room for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.one_shot import resolved
from distributed_privrl.methods.pgm.config import PgmTable, PgmTraining
from distributed_privrl.methods.pgm.selection import most_bins, public_cliques
from tests.marginals.rows import few_columns


def chosen(columns: TableColumns, seed: int = 0, **settings: Any) -> tuple[tuple[int, ...], ...]:
    table = PgmTable(model_cells=settings.pop("model_cells", 10**6))
    training = PgmTraining(**settings)
    return public_cliques(columns, table, training, np.random.default_rng(seed))


def test_as_many_as_are_asked_for_and_the_paper_s_numbers_by_default() -> None:
    assert (PgmTraining().pairs, PgmTraining().triples, PgmTable().bins) == (50, 10, 10)
    found = chosen(few_columns(), pairs=4, triples=2)
    assert sorted(map(len, found)) == [2, 2, 2, 2, 3, 3]
    everything = chosen(few_columns(), triples=0)
    assert len(everything) == len(set(everything)) == 10


def test_the_model_stays_as_small_as_it_may_be() -> None:
    columns = few_columns()
    sizes = most_bins(columns, 10)
    for limit in (20, 60, 200):
        found = chosen(columns, model_cells=limit)
        assert elimination(sizes, found)[1] <= limit
    assert len(chosen(columns, model_cells=20)) < len(chosen(columns, model_cells=200))


def test_the_order_is_by_weight_or_by_seed_alone() -> None:
    columns = few_columns()
    assert chosen(columns, pairs=3, triples=0, order="random") != chosen(
        columns, seed=1, pairs=3, triples=0, order="random"
    )
    assert chosen(columns, 5, pairs=3) == chosen(columns, 5, pairs=3)
    weighty = chosen(columns, pairs=1, triples=0)
    assert weighty != ((0, 4),)


@pytest.mark.parametrize("kept", [0, 1])
def test_of_two_codings_the_one_that_is_drawn_is_measured(kept: int) -> None:
    columns = few_columns(next_observation="counted")
    ((as_it_is, change),) = columns.codings
    found = chosen(columns)
    assert not any(change in clique for clique in found)
    assert any(as_it_is in clique for clique in found)
    unused = (as_it_is, change)[1 - kept]
    measured = resolved(found, replace(columns, unused=frozenset({unused})))
    assert len(measured) == len(found)
    assert not any(unused in clique for clique in measured)
    assert all(list(clique) == sorted(clique) for clique in measured)
