"""The benchmark of verdicts: its tables, its measures, and how it counts errors."""

import itertools
from typing import Any

import numpy as np
import pytest

from benchmarks import verdicts
from benchmarks.verdicts import TABLES, Cell, best_limit, measures, result_of, rows_of


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_strong_pairs_and_repeat(name: str) -> None:
    rows, again = (rows_of(name, 500, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(rows.observations, again.observations)
    assert rows.observations.shape == (500, TABLES[name].observations)
    assert rows.actions.max() < TABLES[name].actions
    assert np.abs(rows.observations).max() <= 4
    real = verdicts._columns(rows)
    assert measures(real, real) == {"KS": 0.0, "pairs kept": 1.0}


def test_shuffled_columns_keep_no_pair_and_all_columns() -> None:
    rng = np.random.default_rng(1)
    real = verdicts._columns(rows_of("chain", 3000, rng))
    shuffled = np.column_stack([rng.permutation(column) for column in real.T])
    found = measures(real, shuffled)
    assert found["KS"] == 0
    assert found["pairs kept"] == 0


def cell(table: str, grade: str, figure: float, kept: float, distance: float) -> dict[str, Any]:
    about = {"method": "marginals", "units": 100, "epsilon": 1.0, "seed": 0}
    measured = {"grade": grade, "figure": figure, "KS": distance, "pairs kept": kept}
    return {"table": table, **about, **measured}


def test_errors_are_counted_as_what_they_are() -> None:
    rows = [
        cell("chain", "fine", 90, 1.0, 0.01),
        cell("chain", "fine", 70, 0.2, 0.1),
        cell("wide", "hopeless", 3, 0.0, 0.4),
        cell("wide", "hopeless", 5, 0.0, 0.1),
    ]
    ratios = result_of(rows).ratios
    assert ratios["marginals: fine and not useful"] == 0.5
    assert ratios["marginals: refused and surviving"] == 0.5


def test_a_limit_sets_good_runs_apart_on_either_side() -> None:
    rows = [cell("chain", "fine", figure, float(figure > 4), 0.4) for figure in (1, 2, 8, 16)]
    assert 2 < best_limit(rows, verdicts.is_useful, 1.0) < 8
    falling = [row | {"pairs kept": 1 - row["pairs kept"]} for row in rows]
    assert 2 < best_limit(falling, verdicts.is_useful, -1.0) < 8


def test_cells_have_names_of_their_own() -> None:
    every = itertools.product(TABLES, verdicts.METHODS, verdicts.UNITS, (0.3, 1.0), (0, 1))
    names = [
        Cell(table=table, method=method, units=units, epsilon=epsilon, seed=seed).name
        for table, method, units, epsilon, seed in every
    ]
    assert len(set(names)) == len(names)
