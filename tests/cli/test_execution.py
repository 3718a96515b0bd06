import signal
import threading

import pytest

from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.executor import LocalExecutor


def test_local_means_no_ray():
    assert isinstance(start_executor(RuntimeConfig(executor="local")), LocalExecutor)


def test_termination_is_an_interrupt_inside_the_block_alone():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), termination_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


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
