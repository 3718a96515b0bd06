"""What happens to a run: signals, full and read-only folders, a ledger that is locked or gone."""

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.keyed import WAITS

SMALL = "64m"
PLACES = {"--out": "out", "datasets": "datasets", "the ledger": "ledger"}


@dataclass(frozen=True)
class Struck:
    """A command that runs, and where.

    Args:
        pid: of its process.
        world: its folder.
    """

    pid: int
    world: Path

    @property
    def ledger(self) -> Path:
        """The ledger's file."""
        return self.world / "ledger" / "ledger.sqlite"

    @property
    def aside(self) -> Path:
        """Where a ledger lies that was taken away."""
        return self.world / "ledger.aside"

    def signal(self, one: signal.Signals) -> None:
        """Send a signal; the process may have ended."""
        os.kill(self.pid, one)  # a zombie until it is waited for: its id is nobody else's


def _nothing(_: Struck) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something that happens to a command at a time.

    Args:
        name: of the table.
        strike: makes it happen; False: there was nothing to strike.
        mend: ends it, before the command is called again.
        codes: that the command may end with.
        place: folder of the world that lies on a small file system of its own, if any does.
        gone: whether there is no ledger until it is mended.
        before: what is different in the command's process from its start.
        again: words before the command that is called again.
        victim: class of the process that dies, where runs have several processes.
    """

    name: str
    strike: Callable[[Struck], bool | None] = _nothing
    mend: Callable[[Struck], None] = _nothing
    codes: tuple[int, ...] = (0,)
    place: str = ""
    gone: bool = False
    before: str = ""
    again: tuple[str, ...] = ()
    victim: str = ""


def _signals(*ones: signal.Signals) -> Callable[[Struck], None]:
    def strike(struck: Struck) -> None:
        for one in ones:
            struck.signal(one)
            time.sleep(0.05)

    return strike


def _full(place: str) -> Callable[[Struck], None]:
    return lambda struck: filled(struck.world / place)


def filled(folder: Path) -> None:
    """Leave a small file system no room."""
    for _ in range(200):  # refused where more was written meanwhile
        if _remount(folder, f"size={max(4096, shutil.disk_usage(folder).used)}"):
            return


def _read_only(place: str) -> Callable[[Struck], None]:
    def strike(struck: Struck) -> None:
        for _ in range(200):  # refused while a file is open for writing
            if _remount(struck.world / place, "ro"):
                return
            time.sleep(0.01)

    return strike


def _roomy(place: str) -> Callable[[Struck], None]:
    return lambda struck: emptied(struck.world / place)


def emptied(folder: Path) -> None:
    """Give a small file system its room again, to be written to."""
    assert _remount(folder, f"rw,size={SMALL}")


def _remount(folder: Path, options: str) -> bool:
    command = ["mount", "-o", f"remount,{options}", str(folder)]
    return not subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def small_file_system(folder: Path) -> Iterator[None]:
    """Put a folder's files on a small file system of their own, in memory.

    Raises:
        CalledProcessError: this process may not mount any.
    """
    held = folder.with_name(f"{folder.name}.held")
    folder.rename(held)
    folder.mkdir()
    options = f"size={SMALL},mode=0755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "chaos", str(folder)], check=True)
    try:
        shutil.copytree(held, folder, dirs_exist_ok=True)
        shutil.rmtree(held)
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def can_mount() -> bool:
    """Say whether this process may mount file systems."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def _locked(seconds: float) -> Callable[[Struck], None]:
    def strike(struck: Struck) -> None:
        holder = sqlite3.connect(struck.ledger, timeout=10, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        time.sleep(seconds)
        holder.execute("ROLLBACK")
        holder.close()

    return strike


def _deleted(struck: Struck) -> None:
    struck.ledger.rename(struck.aside)


def _truncated(struck: Struck) -> None:
    holder = sqlite3.connect(struck.ledger, timeout=10, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")  # what is copied is what every commit left
    shutil.copyfile(struck.ledger, struck.aside)
    os.truncate(struck.ledger, 0)
    holder.close()


def _brought_back(struck: Struck) -> None:
    if struck.aside.exists():
        struck.aside.replace(struck.ledger)


def faults() -> list[Fault]:
    """Return every fault that this machine can make."""
    found = [
        Fault(name="SIGKILL", strike=_signals(signal.SIGKILL), codes=(-9,)),
        Fault(name="SIGTERM", strike=_signals(signal.SIGTERM), codes=(130, -15)),
        Fault(name="SIGINT twice", strike=_signals(*2 * [signal.SIGINT]), codes=(130, -2)),
        Fault(name="SIGHUP", strike=_signals(signal.SIGHUP), codes=(130, -1)),
        Fault(name="replies late and doubled", before="doubled"),
        Fault(
            name="ledger locked, shorter than it is waited for",
            strike=_locked(WAITS / 4),
        ),
        Fault(
            name="ledger locked, longer than it is waited for",
            strike=_locked(2 * WAITS),
            codes=(0, 7),
        ),
        Fault(name="ledger deleted", strike=_deleted, mend=_brought_back, codes=(0, 7), gone=True),
        Fault(
            name="ledger truncated", strike=_truncated, mend=_brought_back, codes=(0, 7), gone=True
        ),
    ]
    if shutil.which("faketime"):
        again = ("faketime", "-f", "-1d")
        name = "SIGKILL, then the clock a day back"
        found.append(Fault(name=name, strike=_signals(signal.SIGKILL), codes=(-9,), again=again))
    if can_mount():
        for what, place in PLACES.items():
            for name, strike in (("disk full under", _full), ("read-only:", _read_only)):
                found.append(
                    Fault(
                        name=f"{name} {what}",
                        strike=strike(place),
                        mend=_roomy(place),
                        codes=(0, 7),
                        place=place,
                    )
                )
    return found
