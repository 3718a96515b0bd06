"""Single releases inside a transaction: charged and reserved, then answered, once."""

from sqlalchemy import Connection, update

from distributed_privrl.core.errors import LostAnswerError
from distributed_privrl.privacy.ledger import blocks, budgets
from distributed_privrl.privacy.ledger.entry_secrets import read_secret
from distributed_privrl.privacy.ledger.records import Charge, LedgerEntry, as_entry
from distributed_privrl.privacy.ledger.schema import ENTRIES


def charge(
    connection: Connection, request: Charge, secret: bytes
) -> tuple[str | None, LedgerEntry]:
    """Charge a release that may now be drawn, or find the answer that was drawn for it.

    Args:
        connection: of the transaction.
        request: of a release; its id names the query.
        secret: 32 random bytes that this request alone has. An entry without an answer that holds
            them was charged by it: the confirmation was lost, and nothing is drawn yet.

    Returns:
        The stored answer, as JSON, or None for one to be drawn; and the entry.

    Raises:
        BudgetError: as for `budgets.charge`.
        UnsafeError: as there.
        LostAnswerError: it was charged before, and its answer was lost.
    """
    entry, is_new = budgets.charge(connection, request, secret=secret)
    if is_new:
        blocks.reserve(connection, entry, 1, request.entry_id)
        return None, entry
    stored: str | None = budgets.stored_entry(connection, request.entry_id)["answer"]
    if stored is None and read_secret(connection, request.entry_id) == secret:
        return None, entry
    if stored is None:
        raise LostAnswerError(
            f"release {request.entry_id!r} was charged but its answer was lost: it is spent, ask"
            " again under a new nonce"
        )
    return stored, entry


def answer(connection: Connection, nonce: str, drawn: str) -> LedgerEntry:
    """Store the answer, as JSON, of a release that was charged, and settle it."""
    blocks.commit(connection, nonce, 1)
    settled = {"answer": drawn, "status": "settled", "secret": None}
    connection.execute(update(ENTRIES).where(ENTRIES.c.id == nonce).values(settled))
    return as_entry(budgets.stored_entry(connection, nonce))
