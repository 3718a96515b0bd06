import resource
import subprocess
import sys

import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.memory import available_memory, check_fits
from tests.worlds.bounded import bounded


def test_memory_of_this_machine_is_read():
    available = available_memory()
    assert available is None or available > 0


def test_a_limit_of_the_process_counts():
    with bounded(megabytes=64):
        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        assert available_memory() <= limit


def test_what_does_not_fit_is_refused_with_its_size():
    check_fits("x", 1000)
    with pytest.raises(ConfigError, match=r"x would take 14336.0 GiB of memory.*split it"):
        check_fits("x", 14 * 2**40)


def test_no_process_of_the_command_line_dumps_its_memory():
    """Asked of one that it starts, which inherits the limit."""
    child = (
        "import resource, subprocess, sys; from distributed_privrl.cli.app import app\n"
        "try: app(['--version'])\n"
        "except SystemExit: pass\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)\n"
        "subprocess.run(['sh', '-c', 'ulimit -c'])"
    )
    said = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines()[1:] == ["(0, 0)", "0"]
