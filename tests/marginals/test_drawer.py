"""Draws and likelihoods of a field, some columns given and some hidden, against brute force."""

import itertools

import numpy as np
import pytest

from distributed_privrl.marginals.drawer import Drawer, drawing_order
from distributed_privrl.marginals.model import Field
from tests.marginals.fields import SIZES, joint, some_field

ROWS = np.array(list(itertools.product(*map(range, SIZES))), np.int32)


@pytest.mark.parametrize("given", [(), (1,), (0, 3), (0, 1, 2)])
def test_likelihoods_are_those_of_the_joint_table(given: tuple[int, ...]) -> None:
    field = some_field()
    whole = joint(field)
    drawn = tuple(i for i in range(len(SIZES)) if i not in given)
    conditional = whole / whole.sum(axis=drawn, keepdims=True)
    found = Drawer(field, given).log_likelihoods(ROWS)
    np.testing.assert_allclose(np.exp(found), conditional.ravel(), rtol=1e-10)


@pytest.mark.parametrize("given", [(), (1,), (0, 3)])
def test_draws_follow_the_conditionals(given: tuple[int, ...]) -> None:
    field, count = some_field(), 200_000
    whole = joint(field)
    drawn = tuple(i for i in range(len(SIZES)) if i not in given)
    rows = np.zeros((count, len(SIZES)), np.int32)
    source = np.random.default_rng(2)
    for column in given:
        rows[:, column] = source.integers(0, SIZES[column], count)
    before = rows[:, list(given)].copy()
    Drawer(field, given).fill(rows, source)
    np.testing.assert_array_equal(rows[:, list(given)], before)
    even = np.prod([SIZES[column] for column in given], initial=1)
    expected = whole / whole.sum(axis=drawn, keepdims=True) / even
    found = np.bincount(np.ravel_multi_index(rows.T, SIZES), minlength=whole.size) / count
    error = np.sqrt(expected.ravel() / count)
    assert (np.abs(found - expected.ravel()) < 6 * error).all()


def test_what_cannot_be_drawn_is_never_drawn_and_its_likelihood_is_finite() -> None:
    logs = np.array([[0.0, -np.inf], [-np.inf, 1.0]])
    drawer = Drawer(Field((2, 2), {(0, 1): logs}))
    rows = np.zeros((500, 2), np.int32)
    drawer.fill(rows, np.random.default_rng(0))
    assert (rows[:, 0] == rows[:, 1]).all()
    found = drawer.log_likelihoods(np.array([[0, 1], [1, 1]], np.int32))
    assert np.isfinite(found).all()
    assert found[0] < -600
    assert np.exp(found[1]) == pytest.approx(np.e / (1 + np.e))


def test_columns_in_no_clique_are_even() -> None:
    rows = np.zeros((30_000, 2), np.int32)
    Drawer(Field((2, 3), {(0,): np.log([0.1, 0.9])})).fill(rows, np.random.default_rng(0))
    assert np.bincount(rows[:, 1]) / 30_000 == pytest.approx([1 / 3] * 3, abs=0.02)


def test_tables_of_a_row_hold_nothing_that_is_given() -> None:
    """Two numbers given, each counted with the third alone: its ten bins are all that is needed."""
    order, cells = drawing_order((200, 10, 300, 4), [(0, 1), (1, 2), (1, 3)], given=(0, 2))
    assert order == [(1, (3,)), (3, ())]
    assert cells == 4 * 10 + 4


@pytest.mark.parametrize("given", [(), (1,), (0, 1)])
def test_likelihoods_are_summed_over_what_is_hidden(given: tuple[int, ...]) -> None:
    field = some_field(hidden=1)
    seen = joint(field).sum(axis=-1)
    drawn = tuple(i for i in range(len(SIZES) - 1) if i not in given)
    conditional = seen / seen.sum(axis=drawn, keepdims=True)
    rows = np.array(list(itertools.product(*map(range, SIZES[:-1]))), np.int32)
    found = Drawer(field, given).log_likelihoods(rows)
    np.testing.assert_allclose(np.exp(found), conditional.ravel(), rtol=1e-9)


def test_rows_are_drawn_with_or_without_what_is_hidden() -> None:
    field, count = some_field(hidden=1), 200_000
    whole = np.zeros((count, len(SIZES)), np.int32)
    Drawer(field).fill(whole, np.random.default_rng(3))
    rows = np.zeros((count, len(SIZES) - 1), np.int32)
    Drawer(field).fill(rows, np.random.default_rng(3))
    np.testing.assert_array_equal(rows, whole[:, :-1])
    expected = joint(field).ravel()
    found = np.bincount(np.ravel_multi_index(whole.T, SIZES), minlength=expected.size) / count
    assert (np.abs(found - expected) < 6 * np.sqrt(expected / count)).all()


def test_many_cases_are_drawn_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few cells are held at a time, the same rows come out."""
    field = some_field()
    rows = np.random.default_rng(0).integers(0, 2, (500, 4)).astype(np.int32)
    again = rows.copy()
    Drawer(field, (0, 2)).fill(rows, np.random.default_rng(1))
    monkeypatch.setattr("distributed_privrl.marginals.drawer._NUMBERS", 10)
    Drawer(field, (0, 2)).fill(again, np.random.default_rng(1))
    np.testing.assert_array_equal(rows, again)
