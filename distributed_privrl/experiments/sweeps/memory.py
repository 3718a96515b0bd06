"""Where trials of a private selection lie: in memory, on the node of their process.

What a killed process leaves there is removed by a guardian beside it, on whichever node; what a
killed machine's memory had is gone with it.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.files import UNFINISHED, clear_unfinished, unfinished_folder

MEMORY = Path("/dev/shm")
_FREE_BYTES = 256 * 2**20
_POLL_SECONDS = 0.1
_GUARDIAN = 'exec 3<&0; (read -r _ <&3; rm -rf -- "$1") >/dev/null 2>&1 &'
"""It reads until the process that holds the other end of its pipe is gone, however that ended."""


def check_memory(memory: Path) -> None:
    """Check that trials can lie in memory on this node, and destroy what killed processes left.

    Args:
        memory: a folder in memory.

    Raises:
        UnsafeError: there is none, or too little of it is free.
    """
    if not memory.is_dir():
        raise UnsafeError(
            f"there is no {memory}: what the losers of a private selection make would lie on a disk"
        )
    clear_left(memory)
    if (free := shutil.disk_usage(memory).free) < _FREE_BYTES:
        raise UnsafeError(
            f"{memory} has {free // 2**20} MiB free, and what trials make lies there: give it more"
            " (docker run --shm-size=4g)"
        )


@contextmanager
def guarded_folder(memory: Path) -> Iterator[Path]:
    """Yield a folder for this process, which is removed at the end and when the process is killed.

    Args:
        memory: a folder in memory.
    """
    with unfinished_folder(memory) as folder:
        guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "sh", str(folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,  # signals to this process's group are not for it
        )
        guardian.wait()  # it goes on by itself, as no child of this process
        try:
            yield folder
        finally:
            assert guardian.stdin is not None
            guardian.stdin.close()


def clear_left(memory: Path, *, seconds: float = 0.0) -> None:
    """Destroy what processes left in memory that were killed; what live ones hold stays.

    Args:
        memory: the folder.
        seconds: how long to wait for processes that are being killed.
    """
    end = time.monotonic() + seconds
    while True:
        clear_unfinished(memory)
        if time.monotonic() >= end or not any(memory.glob(f"{UNFINISHED}*")):
            return
        time.sleep(_POLL_SECONDS)
