"""CPU time and memory of this process and its children, from /proc."""

import os
import resource
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


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
    return sum(cpu_by_process().values())


def cpu_by_process() -> dict[int, float]:
    """Return the CPU seconds of each living member of the family by process id."""
    stats = {member: _fields(member) for member in family()}
    return {
        member: (int(fields[11]) + int(fields[12])) / _TICKS
        for member, fields in stats.items()
        if fields
    }


def memory_bytes(name: str) -> int:
    """Return the memory of the family's processes whose command begins with ``name``.

    It is what they hold for themselves: no files and no shared memory, which would count twice.
    """
    return sum(_anonymous(pid) for pid, command in family().items() if command.startswith(name))


def own_memory_bytes() -> int:
    """Return what this process holds for itself."""
    return _anonymous(os.getpid())


def forget_peak() -> None:
    """Begin this process's peak of memory anew, where the system can."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_megabytes() -> int:
    """Return the largest memory of this process so far, or since `forget_peak`, in MB."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        kilobytes = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(kilobytes / 1024)


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


def _anonymous(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon")), 0)
