"""Where a run happens, and how it is stopped."""

import contextlib
import json
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from distributed_privrl.core.config import RuntimeConfig
    from distributed_privrl.core.executor import Executor
    from distributed_privrl.core.progress import Progress
    from distributed_privrl.evaluation.trainer import Trainer


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


def check_job(out: Path, ledger: str | None) -> None:
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
    """Treat SIGTERM inside the block like Ctrl-C: a last checkpoint, then the exit."""
    before = signal.getsignal(signal.SIGTERM)
    _stop_on_termination()
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _stop_on_termination() -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
