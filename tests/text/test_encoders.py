"""Encoders return unit vectors that tell texts apart."""

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.encoders import HashedEncoder

ABOUT_TRIALS = "A randomised trial of the vaccine in adult patients showed a lower mortality rate."
ALSO_TRIALS = "Mortality in adult patients was lower after the vaccine in a randomised trial."
ABOUT_CODE = "The function returns a list of open files and raises an error when none is found."


def test_rows_have_unit_length_and_texts_without_words_are_zero() -> None:
    rows = HashedEncoder(dimension=64).encode([ABOUT_CODE, "", "... !", "a", "w " * 100_000])
    assert rows.dtype == np.float32
    assert rows.shape == (5, 64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [1, 0, 0, 1, 1], atol=1e-6)


def test_texts_on_the_same_subject_are_nearer() -> None:
    one, other, far = HashedEncoder().encode([ABOUT_TRIALS, ALSO_TRIALS, ABOUT_CODE])
    assert one @ other > 0.4 > 0.15 > one @ far


def test_a_row_depends_on_its_text_alone() -> None:
    encoder = HashedEncoder()
    together = encoder.encode([ABOUT_TRIALS, ABOUT_CODE, "\ud800 x"])
    np.testing.assert_array_equal(together[1], encoder.encode([ABOUT_CODE])[0])
    assert not np.array_equal(together[0], together[1])


def test_cells_are_needed() -> None:
    with pytest.raises(ConfigError, match="dimension"):
        HashedEncoder(dimension=0)
