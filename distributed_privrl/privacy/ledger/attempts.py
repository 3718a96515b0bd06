"""Doing a transaction again: another one got in its way, or its database was away for a moment."""

import functools
import os
import time
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from distributed_privrl.core.errors import StorageError

BUSY_SECONDS = 60
"""How long a transaction waits for others, and is done again because of them."""
LOST_SECONDS = 30
"""How long a database that was there before may be away; from when a transaction was begun."""
FIRST_SECONDS = 5
"""How long one may be that never was there: its address may be wrong."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class PassingError(StorageError):
    """The database undid a transaction or was lost in it: it may be done again.

    Args:
        message: one line.
        lost: the database is away; else another transaction was in the way.
        first: it never was there.
        unknown: it was lost while it was to commit, and nobody heard whether it did.
    """

    def __init__(
        self, message: str, *, lost: bool = False, first: bool = False, unknown: bool = False
    ) -> None:
        super().__init__(message)
        self.lost = lost
        self.first = first
        self.unknown = unknown


def retried(transaction: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Return a function, all of it one transaction, that starts over when it was undone.

    For a minute at most where another transaction was in its way, for `LOST_SECONDS` where the
    database is away, for `FIRST_SECONDS` where it was never there; then the last error is raised.
    It may have committed without anybody's hearing so: what is decorated must, when it is called
    again, find that and change nothing more.
    """
    return _repeated(transaction, twice=True)


def retried_unless_done(transaction: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Return the same for a function that must not be done twice: it stops where it may be done."""
    return _repeated(transaction, twice=False)


def _repeated(transaction: Callable[_Given, _Answer], *, twice: bool) -> Callable[_Given, _Answer]:
    @functools.wraps(transaction)
    def whole(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        begun, pause, told = time.monotonic(), _FIRST_PAUSE, False
        while True:
            try:
                return transaction(*args, **kwargs)
            except PassingError as error:
                longest = _patience(error)
                if time.monotonic() > begun + longest or (error.unknown and not twice):
                    raise
                if error.lost and not told:
                    told = True
                    warnings.warn(f"{error}: trying again for {longest} s", stacklevel=2)
            time.sleep(pause * (1 + os.urandom(1)[0] / 256))  # so that two do not meet again
            pause = min(2 * pause, _LONGEST_PAUSE)

    return whole


def _patience(error: PassingError) -> float:
    if not error.lost:
        return BUSY_SECONDS
    return FIRST_SECONDS if error.first else LOST_SECONDS
