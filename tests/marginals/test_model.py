"""A field over bins: its size and its estimation, against brute force."""

import numpy as np
import pytest

from distributed_privrl.marginals.model import Measured, elimination, estimated
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
