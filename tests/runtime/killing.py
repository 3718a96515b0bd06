"""Kills processes of this program's own Ray while they do what is named."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


def own_workers() -> Iterator[tuple[int, str]]:
    """Yield process id and title of each process below this program's raylet.

    Ray names a process after what it does: ``ray::Class.method``, ``ray::...:Class.__init__``.
    """
    import ray

    raylet = ray._private.worker.global_worker.node.all_processes["raylet"][0].process.pid
    for thread in os.listdir(f"/proc/{raylet}/task"):
        for pid in _read(f"/proc/{raylet}/task/{thread}/children").split():
            title = _read(f"/proc/{int(pid)}/cmdline")
            yield int(pid), title.partition(b"\0")[0].decode().strip()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it ended just now


def pids_of(name: str) -> list[int]:
    """Return the processes whose title ends with ``name``."""
    return [pid for pid, title in own_workers() if title.endswith(name)]


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
        while self.left and not self._ended.is_set():
            for pid in pids_of(self.left[0]):
                if pid not in self.killed:
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)
                    del self.left[0]
                    break
            time.sleep(0.002)

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
