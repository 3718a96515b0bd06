"""Rows that are adjusted to marginals: they get them, and keep what goes with them."""

import numpy as np
import pytest

from distributed_privrl.methods.privsyn.updating import (
    Bins,
    Target,
    adjusted,
    started,
    update,
    whole,
)

COUNT = 8000


def shares_of(rows: Bins, clique: tuple[int, ...], sizes: tuple[int, ...]) -> np.ndarray:
    found = np.zeros([sizes[i] for i in clique])
    np.add.at(found, tuple(rows[i] for i in clique), 1 / rows.shape[1])
    return found


def test_rows_get_the_marginals_of_a_chain() -> None:
    random = np.random.default_rng(0)
    first = random.dirichlet([1] * 6)
    to_second, to_third = random.dirichlet([0.4] * 5, 6), random.dirichlet([0.4] * 4, 5)
    pair = first[:, None] * to_second
    other = pair.sum(axis=0)[:, None] * to_third
    singles = [first, pair.sum(axis=0), other.sum(axis=0)]
    rows = started(singles, COUNT, random)
    targets = [Target((0, 1), pair), Target((1, 2), other)]
    adjusted(rows, targets, iterations=60, random=random)
    sizes = (6, 5, 4)
    for target in targets:
        off = np.abs(shares_of(rows, target.clique, sizes) - target.shares).sum() / 2
        assert off < 0.02
    # What nobody measured follows: the first and the third column go together through the second.
    implied = pair @ to_third
    unrelated = np.outer(singles[0], singles[2])
    found = shares_of(rows, (0, 2), sizes)
    assert np.abs(found - implied).sum() < 0.5 * np.abs(found - unrelated).sum()


def test_an_update_moves_rows_from_full_cells_to_empty_ones_and_no_others() -> None:
    rows = np.array([[0] * 600 + [1] * 400, [0] * 1000, list(range(2)) * 500], np.int16)
    aim = np.array([[0.4, 0.1], [0.4, 0.1]])
    before = rows.copy()
    off = update(rows, Target((0, 1), aim), 1.0, np.random.default_rng(2))
    assert off == pytest.approx(0.2)
    np.testing.assert_allclose(shares_of(rows, (0, 1), (2, 2)), aim, atol=0.01)
    same = (rows == before).all(axis=0)
    assert same.sum() >= 0.75 * 1000


def test_a_small_step_changes_little() -> None:
    rows = np.array([[0] * 900 + [1] * 100], np.int16)
    update(rows, Target((0,), np.array([0.1, 0.9])), 0.1, np.random.default_rng(0))
    assert 0.1 < shares_of(rows, (0,), (2,))[1] < 0.12


def test_wide_categories_fit() -> None:
    many = 40_000
    singles = [np.ones(many), np.ones(2)]
    rows = started(singles, many, np.random.default_rng(0))
    assert rows.dtype == np.int32
    assert rows[0].max() == many - 1
    update(rows, Target((0, 1), np.full((many, 2), 0.5 / many)), 1.0, np.random.default_rng(1))
    assert rows.min() >= 0


def test_whole_numbers_add_up() -> None:
    for count in (1, 7, 1000):
        shares = np.random.default_rng(count).dirichlet([0.3] * 9)
        found = whole(shares, count)
        assert found.sum() == count
        assert np.abs(found - count * shares).max() < 1
