"""Bounds on time and memory for code that reads what somebody wrote to harm."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn


@contextmanager
def bounded(*, megabytes: int = 512, seconds: float = 10.0) -> Iterator[None]:
    """Fail where the block takes longer, or asks the system for more memory than it has now.

    Memory is the address space, so that what is asked for and never touched counts, too.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + megabytes * 2**20

    def late(*_: object) -> NoReturn:
        raise AssertionError(f"not done after {seconds} seconds")

    handler = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
