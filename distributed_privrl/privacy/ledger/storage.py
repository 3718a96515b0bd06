"""Where the ledger lives: URLs, durable connections, and storage errors as one line.

Transactions of one ledger run one after the other, whatever the database's settings are. SQLite
takes its only write lock at the start of each. PostgreSQL is told `SERIALIZABLE`, since no rule on
what may be charged then rests on which rows a function thought of locking, phantoms included. Each
transaction first locks one table, before its snapshot is taken: so those that meet wait in line
instead of failing, and the isolation level is what holds if that lock is ever lost. A conflict that
is left, or a server that is away for a moment, is answered by doing the whole transaction again
(`attempts`).
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
from distributed_privrl.core.interrupts import held_back, raise_if_due
from distributed_privrl.privacy.ledger import attempts, servers
from distributed_privrl.privacy.ledger.attempts import PassingError, retried
from distributed_privrl.privacy.ledger.migrations import migrated
from distributed_privrl.privacy.ledger.schema import METADATA, SCHEMA_VERSIONS, VERSION

LEDGER_VARIABLE = "PRIVRL_LEDGER"
"""The environment variable that names the ledger where nothing else does."""
_EXAMPLE = "give e.g. sqlite:////data/ledger.sqlite or postgresql://user@host/ledger"
_ADVICE = f"check its path and rights, or {_EXAMPLE}"
_REFERENCE = "file:"
_ISOLATION = "SERIALIZABLE"
_ONE_WRITER = text(f"LOCK TABLE {SCHEMA_VERSIONS.name} IN EXCLUSIVE MODE")


def ledger_url(url: str | None) -> URL:
    """Return the URL of the ledger: ``url``, else ``PRIVRL_LEDGER``, else a file of the user's.

    ``file:/run/secrets/ledger`` stands for the URL that this file holds: a password then lies where
    only its readers see it, and in no command, environment or message.

    Raises:
        ConfigError: the URL is malformed, of an unknown database, or of one kept in memory; or the
            file that holds it cannot be read, or can be read by everybody.
    """
    text, source = _given(url), ledger_source(url)
    if text is not None and is_reference(text):
        path = Path(text.removeprefix(_REFERENCE))
        text, source = _text_of(path, source), f"what {path} holds, which {source} names,"
    if text is None:
        return URL.create(
            "sqlite", database=str(Path(platformdirs.user_data_dir("privrl")) / "ledger.sqlite")
        )
    try:
        parsed = make_url(text)
        backend = parsed.get_backend_name()
        database = Path(str(parsed.database)).expanduser().absolute()
        if "\0" in text:
            raise ValueError("a name with a zero byte")
    except (ArgumentError, ValueError, RuntimeError) as error:
        raise ConfigError(f"{source} is no URL of a ledger; {_EXAMPLE}") from error
    if backend == "postgresql":
        return parsed.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ConfigError(f"{source} is {backend}:..., neither SQLite nor PostgreSQL; {_EXAMPLE}")
    if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:"):
        raise ConfigError(f"{source} names no file of SQLite: budgets must outlive it; {_EXAMPLE}")
    return parsed.set(database=str(database))


def ledger_reference(url: str | None) -> str:
    """Return what opens the same ledger in another process: a file's name, else the whole URL.

    Raises:
        ConfigError: see `ledger_url`.
    """
    text = _given(url)
    if text is not None and is_reference(text):
        return text
    return ledger_url(url).render_as_string(hide_password=False)


def ledger_source(url: str | None) -> str:
    """Return what names the ledger, for messages: the option, the variable or neither.

    Example:
        >>> ledger_source("sqlite:////data/ledger.sqlite")
        '--ledger'
    """
    if url:
        return "--ledger"
    return LEDGER_VARIABLE if os.environ.get(LEDGER_VARIABLE) else "the default place"


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
    return url or os.environ.get(LEDGER_VARIABLE)


def _text_of(path: Path, source: str) -> str:
    """Return the URL that a file holds, which ``source`` names."""
    if not path.is_absolute():
        raise ConfigError(
            f"{source} names a file by {_REFERENCE} and no absolute path; give e.g."
            " file:/secrets/ledger"
        )
    try:
        everybody = path.stat().st_mode & stat.S_IROTH
        text = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the file {path} that holds the ledger's URL, which {source} names, cannot be read"
        ) from error
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
        source: what names it, for messages: see `ledger_source`.
        key: file of the ledger's key: a ledger that has one, and no tables, was lost.
        exists: the ledger was opened before, in another process: it is not made again.

    Raises:
        MissingExtraError: the PostgreSQL driver is not installed.
        StorageError: the database cannot be opened, was lost, or was written by another version.
    """

    def __init__(
        self, url: URL, *, source: str, key: Path | None = None, exists: bool = False
    ) -> None:
        self._source = source
        self._made = False
        self._reached = exists
        self._shown = shown_url(url)
        if url.get_backend_name() == "sqlite":
            path = Path(str(url.database))
            if not exists:
                self._check_not_lost(path, key)
                _create_private_file(path, source)
            self._first = None
            self.engine = _sqlite_engine(url, attempts.BUSY_SECONDS)
        else:
            self._first = _ONE_WRITER
            options = servers.connect_options(url)
            try:
                self.engine = _engine(url, isolation_level=_ISOLATION, connect_args=options)
            except ModuleNotFoundError as error:
                raise MissingExtraError("psycopg", "postgres") from error
            servers.make_durable(self.engine)
        if exists:
            self._check_version()
        else:
            self._create_tables()
        self._made = True

    @contextlib.contextmanager
    def transaction(self, *, pays_ahead: bool = False) -> Iterator[Connection]:
        """Yield a connection; commit durably at the end, roll back on any error.

        No other transaction of the ledger runs meanwhile. Whoever asks for one is `retried`. An
        interruption waits for its end.

        Args:
            pays_ahead: for what is drawn afterwards: an interruption that came while the database
                was waited for rolls it back, as nothing will be drawn.

        Raises:
            KeyboardInterrupt: nothing was paid.
            PassingError: another transaction was in the way, or the server is away.
            StorageError: the database is locked, full, unwritable, corrupt or gone.
        """
        committing = False
        try:
            with held_back(), self.engine.begin() as connection:
                self._reached = True
                if self._first is not None and self._made:
                    connection.execute(self._first)
                yield connection
                if pays_ahead:
                    raise_if_due()
                committing = True
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise self._failure(error, committing=committing) from error

    def _failure(self, error: Exception, *, committing: bool) -> StorageError:
        if servers.in_conflict(error):
            return PassingError(self._one_line(error))
        if servers.is_lost(error):
            line = self._one_line(error)
            if committing:
                line += " (whether the last change was made is not known: see `privrl ledger show`)"
            return PassingError(line, lost=True, first=not self._reached, unknown=committing)
        return StorageError(self._one_line(error))

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

    def _check_not_lost(self, path: Path, key: Path | None) -> None:
        """Refuse to make a ledger anew whose key lies there: what was spent would be forgotten."""
        with storage_errors(f"open the ledger {path} (from {self._source})", _ADVICE):
            empty = not path.exists() or path.stat().st_size == 0
            if empty and key is not None and key.exists():
                raise StorageError(
                    f"the ledger {self._shown} is gone, and its key {key} is not: bring it back"
                    " from a backup; a new one in its place would give its budgets once more"
                )

    @retried
    def _check_version(self) -> None:
        with self.transaction() as connection:
            self._check_tables(connection, set(inspect(connection).get_table_names()))

    def _create_missing_tables(self) -> None:
        with self.transaction() as connection:
            tables = set(inspect(connection).get_table_names())
            if tables.isdisjoint(METADATA.tables):
                METADATA.create_all(connection)
                connection.execute(insert(SCHEMA_VERSIONS).values(version=VERSION))
                return
            self._check_tables(connection, tables)

    def _check_tables(self, connection: Connection, tables: set[str]) -> None:
        """Check that the ledger is of this version; one of an earlier version becomes of this."""
        version = None
        if SCHEMA_VERSIONS.name in tables:
            version = connection.execute(select(SCHEMA_VERSIONS.c.version)).scalar()
        if version is None:
            raise StorageError(
                f"there is no ledger in {self._shown}, and something else or nothing: was it"
                " emptied? bring it back, from a backup if need be"
            )
        if version != VERSION and not migrated(connection, version):
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
        elif servers.is_lost(error):
            advice = "see that its server runs and can be reached"
        elif "unable to open" in reason or "no such table" in reason:
            advice = "was it deleted? bring it back, from a backup if need be"
        elif isinstance(error, IntegrityError):
            advice = "another process wrote the same thing: run again"
        else:
            advice = _ADVICE
        return f"cannot use the ledger {self._shown} (from {self._source}): {reason}; {advice}"


def _never_made(url: URL) -> URL:
    """Return a SQLite URL that opens a file which is there, and makes none where it was deleted."""
    quoted = quote(str(url.database))
    return url.set(database=f"file:{quoted}", query={**url.query, "mode": "rw", "uri": "true"})


def _engine(url: URL, **options: Any) -> Engine:
    """Return an engine whose errors and logs show no value that is written: secrets are among."""
    return create_engine(url, poolclass=NullPool, hide_parameters=True, **options)


@lru_cache(maxsize=64)
def _sqlite_engine(url: URL, patience: float) -> Engine:
    """Return a file's engine. It holds no connection, and remembers how statements are compiled."""
    engine = _engine(_never_made(url), connect_args={"timeout": patience})
    _make_durable(engine)
    return engine


def _create_private_file(path: Path, source: str) -> None:
    with storage_errors(f"open the ledger {path} (from {source})", _ADVICE):
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
