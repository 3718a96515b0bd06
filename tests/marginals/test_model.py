"""A field over bins: its size and its estimation, against brute force."""

import numpy as np
import pytest

from distributed_privrl.marginals.cleaning import left_after_cleaning
from distributed_privrl.marginals.junction_tree import elimination
from distributed_privrl.marginals.loss import Loss, Measured
from distributed_privrl.marginals.model import _factorised, estimated
from distributed_privrl.marginals.spreading import lines_of
from distributed_privrl.marginals.tables import parts_of
from tests.marginals.fields import joint


def test_elimination_by_hand() -> None:
    order, cells = elimination((2, 10, 3), [(0, 1), (1, 2)])
    assert order == [(0, (1,)), (1, (2,)), (2, ())]
    assert cells == 2 * 10 + 10 * 3 + 3
    order, cells = elimination((2, 10, 3), [(0, 1), (1, 2), (0, 2)])
    assert order[0] == (0, (1, 2))
    assert cells == 60 + 30 + 3


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


def test_estimation_starts_from_what_tells_most_of_each_column() -> None:
    """Two columns decide each other; loose triples, which share more columns, come later."""
    sizes, total = (4, 4, 2, 2), 1000.0
    exact = np.zeros(sizes)
    for i in range(4):
        exact[i, i] = [[0.06, 0.065], [0.065, 0.06]]
    measured = [
        Measured((0, 2, 3), total * exact.sum(axis=1), 1.0),
        Measured((1, 2, 3), total * exact.sum(axis=0), 1.0),
        Measured((0, 1), total * exact.sum(axis=(2, 3)), 1.0),
    ]
    start = _factorised(measured)
    shares = np.exp(sum(start[clique] for clique in start if clique == (0, 1)))
    np.testing.assert_allclose(shares, np.eye(4) / 4, atol=1e-4)
    found = joint(estimated(sizes, measured, total=total))
    np.testing.assert_allclose(found, exact, atol=2e-3)


def test_what_cleaning_emptied_stays_empty_where_counts_disagree() -> None:
    """A flight's route decides its distance, and counts of distances differ by noise."""
    route = 100.0 * np.kron(np.eye(3), np.ones((2, 2)))
    hours = np.outer(route.sum(axis=1) * np.array([0.8, 1.2, 1.1, 0.9, 0.75, 1.25]), [0.5, 0.5])
    strays = []
    noisy = route + np.random.default_rng(0).normal(0, 5.0, route.shape)
    for deviations in (5.0, left_after_cleaning(route, noisy, 5.0)):
        measured = [Measured((0, 1), route, deviations), Measured((0, 2), hours, 5.0)]
        shares = joint(estimated((6, 6, 2), measured, total=1200.0, last=True)).sum(axis=2)
        strays.append(float(shares[route == 0].sum()))
    assert strays[0] > 0.02
    assert strays[1] < 0.005


def test_the_more_cells_are_empty_the_surer_each_of_them_is() -> None:
    noise = np.random.default_rng(0).normal(0, 5.0, 400)
    counts = np.where(np.arange(400) < 10, 300.0, 0.0)
    many = left_after_cleaning(counts, counts + noise, 5.0)
    few = left_after_cleaning(counts[:12], counts[:12] + noise[:12], 5.0)
    assert many[0] == pytest.approx(5.0, abs=0.05)
    assert many[-1] < 0.6
    assert 2.0 < few[-1] < 5.0
    hold = left_after_cleaning(counts, counts + noise + 4.0, 5.0)
    assert 2.5 < hold[-1] < 5.0, "together they hold something"
    assert left_after_cleaning(counts[:5], counts[:5], 5.0).tolist() == [5.0] * 5


def test_no_line_leads_to_an_atom_or_from_it() -> None:
    masses = np.array([10.0, 10.0, 60.0, *[10.0] * 7])
    atoms = np.arange(10) == 2
    parts = parts_of(masses, 3, atoms)
    assert parts.tolist() == [0, 0, 1, 2, 2, 2, 2, 2, 3, 3]
    line = lines_of(masses, parts, atoms)
    np.testing.assert_allclose(line.sum(axis=1), 1)
    assert line[2].tolist() == [0, 1, 0, 0]
    assert not line[~atoms, 1].any()
    rest = lines_of(masses[~atoms], parts_of(masses[~atoms], 3))
    np.testing.assert_allclose(line[~atoms][:, [0, 2, 3]], rest)


def test_sums_over_parts_are_what_an_estimate_agrees_with() -> None:
    """Of three columns in a circle each pair is counted in halves."""
    masses = np.full(8, 125.0)
    line = lines_of(masses, parts_of(masses, 2))
    np.testing.assert_allclose(line.sum(axis=1), 1)
    sides = np.sign(np.arange(8) - 3.5)
    halves = np.outer(masses, masses) / 1000 * (1 + 0.3 * np.outer(sides, sides))
    measured = [Measured((i,), masses, 1.0) for i in range(3)]
    for pair in ((0, 1), (1, 2), (0, 2)):
        measured.append(Measured(pair, halves, 5.0, (line, line)))
    steepest = np.linalg.norm(np.kron(line, line), 2) ** 2 / 25
    alone = Loss((8, 8), [Measured((0, 1), halves, 5.0, (line, line))], 1000.0)
    assert alone.first_step == pytest.approx(2 / (1000 * steepest))
    found = 1000 * joint(estimated((8, 8, 8), measured, total=1000.0))
    for axis in range(3):
        table = found.sum(axis=axis)
        np.testing.assert_allclose(line.T @ table @ line, line.T @ halves @ line, atol=2)
        np.testing.assert_allclose(table.sum(axis=0), masses, rtol=0.03)
