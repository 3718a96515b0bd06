"""A field over bins: its size, its estimation, draws and likelihoods against brute force."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.model import Drawer, Field, Measured, elimination, estimated

SIZES = (2, 3, 2, 4)


def some_field() -> Field:
    """Return a field with a loop: no order draws it without a table of three columns."""
    source = np.random.default_rng(1)
    cliques = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return Field(SIZES, {one: source.normal(size=[SIZES[i] for i in one]) for one in cliques})


def joint(field: Field) -> NDArray[np.float64]:
    """Return the probability of every row, by brute force."""
    logs = np.zeros(field.sizes)
    for clique, values in field.potentials.items():
        shape = [size if i in clique else 1 for i, size in enumerate(field.sizes)]
        logs = logs + values.reshape(shape)
    shares = np.exp(logs)
    return np.asarray(shares / shares.sum())


ROWS = np.array(list(itertools.product(*map(range, SIZES))), np.int32)


@pytest.mark.parametrize("given", [(), (1,), (0, 3), (0, 1, 2)])
def test_likelihoods_are_those_of_the_joint_table(given: tuple[int, ...]) -> None:
    field = some_field()
    whole = joint(field)
    drawn = tuple(i for i in range(len(SIZES)) if i not in given)
    conditional = whole / whole.sum(axis=drawn, keepdims=True)
    found = field.drawer(given).log_likelihoods(ROWS)
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
    field.drawer(given).fill(rows, source)
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


def test_elimination_by_hand() -> None:
    order, cells = elimination((2, 10, 3), [(0, 1), (1, 2)])
    assert order == [(0, (1,)), (1, (2,)), (2, ())]
    assert cells == 2 * 10 + 10 * 3 + 3
    order, cells = elimination((2, 10, 3), [(0, 1), (1, 2)], given=(0, 2))
    assert order[0] == (1, (0, 2))
    assert cells == 60 + 2 * 3 + 3  # summing the middle out joins its neighbours


def test_a_small_decomposable_model_is_estimated_exactly() -> None:
    """Measured without noise, a chain comes back: its counts, and independence given the middle."""
    source = np.random.default_rng(4)
    first, second = source.dirichlet(np.ones(6)).reshape(2, 3), source.dirichlet(np.ones(4), 3)
    chain = first[:, :, None] * second[None]
    total = 5000.0
    measured = [
        Measured((0, 1), total * chain.sum(axis=2), 1.0),
        Measured((1, 2), total * chain.sum(axis=0), np.full((3, 4), 2.0)),
    ]
    found = joint(estimated((2, 3, 4), measured, total=total))
    np.testing.assert_allclose(found, chain, atol=2e-6)


def test_the_less_noisy_of_two_answers_counts_more() -> None:
    loud = Measured((0,), np.array([900.0, 100.0]), 30.0)
    quiet = Measured((0, 1), np.array([[400.0, 100.0], [100.0, 400.0]]), 1.0)
    found = joint(estimated((2, 2), [quiet, loud], total=1000.0))
    assert found.sum(axis=1)[0] == pytest.approx(0.5, abs=0.01)
    assert found[0, 0] == pytest.approx(0.4, abs=0.01)
