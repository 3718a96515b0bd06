"""Nothing of what a library does with private rows is printed, past Python's streams either."""

import contextlib
import ctypes
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def silent_descriptors() -> Iterator[None]:
    """Let the process's standard output and error lead nowhere."""
    _flush()  # what was said before
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in kept:
            os.dup2(nowhere, number)
        yield
        _flush()
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)
        os.close(nowhere)


def _flush() -> None:
    """Write out what the streams of Python and of libraries hold back."""
    for stream in (sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(ValueError, OSError):  # closed, or nobody reads it
                stream.flush()
    ctypes.CDLL(None).fflush(None)


def of_any(work: Callable[[], T], otherwise: T) -> T:
    """Return what a library makes of something private; ``otherwise`` where it fails of it.

    Args:
        work: calls the library.
        otherwise: in place of what it fails of.

    Privacy: what a library raises would end a run after its charge, which tells of a single text,
    and so would what it prints. Panics of Rust are no `Exception`, and print by themselves.
    """
    said = io.StringIO()
    with (
        silent_descriptors(),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        try:
            return work()
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return otherwise
