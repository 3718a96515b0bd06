"""How much memory is left, what must fit into it, and that a crash writes none of it to disk."""

import resource
from pathlib import Path

from distributed_privrl.core.errors import ConfigError

_MEMINFO, _GROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Return the bytes that may still be used, container limits included; None if unknown."""
    amounts = []
    if _MEMINFO.is_file():
        lines = _MEMINFO.read_text().splitlines()
        amounts += [int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable")]
    limit, used = _GROUP / "memory.max", _GROUP / "memory.current"
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        amounts.append(int(limit.read_text()) - int(used.read_text()))
    most, _ = resource.getrlimit(resource.RLIMIT_AS)
    if most != resource.RLIM_INFINITY:
        amounts.append(most)
    return min(amounts, default=None)


def check_fits(name: str, size: int) -> None:
    """Refuse what would need more memory than half of what is left.

    Args:
        name: what it is, for the message.
        size: bytes that it takes.

    Raises:
        ConfigError: it does not fit.
    """
    available = available_memory()
    if available is not None and size > available // 2:
        raise ConfigError(
            f"{name} would take {size / 2**30:.1f} GiB of memory, more than half of the"
            f" {available / 2**30:.1f} GiB left: split it, or use a machine with more memory"
        )


def forbid_core_dumps() -> None:
    """Have neither this process nor one that it starts leave its memory in a file when it dies."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
