"""Where the ledger lives: URLs, durable connections, and storage errors as one line.

Transactions of one ledger run one after the other, whatever the database's settings are. SQLite
takes its only write lock at the start of each. PostgreSQL is told `SERIALIZABLE`, since no rule on
what may be charged then rests on which rows a function thought of locking, phantoms included. Each
transaction first locks one table, before its snapshot is taken: so those that meet wait in line
instead of failing, and the isolation level is what holds if that lock is ever lost. A conflict that
is left is answered by doing the whole transaction again.
"""

import contextlib
import functools
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import platformdirs
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from distributed_privrl.core.errors import ConfigError, MissingExtraError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.ledger.schema import METADATA, SCHEMA_VERSIONS, VERSION

_REFERENCE = "file:"
_BUSY_SECONDS = 60
_ISOLATION = "SERIALIZABLE"
_ONE_WRITER = text(f"LOCK TABLE {SCHEMA_VERSIONS.name} IN EXCLUSIVE MODE")
_CONFLICTS = {"40001", "40P01"}  # SQLSTATE of a serialisation failure, of a deadlock
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 1.0

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


def retried(transaction: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """Return a function, all of it one transaction, that starts over when another got in its way.

    For a minute at most, with pauses that grow; then the conflict is a `StorageError`.
    """

    @functools.wraps(transaction)
    def whole(*args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        last, pause = time.monotonic() + _BUSY_SECONDS, _FIRST_PAUSE
        while True:
            try:
                return transaction(*args, **kwargs)
            except StorageError as error:
                if not _in_conflict(error) or time.monotonic() > last:
                    raise
            time.sleep(pause * (1 + os.urandom(1)[0] / 256))  # so that two do not meet again
            pause = min(2 * pause, _LONGEST_PAUSE)

    return whole


def _in_conflict(error: StorageError) -> bool:
    """Say whether the database undid a transaction because of another one."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) in _CONFLICTS


def ledger_url(url: str | None) -> URL:
    """Return the URL of the ledger: ``url``, else ``PRIVRL_LEDGER``, else a file of the user's.

    ``file:/run/secrets/ledger`` stands for the URL that this file holds: a password then lies where
    only its readers see it, and in no command, environment or message.

    Raises:
        ConfigError: the URL is malformed, of an unknown database, or of one kept in memory; or the
            file that holds it cannot be read, or can be read by everybody.
    """
    text = _given(url)
    if text is not None and is_reference(text):
        text = _text_of(Path(text.removeprefix(_REFERENCE)))
    if text is None:
        return URL.create(
            "sqlite", database=str(Path(platformdirs.user_data_dir("privrl")) / "ledger.sqlite")
        )
    example = "give e.g. sqlite:////data/ledger.sqlite or postgresql://user@host/ledger"
    try:
        parsed = make_url(text)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError) as error:
        raise ConfigError(f"ledger is no database URL; {example}") from error
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigError(f"ledger={backend}:... is neither SQLite nor PostgreSQL; {example}")
    if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:"):
        raise ConfigError(f"ledger names no file of SQLite: budgets must outlive it; {example}")
    return parsed.set(database=str(Path(str(parsed.database)).expanduser().absolute()))


def ledger_reference(url: str | None) -> str:
    """Return what opens the same ledger in another process: a file's name, else the whole URL.

    Raises:
        ConfigError: see `ledger_url`.
    """
    text = _given(url)
    if text is not None and is_reference(text):
        return text
    return ledger_url(url).render_as_string(hide_password=False)


def shown_url(url: URL) -> str:
    """Return a ledger's URL as messages show it: without a password, in whichever part it is."""
    return url.set(query={}).render_as_string(hide_password=True)


def holds_password(url: URL) -> bool:
    """Say whether a ledger's URL has a password, before the host or among its options."""
    return url.password is not None or any("password" in key.lower() for key in url.query)


def is_reference(text: str | None) -> bool:
    """Say whether a text names the file that holds a ledger's URL."""
    return text is not None and text.startswith(_REFERENCE)


def _given(url: str | None) -> str | None:
    return url or os.environ.get("PRIVRL_LEDGER")


def _text_of(path: Path) -> str:
    """Return the URL that a file holds."""
    if not path.is_absolute():
        raise ConfigError(f"ledger={_REFERENCE}{path} names no absolute path: file:/secrets/ledger")
    try:
        everybody = path.stat().st_mode & stat.S_IROTH
        text = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the file {path} that holds the ledger's URL cannot be read") from error
    if everybody:
        raise ConfigError(
            f"everybody can read {path}, which holds the ledger's URL: chmod 600 (of a Kubernetes"
            " secret defaultMode: 0400)"
        )
    if is_reference(text):
        raise ConfigError(f"the file {path} names another file, not the ledger's URL")
    return text


class Storage:
    """Durable transactions on one database, each on a connection of its own.

    Args:
        url: from `ledger_url`.

    Raises:
        MissingExtraError: the PostgreSQL driver is not installed.
        StorageError: the database cannot be opened, or was written by another version.
    """

    def __init__(self, url: URL) -> None:
        self._made = False
        self._shown = shown_url(url)
        if url.get_backend_name() == "sqlite":
            _create_private_file(Path(str(url.database)))
            self._first = None
            self.engine = _engine(url, connect_args={"timeout": _BUSY_SECONDS})
            _make_durable(self.engine)
        else:
            self._first = _ONE_WRITER
            try:
                self.engine = _engine(url, isolation_level=_ISOLATION)
            except ModuleNotFoundError as error:
                raise MissingExtraError("psycopg", "postgres") from error
            _make_postgresql_durable(self.engine)
        self._create_tables()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection; commit durably at the end, roll back on any error.

        No other transaction of the ledger runs meanwhile. Whoever asks for one is `retried`.

        Raises:
            StorageError: the database is locked, full, unwritable, corrupt or gone.
        """
        try:
            with self.engine.begin() as connection:
                if self._first is not None and self._made:
                    connection.execute(self._first)
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StorageError(self._one_line(error)) from error

    def close(self) -> None:
        """Close what is open."""
        self.engine.dispose()

    @retried
    def _create_tables(self) -> None:
        try:
            self._create_missing_tables()
        except StorageError as error:
            # another process created them at the same moment: they are there now
            if not isinstance(error.__cause__, IntegrityError | ProgrammingError):
                raise
            self._create_missing_tables()
        self._made = True

    def _create_missing_tables(self) -> None:
        with self.transaction() as connection:
            tables = set(inspect(connection).get_table_names())
            if tables.isdisjoint(METADATA.tables):
                METADATA.create_all(connection)
                connection.execute(insert(SCHEMA_VERSIONS).values(version=VERSION))
                return
            version = None
            if SCHEMA_VERSIONS.name in tables:
                version = connection.execute(select(SCHEMA_VERSIONS.c.version)).scalar()
            if version != VERSION:
                raise StorageError(
                    f"the ledger {self._shown} has format {version}, this program knows {VERSION}:"
                    " use the version of the program that wrote it"
                )

    def _one_line(self, error: Exception) -> str:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        if "locked" in reason or "lock timeout" in reason:
            advice = "another process holds it: run again when that one is done"
        elif "full" in reason:
            advice = "free some space and run again with --resume"
        elif isinstance(error, IntegrityError):
            advice = "another process wrote the same thing: run again"
        else:
            advice = "check its path and rights, or give another with --ledger"
        return f"cannot use the ledger {self._shown}: {reason}; {advice}"


def _engine(url: URL, **options: Any) -> Engine:
    """Return an engine whose errors and logs show no value that is written: secrets are among."""
    return create_engine(url, poolclass=NullPool, hide_parameters=True, **options)


def _create_private_file(path: Path) -> None:
    with storage_errors(f"open the ledger {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))


def _make_durable(engine: Engine) -> None:
    """Set up SQLite: one writer at a time, and a commit that outlives a power cut.

    With its default journal SQLite needs EXTRA for that (it also syncs the folder after removing
    the journal): under FULL a charge could be rolled back by a power cut just after its commit.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the driver starts no transactions of its own
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # erased secrets are overwritten

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _make_postgresql_durable(engine: Engine) -> None:
    """Set up PostgreSQL: commits that outlive a crash, and no wait without end.

    Where the database's default of ``synchronous_commit`` is off, a crash of the server undoes
    reservations under which noise was drawn already.
    """

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, _record: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")
            cursor.execute(f"SET lock_timeout = '{_BUSY_SECONDS}s'")
        connection.commit()
