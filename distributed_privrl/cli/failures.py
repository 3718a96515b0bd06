"""What a user sees when something goes wrong: one line and an exit code."""

import errno
import traceback
from pathlib import Path

import typer
from typer import TyperException

from distributed_privrl.core.errors import INTERRUPTED_EXIT_CODE, PrivRLError, StorageError
from distributed_privrl.core.files import DISK_FULL
from distributed_privrl.core.folders import as_given

UNEXPECTED_EXIT_CODE = 1
INTERRUPTED_LINE = "interrupted: run the same command again"
_LONGEST_UNEXPECTED = 400
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class InterruptedRunError(PrivRLError):
    """The user or the system stopped a command; the message says how to go on."""

    exit_code = INTERRUPTED_EXIT_CODE


def interrupted_anew(out: Path) -> InterruptedRunError:
    """Return what ends a command that was stopped and whose ``out`` must be a new folder.

    Args:
        out: the folder; what the command left in it is in the way of another start.
    """
    if out.is_dir() and any(out.iterdir()):
        return InterruptedRunError(
            f"interrupted: delete {out} or give another --out, and run the command again"
        )
    return InterruptedRunError(INTERRUPTED_LINE)


def report_failure(error: Exception, *, debug: bool) -> int:
    """Write one line about ``error`` to standard error, and return the exit code.

    Args:
        error: whatever ended the command.
        debug: write its traceback first.
    """
    if debug and not isinstance(error, TyperException):
        typer.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    code, line = described(error)
    typer.echo(as_given(line), err=True)
    return code


def described(error: Exception) -> tuple[int, str]:
    """Return the exit code and the one line of an error."""
    if isinstance(error, TyperException):
        return error.exit_code, _usage_line(error)
    failure = storage_failure(error) if isinstance(error, OSError) else None
    if failure is not None:
        return failure.exit_code, f"error: {_one_line(failure)}"
    if isinstance(error, PrivRLError):
        return error.exit_code, f"{_label(error)}{_one_line(error)}"
    return UNEXPECTED_EXIT_CODE, _unexpected_line(error)


def storage_failure(error: OSError) -> StorageError | None:
    """Return what a full disk or a path without rights is to a user; None: it is neither."""
    if error.errno in DISK_FULL:
        return StorageError(f"the disk is full{_where(error)}: free some space and run again")
    if error.errno in _NOT_ALLOWED or isinstance(error, PermissionError):
        return StorageError(
            f"no right to use the path{_where(error)}: change its rights or choose another"
        )
    return None


def _usage_line(error: TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = "privrl" if context is None else context.command_path
    message = " ".join(error.format_message().split()).rstrip(".").replace("Value error, ", "")
    return f"error: {message}: see `{command} --help`"


def _unexpected_line(error: Exception) -> str:
    # An error inside a worker arrives wrapped, with its traceback as the message.
    cause = getattr(error, "cause", None)
    shown = cause if isinstance(cause, Exception) else error
    text = f"{type(shown).__name__}: {_one_line(shown)}".removesuffix(": ")
    if len(text) > _LONGEST_UNEXPECTED:
        text = f"{text[:_LONGEST_UNEXPECTED]}..."
    return f"unexpected error: {text}; run again with --debug for the traceback"


def _label(error: PrivRLError) -> str:
    return "" if isinstance(error, InterruptedRunError) else "error: "


def _one_line(error: Exception) -> str:
    return " ".join(" ".join((str(error), *getattr(error, "__notes__", ()))).split())


def _where(error: OSError) -> str:
    return f" ({error.filename})" if error.filename else ""
