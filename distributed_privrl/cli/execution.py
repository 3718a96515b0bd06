"""Where a run happens, and how it is stopped."""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from distributed_privrl.cli.logs import as_json
from distributed_privrl.core import interrupts

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from distributed_privrl.core.config import RuntimeConfig
    from distributed_privrl.core.executor import Executor
    from distributed_privrl.core.places import Place
    from distributed_privrl.core.progress import Progress
    from distributed_privrl.evaluation.trainer import Trainer


STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PACKAGE = __name__.partition(".")[0]
_REMINDER = signal.SIGURG
"""By which this process comes back to what it was asked: ignored by others, as few signals are."""
_MOMENT = 0.02
"""Seconds between two looks at work that was asked to stop and has not."""
_PATIENCE = 1.0
"""Seconds in which work may come to a rest; then it is stopped in the package's own code."""
_LONGEST = 4.0
"""Seconds after which it is stopped wherever it is: in a library, or in a wait."""
STOPPING = "stopping: the current step is finished and saved first"
"""Said at the first signal: a run writes a last checkpoint, other commands clear up."""
ONCE_MORE = "stopping: a last checkpoint is being written; once more ends at once, without it"


def start_executor(runtime: "RuntimeConfig") -> "Executor":
    """Return the executor that ``runtime.executor`` names; call it in `termination_as_interrupt`.

    Raises:
        ConfigError: Ray has fewer CPUs or GPUs than the workers ask for.
    """
    from distributed_privrl.runtime import launch

    return launch.start_executor(runtime)


def deferred_executor(runtime: "RuntimeConfig") -> "Executor":
    """Return the same, but Ray starts once a run needs it: most refusals come before.

    Raises:
        ConfigError: the cluster's address is no cluster's.
        UnsafeError: no token would be asked for.
    """
    from distributed_privrl.runtime import launch

    return launch.deferred_executor(runtime)


def metered(progress: "Progress", runtime: "RuntimeConfig") -> "Progress":
    """Return a progress that also sets a cluster's gauges."""
    from distributed_privrl.runtime import launch

    return launch.metered(progress, runtime)


def rllib_trainers() -> "Mapping[str, Trainer]":
    """Return RLlib's trainers by name; torch and Ray are imported once one trains."""
    from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS

    return RLLIB_TRAINERS


def check_job(out: "Place", ledger: str | None) -> None:
    """Refuse, in a job of a cluster, what its next start would not find; see `runtime.jobs`.

    Raises:
        UnsafeError: the ledger or the folder lies on a machine of the cluster.
    """
    from distributed_privrl.runtime import jobs

    jobs.check_job(out, ledger)


def rows_kept_from_log(out: Path) -> "AbstractContextManager[None]":
    """In a job of a cluster, keep what tells of rows from its log; see `runtime.jobs`."""
    from distributed_privrl.runtime import jobs

    return jobs.rows_kept_from_log(out)


def tell_certificate(certificate: Path) -> None:
    """Print a certificate as one line, in a job of a cluster: `privrl submit` brings it back."""
    from distributed_privrl.runtime import jobs

    if jobs.in_job():
        content = json.loads(certificate.read_text())
        typer.echo(f"{jobs.CERTIFICATE_MARK}{json.dumps(content)}")


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP inside the block like Ctrl-C: a last checkpoint, then the exit.

    The first two say what is being done, and the second changes nothing; the third ends the process
    on the spot. A signal that is ignored, as SIGHUP under ``nohup``, stays ignored. The interrupt
    comes where work rests (`core.interrupts`), and elsewhere where that takes more than a second.
    Of one that comes after the last rest nothing is left at the block's end: the work is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in STOPS}
    heeded = [one for one, handler in before.items() if handler is not signal.SIG_IGN]
    stop = _Stop(heeded, unraisable=sys.unraisablehook)
    sys.unraisablehook = stop.swallowed
    for one in heeded:
        signal.signal(one, stop)
    reminded = signal.signal(_REMINDER, stop.insist)
    try:
        yield
    finally:
        interrupts.withdraw()
        sys.unraisablehook = stop.unraisable
        for one in heeded:
            signal.signal(one, before[one])
        signal.signal(_REMINDER, reminded)


class _Stop:
    """What signals do, one after the other.

    Args:
        heeded: the signals that count.
        unraisable: what is told of errors that go no further.
    """

    def __init__(
        self, heeded: Sequence[signal.Signals], *, unraisable: Callable[[Any], Any]
    ) -> None:
        self.unraisable = unraisable
        self._heeded = heeded
        self._stopping = False
        self._since = 0.0

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        """Ask the work to stop, or say that it is being done."""
        if not self._stopping:
            self._stopping = True
            _say(STOPPING)
            self._ask(_PATIENCE)
            return
        for one in self._heeded:
            signal.signal(one, signal.SIG_DFL)
        _say(ONCE_MORE)

    def insist(self, _signal: int, frame: FrameType | None) -> None:
        """Stop what did not come to a rest: in code of the package, after a while in any other."""
        own = frame is not None and _is_own(frame)
        if interrupts.asked() and (own or time.monotonic() - self._since > _LONGEST):
            interrupts.interrupt()

    def swallowed(self, error: Any) -> None:
        """Ask again where a destructor or a generator's end was interrupted.

        An error there goes no further: Python would show it, and the run would go on.
        """
        if error.exc_type is not KeyboardInterrupt:
            self.unraisable(error)
        elif self._stopping:
            self._ask(_MOMENT)

    def _ask(self, patience: float) -> None:
        interrupts.ask()
        self._since = time.monotonic()
        threading.Thread(target=_remind, args=[patience], daemon=True).start()


def _remind(patience: float) -> None:
    """Come back to the main thread until what was asked of it is done."""
    time.sleep(patience)
    while interrupts.asked():
        signal.pthread_kill(threading.main_thread().ident or 0, _REMINDER)
        time.sleep(_MOMENT)


def _is_own(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE


def _say(message: str) -> None:
    """Write a line past the stream, which may be in the middle of a line of its own."""
    line = json.dumps({"level": "info", "message": message}) if as_json() else message
    os.write(2, f"{line}\n".encode())
