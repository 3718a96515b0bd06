"""Kills processes of this program's own Ray while they do what is named."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

LOOKS = 100
"""So often titles are looked at before it is asked which processes there are: that takes longer."""
PAUSE = 0.0002
"""Seconds between two looks: calls of small workers last a millisecond."""


def own_workers() -> list[int]:
    """Return the processes below this program's raylet."""
    import ray

    return _children(ray._private.worker.global_worker.node.all_processes["raylet"][0].process.pid)


def below(pid: int) -> list[int]:
    """Return the processes that descend from one."""
    return [one for child in _children(pid) for one in (child, *below(child))]


def wait_for_end(pids: Iterable[int], *, seconds: float) -> None:
    """Wait until none of these processes is left."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if title(pid)]:
        assert time.monotonic() < deadline, [title(pid) for pid in left]
        time.sleep(0.1)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it ended just now
        for thread in os.listdir(f"/proc/{pid}/task"):
            found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def title(pid: int) -> str:
    """Return what Ray calls a process: ``ray::Class.method``, ``ray::...:Class.__init__``.

    Empty: it has ended.
    """
    return _read(f"/proc/{pid}/cmdline").partition(b"\0")[0].decode().strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it ended just now


def pids_of(name: str) -> list[int]:
    """Return the processes whose title ends with ``name``."""
    return [pid for pid in own_workers() if title(pid).endswith(name)]


class Killer(threading.Thread):
    """Kills one process for each name, in their order, as soon as one is seen.

    Args:
        names: ``Class.method`` that a process must be in, or ``Class.__init__``.
    """

    def __init__(self, *names: str) -> None:
        super().__init__(daemon=True)
        self.left, self.killed = list(names), list[int]()
        self._ended = threading.Event()

    def run(self) -> None:
        for look in itertools.count():
            if not self.left or self._ended.is_set():
                break
            if look % LOOKS == 0:
                owner = f"{self.left[0].partition('.')[0]}".encode()
                there = [pid for pid in own_workers() if owner in _read(f"/proc/{pid}/cmdline")]
            for pid in there:
                if pid not in self.killed and title(pid).endswith(self.left[0]):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)
                    del self.left[0]
                    break
            time.sleep(PAUSE)

    def end(self) -> None:
        self._ended.set()
        self.join()


@contextmanager
def killing(*names: str) -> Iterator[Killer]:
    """Kill while the block runs; afterwards each name must have been found."""
    killer = Killer(*names)
    killer.start()
    try:
        yield killer
    finally:
        killer.end()
    assert not killer.left, f"never seen: {killer.left}"
