"""Interruptions that wait until what is being done is whole.

An interruption is asked for first, and raised where work rests: where it tells its progress. Raised
by a signal's handler, it may come out of any call: of one whose library makes another error of it,
or of one that nothing comes out of. So a handler raises only where work does not rest for long.
"""

import threading
from types import TracebackType

_asked = False
_held = 0
_due = False


def ask() -> None:
    """Ask for an interruption, which `rest` raises: for signal handlers."""
    global _asked
    _asked = True


def asked() -> bool:
    """Say whether an interruption was asked for and is still to be raised."""
    return _asked


def withdraw() -> None:
    """Ask for nothing any more: what was to be interrupted has ended."""
    global _asked
    _asked = False


def rest() -> None:
    """Raise `KeyboardInterrupt` if one was asked for and nothing holds it back."""
    if _asked and not _held and threading.current_thread() is threading.main_thread():
        interrupt()


def interrupt() -> None:
    """Raise `KeyboardInterrupt`, now or as soon as nothing holds it back: for signal handlers."""
    global _due
    withdraw()
    if _held:
        _due = True
    else:
        raise KeyboardInterrupt


def raise_if_due() -> None:
    """Raise `KeyboardInterrupt` if one is held back: what is begun shall not be done."""
    if _due and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


class held_back:  # noqa: N801  reads as a verb
    """Holds interruptions back while the block runs, and raises one that came at its end.

    A context that is begun in a call may be interrupted between the call's end and the block's
    begin. Its end is then left to whoever drops the last reference, and the traceback of the
    interruption keeps one: a transaction would stay open while the last checkpoint is written.
    Only the main thread is interrupted, so that blocks of other threads hold nothing back.
    """

    def __enter__(self) -> None:
        global _held
        self._counts = threading.current_thread() is threading.main_thread()
        _held += self._counts

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        global _held, _due
        _held -= self._counts
        if self._counts and _due and not _held:
            _due = False
            raise KeyboardInterrupt
