"""Counts a process's file operations under a folder, and kills the process before one of them."""

import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

_CHANGES = {
    "os.rename": 2,
    "os.remove": 1,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.chmod": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "sqlite3.connect": 1,
}
"""Audit events that change files, and how many paths each names first."""

_DESCRIPTOR_AT = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.chmod": 2, "os.rename": 2}
"""Where an event names the open folder that its path is relative to, as `shutil.rmtree` has it."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
_OWN_NAMES = re.compile(r"[0-9a-f]{8,}")


class Operations:
    """Watches this process from now on; it cannot be stopped.

    Args:
        root: whose files count.
        kill_before: number of the operation, from 1, before which the process kills itself; None:
            it only counts.
    """

    def __init__(self, root: Path, kill_before: int | None) -> None:
        self.seen: list[str] = []
        self._root = str(root)
        self._kill_before = kill_before
        sys.addaudithook(self._audit)
        event.listen(Engine, "commit", lambda _: self._happens("ledger commit"))

    def _audit(self, name: str, arguments: tuple[Any, ...]) -> None:
        if name == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITING and self._counts(path):
                self._happens(f"open {self._shown(path)}")
        elif (paths := _CHANGES.get(name)) is not None:
            at = _DESCRIPTOR_AT.get(name)
            inside = at is not None and len(arguments) > at and arguments[at] not in (-1, None)
            if inside or any(map(self._counts, arguments[:paths])):
                self._happens(f"{name} {' '.join(map(self._shown, arguments[:paths]))}")

    def _counts(self, path: object) -> bool:
        return isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(
            self._root
        )

    def _shown(self, path: object) -> str:
        """Return a path below the root, without the parts that differ from run to run."""
        if not isinstance(path, str | bytes | os.PathLike):
            return str(path)
        return _OWN_NAMES.sub("*", os.fsdecode(path).replace(f"{self._root}/", ""))

    def _happens(self, what: str) -> None:
        self.seen.append(what)
        if len(self.seen) == self._kill_before:
            os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[], None], *, log: Path) -> int:
    """Run ``work`` in a fork of this process and return its exit code, negative after a signal.

    Args:
        work: what to do; `SystemExit` sets the code, any other error is 1.
        log: file that what it prints is added to.
    """
    code = exit_code(forked(work, log=log))
    assert code is not None
    return code


def exit_code(child: int, *, block: bool = True) -> int | None:
    """Return a fork's exit code, negative after a signal; None: it runs, and nobody waits."""
    ended, status = os.waitpid(child, 0 if block else os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def cpu_seconds(child: int) -> float:
    """Return what a fork has computed so far: a run's progress, however busy the machine is."""
    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def forked(work: Callable[[], None], *, log: Path) -> int:
    """Begin ``work`` in a fork of this process, as `in_child` does, and return its id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with log.open("a") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        work()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # the parent is told by the code
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
