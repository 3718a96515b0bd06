"""What tells of rows lies in ``private/`` and nowhere else, whatever goes wrong."""

import traceback
import warnings
from pathlib import Path

import pytest

from distributed_privrl.core.errors import RowsError, RowsWarning, StorageError, UnsafeError
from distributed_privrl.experiments.withholding import rows_withheld

WORDS = "3 % of the rows"


def test_a_refusal_is_kept_and_no_traceback_has_its_words(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError) as refused, rows_withheld(tmp_path):
        raise RowsError(WORDS)
    assert WORDS not in "".join(traceback.format_exception(refused.value))
    assert (tmp_path / "private" / "refusal.txt").read_text() == f"{WORDS}\n"


def test_a_refusal_that_cannot_be_kept_is_not_told_either(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("no folder")
    with pytest.raises(StorageError, match="could not be kept") as refused, rows_withheld(tmp_path):
        raise RowsError(WORDS)
    assert WORDS not in "".join(traceback.format_exception(refused.value))


def _warn(out: Path) -> None:
    warnings.simplefilter("error", RowsWarning)
    with rows_withheld(out):
        warnings.warn(WORDS, RowsWarning, stacklevel=1)


def test_a_warning_is_kept_where_warnings_are_errors(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="lies in") as said:
        _warn(tmp_path)
    assert not [one for one in said if WORDS in str(one.message)]
    assert (tmp_path / "private" / "refusal.txt").read_text() == f"{WORDS}\n"
