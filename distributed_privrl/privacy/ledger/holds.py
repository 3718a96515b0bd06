"""Holds: all that a run may cost, taken at once before it draws, and charged out of bit by bit.

The rest of a hold and the entries that were charged to it never add up to more than was held. What
is left when the run can charge no more is free again: under basic composition it was never spent.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, delete, insert, or_, select, update

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.ledger.records import ROUNDING, Charge, GivenUp, Holding
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, ENTRIES, HOLDS, SHOWN_ENTRIES
from distributed_privrl.privacy.ledger.stamps import stamp
from distributed_privrl.privacy.units import Relation


def find_hold(connection: Connection, run_id: str) -> RowMapping | None:
    """Return the row of a hold with its account's dataset, locked until the transaction ends."""
    query = select(HOLDS, ACCOUNTS.c.dataset).join_from(HOLDS, ACCOUNTS)
    mine = query.where(HOLDS.c.run_id == run_id).with_for_update(of=HOLDS)
    return connection.execute(mine).mappings().first()


def add(connection: Connection, asked: Holding, columns: dict[str, Any]) -> RowMapping:
    """Insert a hold whose sum is left of the account's budget; return its row."""
    connection.execute(
        insert(HOLDS).values(
            **columns,
            run_id=asked.run_id,
            epsilon=asked.epsilon,
            delta=asked.delta,
            status="open",
            **stamp(),
        )
    )
    revise(connection, columns["account_id"])
    row = find_hold(connection, asked.run_id)
    assert row is not None
    return row


def take(connection: Connection, account_id: int, request: Charge) -> None:
    """Take the cost of a charge out of its run's hold.

    Raises:
        UnsafeError: the run has no open hold of this account, unit and relation, or too small one.
    """
    row = find_hold(connection, request.hold or "")
    if row is None or row["status"] != "open":
        raise UnsafeError(
            f"run {request.hold!r} holds nothing that {request.entry_id!r} could be charged to: its"
            " hold was freed, or its last charge was made; start a new run"
        )
    asked = (account_id, request.unit, Relation(request.relation).value)
    if (row["account_id"], row["unit"], row["relation"]) != asked:
        raise UnsafeError(
            f"run {request.hold!r} holds of {row['dataset']} for each {row['unit']}"
            f" ({row['relation']}): {request.entry_id!r} is of other data, unit or relation"
        )
    left = {}
    for name, cost in (("epsilon", request.epsilon), ("delta", request.delta)):
        used_up = cost > 0 and row[name] <= 0  # rounding is granted once, not to each charge
        if used_up or cost > row[name] + ROUNDING * row[f"held_{name}"]:
            raise UnsafeError(
                f"run {request.hold!r} holds {name} {row[name]:.6g} of"
                f" {row[f'held_{name}']:.6g}, {request.entry_id!r} costs {cost:.6g}: a run charges"
                " no more than it held before it drew"
            )
        left[name] = max(0.0, row[name] - cost)
    connection.execute(update(HOLDS).where(HOLDS.c.run_id == request.hold).values(left))


def close(connection: Connection, run_id: str) -> tuple[float, float]:
    """Free what is left of a hold, to which nothing can be charged any more; may be repeated.

    Returns:
        Epsilon and delta that are free again.
    """
    row = find_hold(connection, run_id)
    if row is None or row["status"] != "open":
        return 0.0, 0.0
    closed = {"status": "closed", "epsilon": 0.0, "delta": 0.0}
    connection.execute(update(HOLDS).where(HOLDS.c.run_id == run_id).values(closed))
    revise(connection, row["account_id"])
    return row["epsilon"], row["delta"]


def free(connection: Connection, run_id: str) -> bool:
    """Remove a hold that nothing was charged to, and say whether there is none any more."""
    row = find_hold(connection, run_id)
    if row is None:
        return True
    charged = select(ENTRIES.c.id).where(ENTRIES.c.hold == run_id).limit(1)
    if connection.execute(charged).first() is not None:
        return False
    connection.execute(delete(HOLDS).where(HOLDS.c.run_id == run_id))
    revise(connection, row["account_id"])
    return True


def give_up(connection: Connection, run_id: str) -> GivenUp:
    """Close a run that nobody will resume: see `Ledger.give_up`.

    Raises:
        UnsafeError: there is no such run, or nothing of it is open.
    """
    row = find_hold(connection, run_id)
    query = select(*SHOWN_ENTRIES).where(_entries_of(run_id))
    entries = connection.execute(query.with_for_update()).mappings().all()
    if row is None and not entries:
        raise UnsafeError(f"the ledger knows no run {run_id!r}: see `privrl ledger show`")
    held = row is not None and row["status"] == "open"
    open_entries = [entry for entry in entries if entry["status"] == "open"]
    if not held and not open_entries:
        raise UnsafeError(
            f"run {run_id!r} has ended: it holds nothing, and what it drew stays charged"
        )
    freed = [close(connection, run_id)]
    kept = [(one["epsilon"], one["delta"]) for one in entries if one["status"] != "open"]
    for entry in open_entries:
        cost = entry["epsilon"], entry["delta"]
        settled: dict[str, Any] = {"status": "settled", "secret": None}
        begun = entry["reserved_rounds"] > 0
        (kept if begun else freed).append(cost)
        if not begun:
            settled |= {"epsilon": 0.0, "delta": 0.0}
        connection.execute(update(ENTRIES).where(ENTRIES.c.id == entry["id"]).values(settled))
        revise(connection, entry["account_id"])
    free(connection, run_id)
    epsilon, delta = (sum(part) for part in zip(*freed, strict=True))
    spent, spent_delta = (sum(part) for part in zip((0.0, 0.0), *kept, strict=True))
    return GivenUp(
        freed_epsilon=epsilon, freed_delta=delta, charged_epsilon=spent, charged_delta=spent_delta
    )


def has_begun(connection: Connection, run_id: str) -> bool:
    """Say whether an open entry of a run may have drawn something."""
    begun = (ENTRIES.c.status == "open") & (ENTRIES.c.reserved_rounds > 0)
    query = select(ENTRIES.c.id).where(_entries_of(run_id), begun).limit(1)
    return connection.execute(query).first() is not None


def _entries_of(run_id: str) -> ColumnElement[bool]:
    return or_(ENTRIES.c.hold == run_id, ENTRIES.c.id == run_id)


def revise(connection: Connection, account_id: int) -> None:
    """Change the account's row, so that whoever changes it at the same time is in conflict."""
    connection.execute(
        update(ACCOUNTS).where(ACCOUNTS.c.id == account_id).values(revision=ACCOUNTS.c.revision + 1)
    )
