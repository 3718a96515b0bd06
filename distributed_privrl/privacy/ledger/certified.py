"""Which certificates state an entry: the run's, and one for each dataset released beside it."""

from sqlalchemy import Connection, insert, select, update

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.ledger.budgets import stored_entry
from distributed_privrl.privacy.ledger.schema import BESIDE, ENTRIES


def certify(connection: Connection, entry_id: str, digest: str, output: str | None) -> None:
    """Store which certificate states a settled entry, or the part of it that ``output`` needed.

    Raises:
        UnsafeError: no such entry, still open, or stated by another certificate.
    """
    row = stored_entry(connection, entry_id)
    if row["status"] != "settled":
        raise UnsafeError(f"{entry_id!r} is open: settle it before it is certified")
    known = row["certificate_digest"]
    if output is not None:
        ours = (BESIDE.c.entry_id == entry_id) & (BESIDE.c.output == output)
        known = connection.execute(select(BESIDE.c.certificate_digest).where(ours)).scalar()
    if known not in (None, digest):
        about = "" if output is None else f" for {output}"
        raise UnsafeError(f"{entry_id!r} is stated by another certificate{about} already")
    if known is not None:
        return
    if output is None:
        entry = update(ENTRIES).where(ENTRIES.c.id == entry_id)
        connection.execute(entry.values(certificate_digest=digest))
        return
    connection.execute(
        insert(BESIDE).values(entry_id=entry_id, output=output, certificate_digest=digest)
    )


def digests_beside(connection: Connection, entry_id: str) -> tuple[str, ...]:
    """Return the digests of the certificates of what was released beside an entry's."""
    query = select(BESIDE.c.certificate_digest).where(BESIDE.c.entry_id == entry_id)
    return tuple(connection.execute(query.order_by(BESIDE.c.output)).scalars())
