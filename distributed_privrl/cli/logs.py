"""What goes to standard error as one JSON object a line, where `PRIVRL_LOG=json` asks for it.

No line has a time: when a line of private rounds was written tells how long they took, which is
private (PRIVACY.md, section 5). Whoever collects the lines should add none for these stages either.
"""

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

import typer

from distributed_privrl.core.errors import ConfigError

VARIABLE = "PRIVRL_LOG"
_LEVELS = {"warning: ": "warning", "error: ": "error", "unexpected error: ": "error"}
"""By what a line begins with, which is then left out."""


def as_json() -> bool:
    """Say whether lines are JSON.

    Raises:
        ConfigError: the variable is neither ``text`` nor ``json``.
    """
    asked = os.environ.get(VARIABLE, "text")
    if asked not in ("text", "json"):
        raise ConfigError(f"{VARIABLE}={asked} is neither text nor json")
    return asked == "json"


def tell_owner(lines: Iterable[str]) -> None:
    """Write what the owner of rows alone may see to standard error; not where a collector reads it.

    Args:
        lines: from the rows.
    """
    if as_json():
        typer.echo(f"notes to the owner are for a terminal: without {VARIABLE}=json", err=True)
        return
    for line in lines:
        typer.echo(line, err=True)


@contextlib.contextmanager
def lines_of_errors() -> Iterator[None]:
    """Make each line that is written to standard error a JSON object, if it is asked for."""
    if not as_json():
        yield
        return
    before = sys.stderr
    lines = JsonLines(before)
    sys.stderr = lines
    try:
        yield
    finally:
        lines.finish()
        sys.stderr = before


class _Told(logging.Handler):
    """Writes a record as a line of standard error, whatever that is at the time."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record with its level before it."""
        level = "error" if record.levelno >= logging.ERROR else "warning"
        with contextlib.suppress(ValueError, OSError):  # closed, or nobody reads it
            sys.stderr.write(f"{level}: {self.format(record)}\n")


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Tell what is logged, from warnings on, in the words of other lines of the command line.

    Libraries that find no handler install their own. It writes in another form, and to the standard
    error of that moment, which may be closed when it is used again.
    """
    told, root = _Told(logging.WARNING), logging.getLogger()
    root.addHandler(told)
    try:
        yield
    finally:
        root.removeHandler(told)


class JsonLines(io.TextIOBase):
    """A stream that writes each line as ``{"level": ..., "message": ...}``.

    A line that is a JSON object already passes as it is.

    Args:
        stream: where the objects go.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rest = stream, ""

    def writable(self) -> bool:
        """Say that it may be written to."""
        return True

    def write(self, text: str) -> int:
        """Write the lines that are whole now."""
        *whole, self._rest = (self._rest + text).split("\n")
        for line in whole:
            self._tell(line)
        return len(text)

    def flush(self) -> None:
        """Flush what was written."""
        self._stream.flush()

    def finish(self) -> None:
        """Write what is left of a line."""
        self._tell(self._rest)
        self._rest = ""
        self.flush()

    def _tell(self, line: str) -> None:
        line = line.rstrip()
        if line:
            self._stream.write(line if _is_object(line) else json.dumps(_levelled(line)))
            self._stream.write("\n")


def progress_line(stage: str, done: int, total: int, **more: Any) -> str:
    """Return a line of progress; what is empty in ``more`` is left out."""
    facts = {"level": "info", "stage": stage, "done": done, "total": total}
    return json.dumps(facts | {name: value for name, value in more.items() if value})


def _levelled(line: str) -> dict[str, str]:
    for start, level in _LEVELS.items():
        if line.startswith(start):
            return {"level": level, "message": line.removeprefix(start)}
    return {"level": "info", "message": line}


def _is_object(line: str) -> bool:
    try:
        return line.startswith("{") and isinstance(json.loads(line), dict)
    except ValueError:
        return False
