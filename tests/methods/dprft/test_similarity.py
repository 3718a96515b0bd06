"""Scores are exact: a document's are the same bits beside any documents, in any order and shape."""

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.dprft.similarity import RADIUS, Rounded, Similarity
from distributed_privrl.text.turns import turn_statistics

TALKS = ["A: one two\nB: two three four", "one", "", "A: yes\nB: yes\nA: yes", "w " * 400]


def _unit_rows(count: int, dimension: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, dimension))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_no_rounded_vector_is_longer_than_the_radius() -> None:
    for dimension in (1, 2, 4, 384, 4096):
        similarity = Similarity(dimension=dimension)
        half = np.full(dimension, 0.5)  # ties, which rounding moves outwards all at once
        worst = np.round(similarity.scale / np.sqrt(dimension)) - half
        rows = np.stack([worst, -worst, np.ones(dimension), np.eye(dimension)[0] * 1e30])
        rows = np.concatenate([rows, _unit_rows(8, dimension)]).astype(np.float32)
        squares = np.square(similarity.vectors(rows).astype(np.float64)).sum(axis=1)
        assert squares.max() <= RADIUS**2
        assert squares.min() > 0.9 * RADIUS**2 - RADIUS * np.sqrt(dimension)


def test_what_is_no_number_or_zero_is_the_zero_vector() -> None:
    rows = np.array([[0, 0], [np.nan, 1], [np.inf, 1], [1e-45, 0]], np.float32)
    found = Similarity(dimension=2).vectors(rows)
    assert not found[:3].any()
    np.testing.assert_array_equal(found[3], [Similarity(dimension=2).scale, 0])


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_scores_are_the_same_bits_in_any_block_and_any_order(weight: float) -> None:
    rng = np.random.default_rng(1)
    similarity = Similarity(dimension=384, structure_weight=weight)
    turns = turn_statistics([TALKS[i % 5] for i in range(203)])
    documents = similarity.documents(_unit_rows(203, 384), turns)
    synthetic = similarity.synthetic(
        _unit_rows(17, 384, seed=2), turn_statistics(TALKS * 3 + TALKS[:2])
    )
    similarity.check(synthetic)
    whole = similarity.scores(documents, synthetic)
    assert (whole == np.rint(whole)).all()
    order = rng.permutation(203)
    moved = similarity.documents(_unit_rows(203, 384)[order], turns[order])
    np.testing.assert_array_equal(similarity.scores(moved, synthetic), whole[order])
    for rows in (slice(0, 1), slice(5, 12), slice(100, 203)):
        alone = similarity.documents(_unit_rows(203, 384)[rows], turns[rows])
        np.testing.assert_array_equal(similarity.scores(alone, synthetic), whole[rows])
    exact = documents.vectors.astype(np.int64) @ synthetic.vectors.astype(np.int64).T
    if not weight:
        np.testing.assert_array_equal(whole, exact)


def test_scores_are_cosines_less_the_divergences() -> None:
    similarity = Similarity(dimension=384, structure_weight=0.3)
    documents, synthetic = _unit_rows(5, 384), _unit_rows(5, 384, seed=3)
    turns = turn_statistics(TALKS)
    smooth = turns + 0.01
    smooth = (
        smooth
        / np.concatenate(
            [np.tile(smooth[:, :10].sum(1), (10, 1)), np.tile(smooth[:, 10:].sum(1), (8, 1))]
        ).T
    )
    logs = np.log(np.maximum(turns, 1e-9))
    divergence = (turns[:, None] * (logs[:, None] - np.log(smooth)[None])).sum(axis=2)
    expected = documents @ synthetic.T - 0.3 * divergence
    most = RADIUS**2 / similarity.steps
    found = similarity.scores(
        similarity.documents(documents, turns), similarity.synthetic(synthetic, turns)
    )
    np.testing.assert_allclose(found / similarity.steps, np.clip(expected, -most, most), atol=0.01)
    assert np.abs(found).max() <= RADIUS**2


def test_inexact_or_foreign_batches_are_refused() -> None:
    plain, structured = Similarity(dimension=2), Similarity(dimension=2, structure_weight=1)
    zeros = np.zeros(1)
    for vectors in ([[0.5, 0]], [[4096, 1]], [[np.nan, 0]], [[np.inf, 0]]):
        with pytest.raises(UnsafeError, match="whole numbers"):
            plain.check(Rounded(np.array(vectors, np.float32), None, zeros))
    proper = np.array([[4096, 0]], np.float32)
    plain.check(Rounded(proper, None, zeros))
    with pytest.raises(UnsafeError, match="go together"):
        structured.check(Rounded(proper, None, zeros))
    for logs in (np.full((1, 18), 8193), np.full((1, 18), 0.5), np.full((1, 18), -1)):
        with pytest.raises(UnsafeError, match="from 0 to 8192"):
            structured.check(Rounded(proper, logs.astype(np.float32), zeros))
    with pytest.raises(ConfigError, match="the encoder gave"):
        plain.vectors(np.zeros((1, 3), np.float32))
    with pytest.raises(ConfigError, match="structure_weight"):
        Similarity(dimension=2, structure_weight=-1)
    with pytest.raises(ConfigError, match="above 4096"):
        Similarity(dimension=5000)
