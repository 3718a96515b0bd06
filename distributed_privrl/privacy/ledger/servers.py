"""Connections to a PostgreSQL server: durable, and none waits without end for one that is silent.

A frozen server, or a network that swallows packets, closes no connection. Three bounds end the
wait: ``connect_timeout`` while a connection is made, TCP's own where the other machine is gone, and
a guard of ours beside each connection, which also sees a server whose machine still answers.
"""

import contextlib
import os
import socket
import threading
import warnings
from typing import Any

from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import DBAPIError

from distributed_privrl.privacy.ledger import attempts

CONNECT_SECONDS = 10
SILENT_SECONDS = 10
"""After how long a message says that the server has not answered yet."""
ANSWER_SECONDS = attempts.BUSY_SECONDS + 5
"""How long a connection, of one transaction, may last: a little longer than one waits in line."""

_PATIENCE = {
    "connect_timeout": CONNECT_SECONDS,
    "tcp_user_timeout": 20_000,  # milliseconds
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
}
_CONFLICTS = {"40001", "40P01"}  # SQLSTATE of a serialisation failure, of a deadlock
_GOING = {"57P01", "57P02", "57P03"}  # shut down by its administrator, crashed, starting
_REFUSED = "FATAL:"
_RESTARTING = (  # libpq tells no SQLSTATE of a connection that was not made
    "starting up",
    "shutting down",
    "not yet accepting",
    "recovery mode",
    "terminating connection",
)


def connect_options(url: URL) -> dict[str, Any]:
    """Return libpq's timeouts, but for those that the URL sets itself."""
    return {name: value for name, value in _PATIENCE.items() if name not in url.query}


def in_conflict(error: BaseException) -> bool:
    """Say whether the server undid a transaction because of another one."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _CONFLICTS


def is_lost(error: BaseException) -> bool:
    """Say whether the server went away, or is not there yet; one that refuses somebody is there."""
    if not isinstance(error, DBAPIError) or type(error.orig).__module__.partition(".")[0] != (
        "psycopg"
    ):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if error.connection_invalidated or state in _GOING or str(state or "").startswith("08"):
        return True
    if type(error.orig).__name__ not in ("OperationalError", "ConnectionTimeout") or state:
        return False
    said = str(error.orig)
    return _REFUSED not in said or any(words in said for words in _RESTARTING)


def make_durable(engine: Engine) -> None:
    """Set up transactions: commits that outlive a crash, and no wait without end.

    Where the database's default of ``synchronous_commit`` is off, a crash of the server undoes
    reservations under which noise was drawn already. Each transaction sets it for itself: behind a
    pooler a connection's next transaction may be another session's, with that session's settings.
    """

    @event.listens_for(engine, "connect", insert=True)
    def _on_connect(connection: Any, record: Any) -> None:
        record.info["guard"] = _Guard(connection.fileno())

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        # No SELECT set_config(): it would take the snapshot, before the transaction has its turn.
        connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{attempts.BUSY_SECONDS}s'")

    @event.listens_for(engine, "close")
    def _on_close(_connection: Any, record: Any) -> None:
        record.info.pop("guard").end()


class _Guard:
    """Cuts a connection that lasts too long, so that whoever waits for an answer gets an error.

    Args:
        descriptor: of the connection's socket.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=os.dup(descriptor))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        silent = min(SILENT_SECONDS, ANSWER_SECONDS)
        if self._ended.wait(silent):
            return
        warnings.warn(
            f"the ledger's server has not answered for {silent} s: waiting up to"
            f" {ANSWER_SECONDS} s, for it or for the processes before this one",
            stacklevel=1,
        )
        if not self._ended.wait(ANSWER_SECONDS - silent):
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Leave the connection alone."""
        self._ended.set()
        self._thread.join()
        self._socket.close()
