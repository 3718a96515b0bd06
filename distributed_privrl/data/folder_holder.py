"""Who works in a folder of an object store: one process at a time, and a second one is told so.

Stores have no locks, and Arrow writes no object under a condition. So a process writes its name
into one object, again and again for as long as it lives, and reads it before each file that it
publishes. One that is gone is known by its silence. Of two that began in the same moment the name
of one stands there in the end, and the other stops before the next file that it would publish.
"""

import contextlib
import functools
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import FolderInUseError, StorageError
from distributed_privrl.data.objects import Objects

logger = logging.getLogger(__name__)
HOLDER = ".privrl/holder.json"
BEAT_SECONDS = 10.0
SILENT_SECONDS = 45.0
"""After so long without a sign of life another process may go on."""
_POLL_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A process that works in a folder.

    Args:
        nonce: of the opening; no other has it.
        host: name of its machine, for messages.
        machine: of its kernel and namespace of processes: whether it lives can be asked there.
        process: its number there.
        begun: when it began, in ticks of that kernel.
        beat: how often it has said that it lives.
    """

    nonce: str
    host: str
    machine: str
    process: int
    begun: int
    beat: int = 0


def own_holder(nonce: str) -> Holder:
    """Return this process under the nonce of an opening."""
    return Holder(
        nonce=nonce,
        host=socket.gethostname(),
        machine=_machine(),
        process=os.getpid(),
        begun=_begun(os.getpid()) or 0,
    )


def check_held(objects: Objects, nonce: str, *, shown: str) -> None:
    """Check that the process of an opening still holds its folder.

    Args:
        objects: where it is written who holds the folder.
        nonce: of the opening.
        shown: name of the folder, for messages.

    Raises:
        FolderInUseError: another process has gone on with it.
        StorageError: the store cannot be read.
    """
    found = _holder(objects)
    if found is None or found.nonce != nonce:
        by = "" if found is None else f" on {found.host}"
        raise FolderInUseError(
            f"another process{by} has gone on with {shown}: this one stops, and publishes"
            " nothing more there"
        )


@contextlib.contextmanager
def held(
    objects: Objects, nonce: str, *, shown: str, pause: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold a folder for as long as the block lasts.

    A process that held it and was killed is waited for until it has been silent for
    ``SILENT_SECONDS``, but not where it ran on this machine.

    Args:
        objects: where it is written who holds the folder.
        nonce: of the opening.
        shown: name of the folder, for messages.
        pause: waits so many seconds.

    Raises:
        FolderInUseError: a process works in the folder.
        StorageError: the store cannot be read or written.
    """
    _wait_for_silence(objects, shown, pause)
    own = own_holder(nonce)
    _write(objects, own)
    check_held(objects, nonce, shown=shown)
    ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(objects, own, ended), daemon=True)
    beats.start()
    try:
        yield
    finally:
        ended.set()
        beats.join()
        with contextlib.suppress(StorageError):  # it is silent from now on all the same
            found = _holder(objects)
            if found is not None and found.nonce == nonce:
                objects.remove(HOLDER)


def _wait_for_silence(objects: Objects, shown: str, pause: Callable[[float], None]) -> None:
    first, waited = _holder(objects), 0.0
    while (found := _holder(objects)) is not None and not _is_gone(found):
        if first is None or found != first:
            raise FolderInUseError(
                f"process {found.process} on {found.host} works in {shown}: wait until it has"
                " ended, or name another --out"
            )
        if waited >= SILENT_SECONDS:
            return
        if not waited:
            logger.warning(
                "process %d on %s worked in %s: waiting %.0f seconds for a sign of it",
                *(found.process, found.host, shown, SILENT_SECONDS),
            )
        pause(_POLL_SECONDS)
        waited += _POLL_SECONDS


def _beat(objects: Objects, own: Holder, ended: threading.Event) -> None:
    """Say that this process lives, until it has ended or another has gone on."""
    values = asdict(own)
    while not ended.wait(BEAT_SECONDS):
        values["beat"] += 1
        with contextlib.suppress(StorageError):  # what is published next meets it, too
            found = _holder(objects)
            if found is None or found.nonce != own.nonce:
                return
            _write(objects, Holder(**values))


def _holder(objects: Objects) -> Holder | None:
    content = objects.read(HOLDER)
    if content is None:
        return None
    try:
        values: dict[str, Any] = json.loads(content)
        return Holder(**values)
    except (ValueError, TypeError):
        return Holder(nonce="", host="an unknown machine", machine="", process=0, begun=0)


def _write(objects: Objects, holder: Holder) -> None:
    objects.put(HOLDER, json.dumps(asdict(holder)).encode())


def _is_gone(holder: Holder) -> bool:
    """Say whether a process ran on this machine and does no more."""
    return holder.machine == _machine() and _begun(holder.process) != holder.begun


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # it cannot be told: nobody is known to be gone
        return f"{socket.gethostname()}/{time.time_ns()}"


def _begun(process: int) -> int | None:
    """Return when a process of this machine began, in ticks of its kernel; None: there is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
