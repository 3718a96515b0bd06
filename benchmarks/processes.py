"""CPU time and memory of this process and its children, from /proc."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def family() -> dict[int, str]:
    """Return this process and all its descendants: command line by process id."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _fields(int(folder.name))
        if fields:
            parents[int(folder.name)] = int(fields[1])
    members = {os.getpid()}
    grown = True
    while grown:
        children = {child for child, parent in parents.items() if parent in members}
        grown = not children <= members
        members |= children
    return {member: _command(member) for member in members}


def cpu_seconds() -> float:
    """Return the CPU seconds that the living family has used."""
    ticks = 0
    for member in family():
        fields = _fields(member)
        ticks += int(fields[11]) + int(fields[12]) if fields else 0
    return ticks / _TICKS


def resident_bytes(name: str) -> int:
    """Return the resident memory of the family's processes whose command begins with ``name``."""
    return sum(_resident(pid) for pid, command in family().items() if command.startswith(name))


def own_resident_bytes() -> int:
    """Return this process's resident memory."""
    return _resident(os.getpid())


def _fields(process: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the state on; none if it has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _command(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _resident(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE
    except OSError:
        return 0
