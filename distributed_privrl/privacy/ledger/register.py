"""What the ledger knows of accounts' rows beside their names: sketches, and what was declared.

The key of the sketches lies apart from the database: whoever has the one without the other cannot
tell whether a row is in a sketch.
"""

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import platformdirs
from sqlalchemy import URL, Connection, delete, insert, select

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.privacy.ledger.attempts import retried
from distributed_privrl.privacy.ledger.budgets import check_partition, same_data
from distributed_privrl.privacy.ledger.records import Declaration
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, DECLARATIONS, ROW_KEYS, SKETCHES
from distributed_privrl.privacy.ledger.stamps import moment
from distributed_privrl.privacy.ledger.storage import Storage

KEY_VARIABLE = "PRIVRL_LEDGER_KEY"
"""Names the key's file of a server's ledger, where machines come and go: there it is mounted."""
_KEY_BYTES = 32
_PAIR = ("dataset", "fingerprint", "other", "other_fingerprint", "why")


class DataRegister:
    """Sketches of accounts' rows, the key that they were made with, and declarations.

    Args:
        storage: of the ledger.
        url: of the ledger, which says where the key lies.
    """

    def __init__(self, storage: Storage, url: URL) -> None:
        self._storage = storage
        self.key_path = key_path(url)
        self._mounted = url.get_backend_name() != "sqlite"

    @retried
    def key(self) -> bytes:
        """Return the key of the sketches, made once for a ledger.

        Raises:
            StorageError: it is missing, though the ledger has one, or it is another's.
        """
        with self._storage.transaction() as connection:
            known = connection.execute(select(ROW_KEYS.c.digest)).scalar()
            with storage_errors(f"read {self.key_path}"):
                if known is None:
                    _make_key(self.key_path)
                key = self.key_path.read_bytes() if self.key_path.exists() else b""
            digest = hashlib.sha256(b"privrl row key\n" + key).hexdigest()
            if known is None and len(key) == _KEY_BYTES:
                connection.execute(insert(ROW_KEYS).values(id=1, digest=digest))
            elif known != digest:
                named = f", or name it by {KEY_VARIABLE}" if self._mounted else ""
                raise StorageError(
                    f"{self.key_path} must hold the key of this ledger's row hashes and does not:"
                    f" bring it back from where budgets were set before{named}; without it nobody"
                    " can say what datasets have in common"
                )
            return key

    @retried
    def check_data(self, dataset: str, fingerprint: str, unit: str) -> None:
        """Refuse rows that the ledger knows under another id or as other units.

        Args:
            dataset: its id.
            fingerprint: of its rows and their units.
            unit: that a run protects.

        Raises:
            UnsafeError: it does, or knows other rows under this id.
        """
        with self._storage.transaction() as connection:
            if (account := same_data(connection, dataset, fingerprint)) is not None:
                check_partition(account, fingerprint, unit)

    @retried
    def sketches(self) -> dict[str, bytes | None]:
        """Return the sketch of each account, by its dataset; None where it has none."""
        query = select(ACCOUNTS.c.dataset, SKETCHES.c.sketch).outerjoin(
            SKETCHES, SKETCHES.c.account_id == ACCOUNTS.c.id
        )
        with self._storage.transaction() as connection:
            return {row.dataset: row.sketch for row in connection.execute(query)}

    @retried
    def declare_unrelated(self, one: tuple[str, str], other: tuple[str, str], *, why: str) -> None:
        """Write down that two datasets share nobody; may be repeated.

        Args:
            one: id and fingerprint of the first.
            other: id and fingerprint of the second.
            why: in the operator's words; certificates show it.

        Raises:
            ConfigError: no reason, or one dataset alone.
        """
        if not why.strip():
            raise ConfigError("--why must say why the datasets share nobody: certificates show it")
        if one[0] == other[0] or one[1] == other[1]:
            raise ConfigError(f"{one[0]} and {other[0]} are one dataset: name another")
        pair = dict(zip(_PAIR, (*one, *other, " ".join(why.split())), strict=True))
        same = [DECLARATIONS.c[name] == value for name, value in pair.items()]
        with self._storage.transaction() as connection:
            if connection.execute(select(DECLARATIONS.c.id).where(*same)).first() is None:
                connection.execute(insert(DECLARATIONS).values(**pair, created=moment()))

    @retried
    def declarations(self, fingerprint: str | None = None) -> list[Declaration]:
        """Return what was declared, of all datasets or of the one with this fingerprint."""
        query = select(DECLARATIONS).order_by(DECLARATIONS.c.id)
        with self._storage.transaction() as connection:
            rows = connection.execute(query).mappings().all()
        found = [
            Declaration(**{name: value for name, value in row.items() if name != "id"})
            for row in rows
        ]
        if fingerprint is None:
            return found
        return [one for one in found if fingerprint in (one.fingerprint, one.other_fingerprint)]


def keep_sketch(connection: Connection, account_id: int, sketch: bytes) -> None:
    """Store an account's sketch in place of what was there."""
    connection.execute(delete(SKETCHES).where(SKETCHES.c.account_id == account_id))
    connection.execute(insert(SKETCHES).values(account_id=account_id, sketch=sketch))


def key_path(url: URL) -> Path:
    """Return the file of a ledger's key.

    It lies beside a SQLite file. Of a server's ledger it is what ``PRIVRL_LEDGER_KEY`` names, else
    in the user's data folder. A process may open ledgers of its own beside the one that is charged,
    as trials of sweeps do: those are SQLite files, and never make or take that one's key.

    Raises:
        ConfigError: the variable names no absolute path, or a file that everybody can read.
    """
    if url.get_backend_name() == "sqlite":
        path = Path(str(url.database))
        return path.with_name(f"{path.name}.key")
    if named := os.environ.get(KEY_VARIABLE):
        return _checked(Path(named))
    place = f"{url.host or ''}:{url.port or ''}/{url.database or ''}"
    name = hashlib.sha256(place.encode()).hexdigest()[:16]
    return Path(platformdirs.user_data_dir("privrl")) / f"ledger-{name}.key"


def _checked(path: Path) -> Path:
    if not path.is_absolute():
        raise ConfigError(f"{KEY_VARIABLE}={path} is no absolute path: give /secrets/row_key")
    with storage_errors(f"look at {path}"):
        if path.exists() and path.stat().st_mode & stat.S_IROTH:
            raise ConfigError(
                f"everybody can read {path}, the key of the ledger's row hashes: chmod 600 (of a"
                " Kubernetes secret defaultMode: 0400)"
            )
    return path


def _make_key(path: Path) -> None:
    """Write a new key, for its owner alone, unless there is one; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        _private_file(path.with_name(f".{path.name}.{secrets.token_hex(8)}")) as temporary,
        contextlib.suppress(FileExistsError),
    ):
        os.link(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _private_file(path: Path) -> Iterator[Path]:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        yield path
    finally:
        path.unlink(missing_ok=True)
