from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.fidelity import (
    correlation_by_pair,
    correlations,
    fidelity,
    marginal_by_column,
)


def test_marginal_by_hand() -> None:
    reference = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]])
    synthetic = np.array([[2.0, 0.0], [3.0, 9.0]])
    # Column 0: at 1 the distribution functions are 1/2 and 0. Column 1: at 3 they are 1 and 1/2.
    np.testing.assert_allclose(marginal_by_column(reference, synthetic), [0.5, 0.5])
    assert fidelity(reference, synthetic).marginal == 0.5


def test_disjoint_columns_have_marginal_zero_and_equal_ones_one() -> None:
    reference = np.array([[0.0, 5.0], [1.0, 5.0]])
    synthetic = np.array([[7.0, 5.0], [8.0, 5.0]])
    np.testing.assert_allclose(marginal_by_column(reference, synthetic), [0, 1])


def test_correlation_by_hand() -> None:
    rising = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    falling = np.array([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0]])
    corner = np.array([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0]])  # r = -1/2
    assert fidelity(rising, falling).correlation == pytest.approx(0)
    assert fidelity(rising, corner).correlation == pytest.approx(0.25)
    assert fidelity(rising, 3 * rising + 1).correlation == pytest.approx(1)


def test_a_constant_column_correlates_with_nothing() -> None:
    rising = np.array([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    constant = np.array([[0.0, 0.1], [1.0, 0.1], [2.0, 0.1]])
    assert correlations(constant)[0, 1] == 0
    assert fidelity(constant, constant).correlation == 1
    assert fidelity(rising, constant).correlation == pytest.approx(0.5)


def test_correlation_averages_pairs_of_different_columns() -> None:
    base = np.array([0.0, 1.0, 2.0])
    reference = np.stack([base, base, base], axis=1)
    synthetic = np.stack([base, base, -base], axis=1)
    pairs = correlation_by_pair(reference, synthetic)
    np.testing.assert_allclose(pairs, [[1, 1, 0], [1, 1, 0], [0, 0, 1]], atol=1e-12)
    assert fidelity(reference, synthetic).correlation == pytest.approx(1 / 3)


@pytest.mark.parametrize(("maze", "known"), [("umaze", 0.92), ("medium", 0.94), ("large", 0.94)])
def test_rows_without_any_relation_have_a_high_correlation(
    maze: str, known: float, tmp_path: Path
) -> None:
    """What the README says of columns that are shuffled one by one, and a reader must know."""
    store, source = DatasetStore(tmp_path), np.random.default_rng(0)
    collect(f"maze2d-{maze}", dataset="a/b-v0", store=store, steps=30_000, seed=0, options={})
    held = store.read_transitions("a/b-v0", unit="transition")
    parts = held.observations, held.actions, held.rewards[:, None], held.next_observations
    rows = np.concatenate(parts, axis=1).astype(np.float64)
    shuffled = np.stack([source.permutation(column) for column in rows.T], axis=1)
    assert fidelity(rows, shuffled).correlation == pytest.approx(known, abs=0.005)


def test_samples_of_one_distribution_are_close_and_of_another_far() -> None:
    source = np.random.default_rng(0)
    reference, same = source.normal(size=(2, 4000, 3))
    shifted = source.normal(size=(4000, 3)) + 1
    assert fidelity(reference, same).marginal > 0.96
    # The largest gap between N(0, 1) and N(1, 1) is 2 Phi(1/2) - 1 = .383.
    assert fidelity(reference, shifted).marginal == pytest.approx(1 - 0.383, abs=0.03)


@pytest.mark.parametrize(
    ("reference", "synthetic", "message"),
    [
        (np.zeros((2, 3)), np.zeros((2, 2)), "reference has 3 columns"),
        (np.zeros((2, 1)), np.zeros((2, 1)), "two columns"),
        (np.zeros((0, 2)), np.zeros((2, 2)), "reference must be"),
        (np.zeros((2, 2)), np.full((2, 2), np.nan), "synthetic holds values"),
    ],
)
def test_wrong_rows_are_named(reference: np.ndarray, synthetic: np.ndarray, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        fidelity(reference, synthetic)
