"""Measures of texts against known cases."""

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.similarity import Similarity, frechet_distance, similarity
from distributed_privrl.text.text_measures import (
    copies,
    distribution_distance,
    duplicates,
    foreign_words,
    nearest_jaccard,
    turn_counts,
    turn_words,
    word_counts,
)


def test_similarity_of_known_vectors() -> None:
    synthetic = np.array([[2.0, 0], [0, 3], [0, 0]])
    real = np.array([[1.0, 0], [-1, 0], [3, 4]])
    found = similarity(synthetic, real)
    assert found.mean == pytest.approx((1 - 1 + 0.6 + 0 + 0 + 0.8) / 9)
    assert found.maximum == pytest.approx((1 + 0.8 + 0) / 3)


def test_a_text_is_not_compared_with_itself() -> None:
    rows = np.array([[1.0, 0], [0, 1], [0.6, 0.8]])
    assert similarity(rows, rows, itself=True) == Similarity(
        mean=pytest.approx((0 + 0.6 + 0.8) / 3), maximum=pytest.approx((0.6 + 0.8 + 0.8) / 3)
    )
    with pytest.raises(ConfigError, match="not the same"):
        similarity(rows, rows[:2], itself=True)


def test_many_rows_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(11, 3))
    whole = [similarity(rows, rows, itself=True), similarity(rows, rows[:7])]
    monkeypatch.setattr("distributed_privrl.text.similarity._BLOCK", 4)
    pieces = [similarity(rows, rows, itself=True), similarity(rows, rows[:7])]
    for one, other in zip(whole, pieces, strict=True):
        assert (one.mean, one.maximum) == pytest.approx((other.mean, other.maximum))


@pytest.mark.parametrize(
    ("one", "other"), [(np.ones((0, 2)), np.ones((1, 2))), (np.ones((1, 2)), np.ones((1, 3)))]
)
def test_embeddings_that_cannot_be_compared(one: np.ndarray, other: np.ndarray) -> None:
    with pytest.raises(ConfigError):
        similarity(one, other)
    with pytest.raises(ConfigError):
        frechet_distance(one, other)


def test_the_frechet_distance_of_known_normals() -> None:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(400, 3))
    rows = (rows - rows.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(rows.T))).T
    assert frechet_distance(rows, rows) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(rows, rows + np.array([3, 0, 4])) == pytest.approx(25)
    stretched = rows * [2, 1, 5]  # sum of (s - 1)^2
    assert frechet_distance(rows, stretched) == pytest.approx(1 + 16)
    mixing = generator.normal(size=(3, 3))
    one, other = rows @ mixing, stretched @ mixing
    assert frechet_distance(one, other) == pytest.approx(frechet_distance(other, one))


def test_lengths_and_turns() -> None:
    texts = ["a b\n\nc d e", "f"]
    assert word_counts(texts).tolist() == [5, 1]
    assert turn_counts(texts).tolist() == [2, 1]
    assert turn_words(texts).tolist() == [2, 3, 1]
    assert distribution_distance(word_counts, texts, ["a b c", "d " * 7]) == pytest.approx(2)
    assert distribution_distance(turn_words, texts, texts) == 0
    with pytest.raises(ConfigError, match="0 and 2"):
        distribution_distance(turn_words, [""], ["a", "b"])


def test_duplicates_differ_in_case_and_blanks_alone() -> None:
    assert duplicates(["A b", "a  B", "c", "a b"]) == 0.5
    assert duplicates([]) == 0


def test_copies_are_found_and_public_sequences_are_none() -> None:
    real = ["the secret lies under the third old oak tree", "to be or not to be"]
    synthetic = ["They say The secret lies under the hill", "to be or not to go", "nothing here"]
    found = copies(synthetic, real, words=4)
    assert found.texts == pytest.approx(2 / 3)
    assert found.longest == 5
    assert found.words == pytest.approx((5 + 5) / (8 + 6 + 2))
    assert copies(synthetic, real, public=real[1:], words=4).texts == pytest.approx(1 / 3)
    assert copies(synthetic, real, words=6).longest == 0


def test_nearest_jaccard() -> None:
    found = nearest_jaccard(["a b c", "x", ""], ["b c d", "a b c d", ""])
    assert found.tolist() == [0.75, 0, 0]


def test_words_that_no_real_text_has_are_counted_as_runs_of_letters() -> None:
    real = ["The graph, whose edges", "are weighted: a_b 12"]
    assert foreign_words(["the GRAPH; edges 77", "a b whose"], real) == 0
    assert foreign_words(["the graaph", "edges are"], real) == 0.25
    assert foreign_words(["12 34"], real) == foreign_words([], real) == 0
