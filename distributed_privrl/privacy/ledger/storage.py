"""Where the ledger lives: URLs, durable connections, and storage errors as one line."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import platformdirs
from sqlalchemy import URL, Connection, Engine, create_engine, event, insert, make_url, select
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from distributed_privrl.core.errors import ConfigError, MissingExtraError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.ledger.schema import METADATA, SCHEMA_VERSIONS, VERSION

_BUSY_SECONDS = 60


def ledger_url(url: str | None) -> URL:
    """Return the URL of the ledger: ``url``, else ``PRIVRL_LEDGER``, else a file of the user's.

    Raises:
        ConfigError: the URL is malformed, of an unknown database, or of one kept in memory.
    """
    text = url or os.environ.get("PRIVRL_LEDGER")
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
        raise ConfigError(f"ledger={text!r} names no file: budgets must outlive the process")
    return parsed.set(database=str(Path(str(parsed.database)).expanduser().absolute()))


class Storage:
    """Durable transactions on one database, each on a connection of its own.

    Args:
        url: from `ledger_url`.

    Raises:
        MissingExtraError: the PostgreSQL driver is not installed.
        StorageError: the database cannot be opened, or was written by a newer version.
    """

    def __init__(self, url: URL) -> None:
        self._shown = url.render_as_string(hide_password=True)
        if url.get_backend_name() == "sqlite":
            _create_private_file(Path(str(url.database)))
            self.engine = create_engine(
                url, poolclass=NullPool, connect_args={"timeout": _BUSY_SECONDS}
            )
            _make_durable(self.engine)
        else:
            try:
                self.engine = create_engine(url, poolclass=NullPool)
            except ModuleNotFoundError as error:
                raise MissingExtraError("psycopg", "postgres") from error
        self._create_tables()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Yield a connection; commit durably at the end, roll back on any error.

        Raises:
            StorageError: the database is locked, full, unwritable, corrupt or gone.
        """
        try:
            with self.engine.begin() as connection:
                yield connection
        except (SQLAlchemyError, sqlite3.Error) as error:
            raise StorageError(self._one_line(error)) from error

    def close(self) -> None:
        """Close what is open."""
        self.engine.dispose()

    def _create_tables(self) -> None:
        try:
            self._create_missing_tables()
        except StorageError as error:
            # another process created them at the same moment: they are there now
            if not isinstance(error.__cause__, IntegrityError | ProgrammingError):
                raise
            self._create_missing_tables()

    def _create_missing_tables(self) -> None:
        with self.transaction() as connection:
            METADATA.create_all(connection)
            version = connection.execute(select(SCHEMA_VERSIONS.c.version)).scalar()
            if version is None:
                connection.execute(insert(SCHEMA_VERSIONS).values(version=VERSION))
            elif version != VERSION:
                raise StorageError(
                    f"the ledger {self._shown} has format {version}, this program knows {VERSION}:"
                    " use the version of the program that wrote it"
                )

    def _one_line(self, error: Exception) -> str:
        reason = " ".join(str(getattr(error, "orig", None) or error).split())
        if "locked" in reason:
            advice = "another process holds it: run again when that one is done"
        elif "full" in reason:
            advice = "free some space and run again with --resume"
        elif isinstance(error, IntegrityError):
            advice = "another process wrote the same thing: run again"
        else:
            advice = "check its path and rights, or give another with --ledger"
        return f"cannot use the ledger {self._shown}: {reason}; {advice}"


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

    @event.listens_for(engine, "begin")
    def _on_begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
