import contextlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.cli import execution
from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
from distributed_privrl.cli.progress import PlainProgress
from distributed_privrl.core import interrupts
from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.ledger import Ledger, attempts
from tests.worlds.ledgers import open_run, set_budget, url_of


def test_local_means_no_ray():
    assert isinstance(start_executor(RuntimeConfig(executor="local")), LocalExecutor)


def _stopped(work):
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        work()


def _signalled(stop):
    signal.raise_signal(stop)
    interrupts.rest()


def test_termination_is_an_interrupt_inside_the_block_alone():
    before = signal.getsignal(signal.SIGTERM)
    _stopped(lambda: _signalled(signal.SIGTERM))
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
            interrupts.interrupt()
        return value

    with monkeypatch.context() as patch:
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
from distributed_privrl.core.interrupts import rest
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with termination_as_interrupt():
        try:
            signal.raise_signal(signal.SIGINT)
            rest()
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
            _signalled(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        _stopped(lambda: _signalled(signal.SIGHUP))
    finally:
        signal.signal(signal.SIGHUP, before)


def _called_in_a_library(stops):
    """Send a signal, and make another error of whatever comes out of that, as libraries do."""
    try:
        for one in stops:
            signal.raise_signal(one)
    except BaseException as error:
        raise TypeError("no such thing") from error


def test_an_interrupt_comes_where_progress_is_told_and_not_in_the_call_that_was_running():
    progress, told = PlainProgress(), []

    def work():
        _called_in_a_library([signal.SIGTERM])
        told.append("the call")
        progress("sampling", 1, 2)
        told.append("more")

    _stopped(work)
    assert told == ["the call"]


def test_an_interrupt_after_the_last_rest_changes_nothing():
    with termination_as_interrupt():
        _called_in_a_library([signal.SIGTERM])
    interrupts.rest()


def test_an_error_before_work_rests_leaves_no_interrupt_behind():
    def work():
        signal.raise_signal(signal.SIGTERM)
        raise TypeError

    with pytest.raises(TypeError), termination_as_interrupt():
        work()
    assert not interrupts.asked()


@pytest.fixture
def seconds_of_work():
    """A function of the package that works for some seconds, and tells nobody."""
    code = """
def work(seconds):
    end = clock() + seconds
    while clock() < end:
        pass
"""
    names = {"__name__": "distributed_privrl.long_work", "clock": time.monotonic}
    exec(code, names)
    return names["work"]


def test_work_that_does_not_rest_is_interrupted_in_the_packages_own_code(
    monkeypatch, seconds_of_work
):
    monkeypatch.setattr(execution, "_PATIENCE", 0.05)
    ended = []

    def work():
        signal.raise_signal(signal.SIGTERM)
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            pass
        ended.append("code of others")
        seconds_of_work(20)
        ended.append("the package's")

    _stopped(work)
    assert ended == ["code of others"]


def test_a_call_that_does_not_end_is_interrupted_in_the_end(monkeypatch):
    monkeypatch.setattr(execution, "_PATIENCE", 0.05)
    monkeypatch.setattr(execution, "_LONGEST", 0.1)

    def work():
        signal.raise_signal(signal.SIGTERM)
        threading.Event().wait(20)
        pytest.fail("nothing interrupted the wait")

    _stopped(work)


def test_an_interrupt_in_a_destructor_is_not_lost(monkeypatch, seconds_of_work):
    monkeypatch.setattr(execution, "_PATIENCE", 0.05)
    seen = []

    class WorksAtItsEnd:
        def __del__(self):
            try:
                seconds_of_work(20)
            except KeyboardInterrupt:
                seen.append("in the destructor")
                raise

    def work():
        signal.raise_signal(signal.SIGTERM)
        WorksAtItsEnd()
        seconds_of_work(20)

    _stopped(work)
    assert seen == ["in the destructor"]
