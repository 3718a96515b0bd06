"""Which pairs are measured: those whose lack costs more than their noise."""

import math

import numpy as np

from distributed_privrl.methods.privsyn.selection import (
    dense_pairs,
    independent_difference,
    pairs_of,
)
from tests.marginals.rows import few_columns


def error(differences: np.ndarray, cells: np.ndarray, deviation: float, chosen: list[int]) -> float:
    noise = math.sqrt(2 / math.pi) * deviation * float((cells[chosen] ** (2 / 3)).sum()) ** 1.5
    return noise + float(np.delete(differences, chosen).sum())


def test_pairs_are_added_while_that_lowers_the_error() -> None:
    random = np.random.default_rng(0)
    differences, cells = random.gamma(1, 200, 12), random.integers(4, 60, 12)
    chosen = dense_pairs(differences, cells, 1.0)
    assert 0 < len(chosen) < 12
    errors = [error(differences, cells, 1.0, chosen[:count]) for count in range(len(chosen) + 1)]
    assert errors == sorted(errors, reverse=True)
    left = set(range(12)) - set(chosen)
    assert all(error(differences, cells, 1.0, [*chosen, one]) >= errors[-1] for one in left)


def test_nothing_is_measured_where_noise_hides_all_and_all_where_there_is_none() -> None:
    differences, cells = np.array([10.0, 90.0, -5.0]), np.array([16, 16, 16])
    assert dense_pairs(differences, cells, 1e6) == []
    assert sorted(dense_pairs(differences, cells, 1e-9)) == [0, 1]


def test_a_difference_is_the_distance_of_all_cells() -> None:
    counts, expected = np.array([[3, 0], [0, 5]]), np.array([[1, 1], [1, 5]])
    assert independent_difference(counts, expected) == 4


def test_pairs_of_too_many_cells_are_left_out() -> None:
    columns = few_columns()
    assert len(pairs_of(columns, [4, 2, 2, 4, 2], 200)) == 10
    assert (0, 3) not in pairs_of(columns, [4, 2, 2, 4, 2], 15)
