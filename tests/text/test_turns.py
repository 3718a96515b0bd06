"""Turn statistics, against figures counted by hand."""

import numpy as np

from distributed_privrl.text.turns import (
    CELLS,
    COUNT_CELLS,
    COUNT_EDGES,
    JACCARD_CELLS,
    turn_statistics,
    turns,
)

TALK = "Ann: one two three four\nBob: one two five six\nand so on\nAnn: yes"


def test_turns_begin_with_a_name() -> None:
    assert turns(TALK) == ["one two three four", "one two five six\nand so on", "yes"]
    assert turns("At 10:30 we met") == ["At 10:30 we met"]  # no name, no blank after it
    assert turns("x" * 50 + ": said") == ["x" * 50 + ": said"]


def test_distributions_are_those_counted_by_hand() -> None:
    row = turn_statistics([TALK])[0]
    counts, similar = row[:COUNT_CELLS], row[COUNT_CELLS:]
    expected = np.zeros(COUNT_CELLS)
    expected[[0, 2, 3]] = 1 / 3  # 1 word, 4 words, 7 words
    np.testing.assert_allclose(counts, expected)
    expected = np.zeros(JACCARD_CELLS)
    expected[[0, 5]] = 0.5  # nothing in common; 2 of 9 words
    np.testing.assert_allclose(similar, expected)


def test_texts_without_turns_have_zeros_and_others_add_up_to_one() -> None:
    found = turn_statistics(["", " \n ", "word", "w " * 5000, TALK, "::: \n :"])
    assert found.shape == (6, CELLS)
    assert not found[:2].any()
    np.testing.assert_allclose(found[2:5, :COUNT_CELLS].sum(axis=1), 1)
    np.testing.assert_allclose(found[2:5, COUNT_CELLS:].sum(axis=1), 1)
    assert found[3, len(COUNT_EDGES)] == 1  # the last cell has no end
    assert found[2, COUNT_CELLS] == 1  # one turn repeats nothing
