import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.ledger import Ledger, attempts
from tests.worlds.ledgers import open_run, set_budget, url_of


def test_local_means_no_ray():
    assert isinstance(start_executor(RuntimeConfig(executor="local")), LocalExecutor)


def test_termination_is_an_interrupt_inside_the_block_alone():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_transaction_of_the_ledger_is_whole_before_the_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted as it had begun, it stayed open, and the last checkpoint's commit waited for it.

    What is interrupted is the call in which `contextlib` begins it, whose frame refers to it.
    """
    monkeypatch.setattr(attempts, "BUSY_SECONDS", 0.2)
    ledger = Ledger(url_of(tmp_path))
    set_budget(ledger)
    enter = contextlib._GeneratorContextManager.__enter__

    def entered(context: Any) -> Any:
        name = context.func.__name__
        value = enter(context)
        if name == "transaction":
            signal.raise_signal(signal.SIGTERM)
        return value

    with termination_as_interrupt(), monkeypatch.context() as patch:
        patch.setattr(contextlib._GeneratorContextManager, "__enter__", entered)
        with pytest.raises(KeyboardInterrupt) as ended:
            open_run(ledger)
        patch.undo()
        other = Ledger(url_of(tmp_path))
        open_run(other, "other")
        assert {entry.id for entry in other.entries()} == {"run", "other"}
    assert ended.tb is not None


def test_other_threads_leave_signals_alone():
    before, ended = signal.getsignal(signal.SIGTERM), []

    def work():
        with termination_as_interrupt():
            assert signal.getsignal(signal.SIGTERM) is before
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]


STOPPED = """
import signal, sys, time
from distributed_privrl.cli.execution import termination_as_interrupt
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with termination_as_interrupt():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGTERM)
            print("saved", flush=True)
            if sys.argv[1:]:
                signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("more", "said", "code"), [([], "saved\nended\n", 0), (["again"], "saved\n", -signal.SIGINT)]
)
def test_a_second_signal_lets_the_checkpoint_be_written_and_a_third_does_not(more, said, code):
    done = subprocess.run(
        [sys.executable, "-c", STOPPED, *more], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == (said, code)
    assert done.stderr == (
        "stopping: the current step is finished and saved first\n"
        "stopping: a last checkpoint is being written; once more ends at once, without it\n"
    )


def test_a_terminal_that_closes_is_an_interrupt_unless_nohup_ignores_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with termination_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


class InterruptedAtItsEnd:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def test_an_interrupt_in_a_destructor_is_not_lost():
    def work():
        InterruptedAtItsEnd()
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        work()
