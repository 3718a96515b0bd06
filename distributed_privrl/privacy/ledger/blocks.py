"""Blocks of rounds inside a transaction: reserved, then drawn, then committed."""

from typing import Any

from sqlalchemy import Connection, insert, select, update

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.ledger.budgets import stored_entry
from distributed_privrl.privacy.ledger.records import (
    LedgerEntry,
    Reservation,
    as_entry,
    as_reservation,
)
from distributed_privrl.privacy.ledger.schema import BLOCKS, ENTRIES


def open_entry(connection: Connection, run_id: str) -> LedgerEntry:
    """Return the entry of a run that may still draw, locked until the transaction ends.

    Raises:
        UnsafeError: there is no such run, or it is settled.
    """
    entry = as_entry(stored_entry(connection, run_id))
    if entry.kind != "rounds":
        raise UnsafeError(f"{run_id!r} is a release, not a run: open a run to draw rounds")
    if entry.status != "open":
        raise UnsafeError(
            f"run {run_id!r} is settled, or was given up: start a new run to draw more"
        )
    return entry


def find_block(connection: Connection, nonce: str) -> Reservation | None:
    """Return the block reserved under ``nonce``."""
    row = connection.execute(select(BLOCKS).where(BLOCKS.c.nonce == nonce)).mappings().first()
    return None if row is None else as_reservation(row)


def reserve(connection: Connection, entry: LedgerEntry, rounds: int, nonce: str) -> Reservation:
    """Add a block to an entry, or return the one that this nonce has.

    Raises:
        BudgetError: the entry has not that many rounds left.
        UnsafeError: the nonce belongs to another block.
    """
    known = find_block(connection, nonce)
    if known is not None:
        if (known.run_id, known.rounds) != (entry.id, rounds):
            raise UnsafeError(
                f"nonce {nonce!r} was used for {known.rounds} rounds of run {known.run_id!r}: each"
                " block needs a nonce of its own"
            )
        return known
    left = entry.max_rounds - entry.reserved_rounds
    if rounds > left:
        raise BudgetError(
            f"run {entry.id!r} has {left} of {entry.max_rounds} rounds left, not {rounds}: rounds"
            " lost in crashes stay charged; give the next run more spare rounds"
        )
    values: dict[str, Any] = {
        "nonce": nonce,
        "first_round": entry.reserved_rounds,
        "rounds": rounds,
        "drawn": 0,
        "committed": 0,
        "abandoned": False,
    }
    connection.execute(insert(BLOCKS).values(**values, entry_id=entry.id))
    _add_to_entry(connection, entry.id, reserved=rounds)
    return Reservation(**values, run_id=entry.id, repeated=False)


def commit(connection: Connection, nonce: str, drawn: int, *, run_id: str | None = None) -> None:
    """Record that ``drawn`` rounds of a block were drawn and committed.

    Raises:
        UnsafeError: the block is unknown, closed or another run's than ``run_id``, or the count
            goes back or beyond the block.
    """
    block = find_block(connection, nonce)
    if block is None:
        raise UnsafeError(f"nonce {nonce!r} was never reserved: reserve before drawing")
    if run_id not in (None, block.run_id):
        raise UnsafeError(f"nonce {nonce!r} belongs to run {block.run_id!r}, not to {run_id!r}")
    entry = as_entry(stored_entry(connection, block.run_id))  # locks; the block is read again
    block = find_block(connection, nonce) or block
    if block.committed == drawn:
        return  # a resumed run repeats the commit of its checkpoint; the rest was counted as drawn
    if block.abandoned or entry.status != "open":
        raise UnsafeError(f"the block {nonce!r} is closed: reserve another one")
    if not block.drawn <= drawn <= block.rounds:
        raise UnsafeError(
            f"drawn={drawn} must lie between the {block.drawn} rounds recorded for {nonce!r} and"
            f" the {block.rounds} reserved"
        )
    _set_block(connection, block, drawn=drawn, committed=drawn, abandoned=False)


def abandon(connection: Connection, run_id: str) -> int:
    """Count every uncommitted round of a run as drawn, close its blocks, return how many.

    Raises:
        UnsafeError: there is no such run.
    """
    stored_entry(connection, run_id)
    uncommitted = BLOCKS.c.committed < BLOCKS.c.rounds
    rows = connection.execute(
        select(BLOCKS).where(BLOCKS.c.entry_id == run_id, uncommitted, ~BLOCKS.c.abandoned)
    ).mappings()
    lost = 0
    for row in rows.all():
        block = as_reservation(row)
        lost += block.rounds - block.committed
        _set_block(connection, block, drawn=block.rounds, committed=block.committed, abandoned=True)
    return lost


def _set_block(
    connection: Connection, block: Reservation, *, drawn: int, committed: int, abandoned: bool
) -> None:
    connection.execute(
        update(BLOCKS)
        .where(BLOCKS.c.nonce == block.nonce)
        .values(drawn=drawn, committed=committed, abandoned=abandoned)
    )
    _add_to_entry(
        connection, block.run_id, drawn=drawn - block.drawn, committed=committed - block.committed
    )


def _add_to_entry(
    connection: Connection, entry_id: str, *, reserved: int = 0, drawn: int = 0, committed: int = 0
) -> None:
    connection.execute(
        update(ENTRIES)
        .where(ENTRIES.c.id == entry_id)
        .values(
            reserved_rounds=ENTRIES.c.reserved_rounds + reserved,
            drawn_rounds=ENTRIES.c.drawn_rounds + drawn,
            committed_rounds=ENTRIES.c.committed_rounds + committed,
        )
    )
