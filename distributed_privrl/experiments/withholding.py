"""Keeping what tells of sensitive rows from logs that others read: it goes into ``private/``."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import RowsError, RowsWarning, StorageError, UnsafeError
from distributed_privrl.core.folders import as_given
from distributed_privrl.experiments.directory import RunDirectory


@contextlib.contextmanager
def rows_withheld(out: Path) -> Iterator[None]:
    """Write refusals and warnings that tell of rows into ``private/``; say only where they lie.

    Args:
        out: a run's folder, or a sweep's; it is made where there is something to keep.

    Raises:
        UnsafeError: in place of a `RowsError`, without its words.
        StorageError: likewise, where they cannot be kept.

    Privacy: no traceback has the words either, not even that of a folder that cannot be written.
    """
    directory = RunDirectory(out.absolute())
    words: list[str] = []

    def keep(text: str) -> None:
        words.append(text)
        directory.write_private(directory.refusal_path.name, "\n".join(words) + "\n")

    def show(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if not issubclass(category, RowsWarning):
            shown(message, category, *place, **more)
            return
        keep(str(message))
        where = as_given(str(directory.refusal_path))
        text = f"a warning that tells of rows lies in {where}, for their owner"
        shown(text, UserWarning, *place, **more)

    refused: str | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("always", RowsWarning)  # made an error, it would be in a traceback
        shown, warnings.showwarning = warnings.showwarning, show
        try:
            yield
        except RowsError as error:
            refused = " ".join((str(error), *getattr(error, "__notes__", ())))
    if refused is not None:  # each error below would have the one above as its context
        try:
            keep(refused)
        except StorageError as error:
            why = str(error)
            raise StorageError(
                f"the rows are refused, and why could not be kept for their owner alone: {why}"
            ) from None
        raise UnsafeError(
            "the rows are refused, for a reason that tells of them: it lies in"
            f" {directory.refusal_path}, for their owner alone"
        ) from None
