"""Who made a hold or a charge, and when: for the ledger's readers, and nobody else."""

import getpass
import socket
from datetime import UTC, datetime

_LONGEST = 255


def stamp() -> dict[str, str]:
    """Return the columns that say who makes a row of the ledger, on which machine, and when."""
    return {
        "made_by": f"{_user()}@{socket.gethostname()}"[:_LONGEST],
        "created": moment(),
    }


def moment() -> str:
    """Return the time in UTC, to the microsecond: rows that one run makes differ in it."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def shown_moment(created: str) -> str:
    """Return a moment as a reader needs it, to the second."""
    return datetime.fromisoformat(created).isoformat(timespec="seconds")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's number without a name
        return "unknown"
