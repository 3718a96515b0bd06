"""An entry's secret: made with its first charge, read while it is open, erased when it settles."""

import os

from sqlalchemy import Connection, select

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.ledger.schema import ENTRIES

SECRET_BYTES = 32


def new_secret() -> bytes:
    """Return the secret of an entry that is charged in this transaction."""
    return os.urandom(SECRET_BYTES)


def read_secret(connection: Connection, entry_id: str) -> bytes:
    """Return the secret of an open entry.

    Raises:
        UnsafeError: there is no such entry, or it is settled.
    """
    query = select(ENTRIES.c.secret).where(ENTRIES.c.id == entry_id)
    row = connection.execute(query).first()
    if row is None:
        raise UnsafeError(f"{entry_id!r} was never opened in this ledger: nothing may be drawn")
    if row.secret is None:
        raise UnsafeError(
            f"{entry_id!r} is settled, or was given up, and its secret erased: nothing may be drawn"
            " under it; start a new run"
        )
    secret: bytes = row.secret.value
    return secret
