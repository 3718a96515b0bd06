"""Accounts inside a transaction: finding, locking, and refusing before anything is charged."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    insert,
    or_,
    select,
    update,
)

from distributed_privrl.core.errors import BudgetError, RowsError, UnsafeError
from distributed_privrl.privacy.ledger import holds
from distributed_privrl.privacy.ledger.entry_secrets import new_secret
from distributed_privrl.privacy.ledger.pools import check_pools
from distributed_privrl.privacy.ledger.records import (
    ROUNDING,
    Account,
    Charge,
    Hold,
    Holding,
    LedgerEntry,
    as_entry,
    as_hold,
    budget_line,
)
from distributed_privrl.privacy.ledger.schema import (
    ACCOUNTS,
    ENTRIES,
    HOLDS,
    SHOWN_ENTRIES,
)
from distributed_privrl.privacy.ledger.stamps import stamp
from distributed_privrl.privacy.units import PrivacyBudget, Relation, covers, unit_in_words


def find_accounts(
    connection: Connection, where: ColumnElement[bool] | None = None
) -> list[Account]:
    """Return the accounts (that match), locked until the transaction ends."""
    query = select(ACCOUNTS).order_by(ACCOUNTS.c.id).with_for_update()
    if where is not None:
        query = query.where(where)
    return [_as_account(connection, row) for row in connection.execute(query).mappings().all()]


def _as_account(connection: Connection, row: RowMapping) -> Account:
    charges = [
        charge
        for table in (ENTRIES, HOLDS)
        for charge in connection.execute(
            select(table.c.epsilon, table.c.delta).where(table.c.account_id == row["id"])
        ).all()
    ]
    values = {k: v for k, v in row.items() if k != "revision"}
    values["relation"] = Relation(row["relation"])
    return Account(
        **values,
        spent_epsilon=math.fsum(charge.epsilon for charge in charges),
        spent_delta=math.fsum(charge.delta for charge in charges),
    )


def same_data(connection: Connection, dataset: str, fingerprint: str) -> Account | None:
    """Return the dataset's account, or None if neither its id nor its data have one.

    Raises:
        RowsError: the id belongs to other data, or the data to another id.
    """
    rows, _ = rows_and_partition(fingerprint)
    either = or_(ACCOUNTS.c.dataset == dataset, ACCOUNTS.c.fingerprint == rows)
    accounts = find_accounts(connection, either)
    for account in accounts:
        if account.dataset != dataset:
            raise RowsError(
                f"the data of {dataset} already have a budget as {account.dataset}, whoever its"
                " units are: use that id, and its unit"
            )
    if not accounts:
        return None
    if accounts[0].fingerprint != rows:
        raise RowsError(
            f"the data of {dataset} have changed since its budget was set, and its account is for"
            " those: bring them back, or give the new data an id of their own"
        )
    return accounts[0]


def rows_and_partition(fingerprint: str) -> tuple[str, str]:
    """Return the two parts of what a dataset is compared by: its rows, and whose they are."""
    rows, _, partition = fingerprint.partition(":")
    return rows, partition


def check_partition(account: Account, fingerprint: str, unit: str) -> None:
    """Refuse the account's rows where they belong to other units than when its budget was set.

    Units of another kind than the account's are left to `covers`. It lets in whole trajectories on
    an account for transitions, under replace_one: however rows are cut into trajectories, each
    transition lies in one of them.

    Raises:
        RowsError: they do.
    """
    if account.unit == unit and account.partition != rows_and_partition(fingerprint)[1]:
        raise RowsError(
            f"the ledger knows the rows of {account.dataset} as those of other units ({unit}): what"
            " one of these has lost there cannot be told; bring the units back, or, while nothing"
            " is spent, set the budget anew"
        )


def chargeable_account(
    connection: Connection,
    *,
    dataset: str,
    fingerprint: str,
    unit: str,
    relation: Relation,
    cost: tuple[float, float],
) -> Account:
    """Return the account that a run in this unit and relation may be charged to.

    Args:
        connection: of the transaction.
        dataset: id of the dataset.
        fingerprint: of its rows and their units.
        unit: that the run protects.
        relation: under which it does.
        cost: (epsilon, delta) to propose where no budget is set.

    Raises:
        BudgetError: the dataset has no budget.
        UnsafeError: the data, their units, unit or relation do not fit the account.
    """
    account = same_data(connection, dataset, fingerprint)
    if account is None:
        line = budget_line(dataset, unit, relation, cost)
        raise BudgetError(f"no budget is set for {dataset}: set one with `{line}`")
    if account.relation != relation:
        raise UnsafeError(
            f"the budget of {dataset} is for the relation {account.relation}, this run's is"
            f" {relation}: charges under two relations do not add up; run with -o"
            f" privacy.relation={account.relation}, or, while nothing is spent, set the budget anew"
            f" with --relation {relation}"
        )
    if not covers(account.unit, unit, account.relation):
        raise UnsafeError(
            f"the budget of {dataset} protects each {unit_in_words(account.unit)}, this run each"
            f" {unit_in_words(unit)}: set"
            f" data.unit={account.unit}, or, while nothing is spent, set the budget anew with"
            f" --unit {unit}"
        )
    check_partition(account, fingerprint, unit)
    return account


def hold(connection: Connection, asked: Holding, charges: Sequence[Charge] = ()) -> Hold:
    """Hold all that a run may charge, or find the hold that the same run opened before.

    Raises:
        BudgetError: no budget, not enough of it left, or the account's deltas reach 1/units.
        UnsafeError: unit, relation or data do not fit the account, the run holds another sum, or
            trajectories that a charge is for are not free (`check_pools`).
    """
    account = chargeable_account(
        connection,
        dataset=asked.dataset,
        fingerprint=asked.fingerprint,
        unit=asked.unit,
        relation=asked.relation,
        cost=(asked.epsilon, asked.delta),
    )
    known = holds.find_hold(connection, asked.run_id)
    columns = asked.columns() | {"account_id": account.id}
    if known is not None:
        _check_same(asked.run_id, known, columns)
        return as_hold(known)
    for one in charges:
        check_pools(connection, account, one)  # first: no larger budget would help
    check_affordable(account, epsilon=asked.epsilon, delta=asked.delta)
    check_delta_sum(account, delta=asked.delta, units=asked.units)
    return as_hold(holds.add(connection, asked, columns))


def _check_same(name: str, row: RowMapping, columns: dict[str, Any]) -> None:
    changed = [column for column, value in columns.items() if row[column] != value]
    if changed:
        raise UnsafeError(
            f"{name!r} is in the ledger with another {', '.join(changed)}: resume with the same"
            " configuration, or take a new id"
        )


def charge(
    connection: Connection, request: Charge, *, secret: bytes | None = None
) -> tuple[LedgerEntry, bool]:
    """Charge the cost of a request, or find the entry that the same request made before.

    What the request's run holds is charged to that; otherwise it must be left of the budget.

    Args:
        connection: of the transaction.
        request: what is charged.
        secret: of the entry, if it is new; None: one is made.

    Returns:
        The entry, and whether it is new.

    Raises:
        BudgetError: no budget, not enough of it left, or the account's deltas reach 1/units.
        UnsafeError: unit, relation or data do not fit the account, the entry's id was used for
            something else, trajectories are not free (`check_pools`), or it costs more than the
            run holds.
    """
    account = chargeable_account(
        connection,
        dataset=request.dataset,
        fingerprint=request.fingerprint,
        unit=request.unit,
        relation=request.relation,
        cost=(request.epsilon, request.delta),
    )
    row = find_entry(connection, request.entry_id)
    columns = request.columns() | {"account_id": account.id}
    if row is not None:
        _check_same(request.entry_id, row, columns)
        return as_entry(row), False
    check_pools(connection, account, request)
    if request.hold is None:
        check_affordable(account, epsilon=request.epsilon, delta=request.delta)
        check_delta_sum(account, delta=request.delta, units=request.units)
    else:
        holds.take(connection, account.id, request)
        check_delta_sum(account, delta=0.0, units=request.units)  # the hold's is among the spent
    holds.revise(connection, account.id)
    connection.execute(
        insert(ENTRIES).values(
            **columns,
            id=request.entry_id,
            epsilon=request.epsilon,
            delta=request.delta,
            reserved_rounds=0,
            drawn_rounds=0,
            committed_rounds=0,
            status="open",
            secret=secret or new_secret(),
            **stamp(),
        )
    )
    return as_entry(stored_entry(connection, request.entry_id)), True


def check_change(account: Account, budget: PrivacyBudget, fingerprint: str) -> None:
    """Refuse a new budget that another unit or relation has, or that is spent already.

    Raises:
        BudgetError: less than what is spent.
        UnsafeError: another unit or relation, or other units of the same kind, and something was
            charged under the old one.

    Warns:
        UserWarning: a limit goes down.
    """
    charged = account.spent_epsilon > 0 or account.spent_delta > 0
    if charged and account.unit != budget.unit:
        raise UnsafeError(
            f"{account.dataset} has spent of a budget for unit {account.unit}, not {budget.unit}: a"
            f" dataset has one; give --unit {account.unit}, and data.unit={account.unit} in runs"
        )
    if charged and account.relation != budget.relation:
        raise UnsafeError(
            f"{account.dataset} has spent of a budget for relation {account.relation}, not"
            f" {budget.relation}: a dataset has one; run with privacy.relation={account.relation}"
            " where the method knows it"
        )
    if charged:
        check_partition(account, fingerprint, budget.unit)
    enough = _within(account.spent_epsilon, budget.epsilon)
    if not (enough and _within(account.spent_delta, budget.delta)):
        raise BudgetError(
            f"{account.dataset} has spent epsilon {account.spent_epsilon:.6g} and delta"
            f" {account.spent_delta:.6g}: its budget cannot go below that"
        )
    if budget.epsilon < account.epsilon or budget.delta < account.delta:
        warnings.warn(
            f"the budget of {account.dataset} goes down from epsilon {account.epsilon:.6g} and"
            f" delta {account.delta:.6g} to {budget.epsilon:.6g} and {budget.delta:.6g}",
            stacklevel=4,
        )


def settle(
    connection: Connection, run_id: str, *, reserved_rounds: int, epsilon: float, delta: float
) -> None:
    """Lower a run's charge to the cost of the rounds it reserved, and close it; may be repeated.

    Raises:
        UnsafeError: no such run, rounds reserved meanwhile, above its hold, or settled before.
    """
    row = stored_entry(connection, run_id)
    if row["kind"] != "rounds":
        raise UnsafeError(f"{run_id!r} is a release: its charge never gets lower")
    if row["reserved_rounds"] != reserved_rounds:
        raise UnsafeError(
            f"rounds were reserved meanwhile: run {run_id!r} has {row['reserved_rounds']},"
            f" not {reserved_rounds}; compute its cost again"
        )
    if row["status"] == "settled":
        if (row["epsilon"], row["delta"]) != (epsilon, delta):
            raise UnsafeError(
                f"run {run_id!r} is settled at another cost already, or was given up: start a new"
                " run"
            )
        return
    if not (0 <= epsilon <= row["held_epsilon"] and 0 <= delta <= row["held_delta"]):
        raise UnsafeError(
            f"run {run_id!r} holds epsilon {row['held_epsilon']:.6g} and delta"
            f" {row['held_delta']:.6g}: it cannot be settled at {epsilon:.6g}, {delta:.6g}"
        )
    connection.execute(
        update(ENTRIES)
        .where(ENTRIES.c.id == run_id)
        .values(epsilon=epsilon, delta=delta, status="settled", secret=None)
    )


def find_entry(connection: Connection, entry_id: str) -> RowMapping | None:
    """Return the row of an entry with its account's dataset, locked until the transaction ends."""
    query = select(*SHOWN_ENTRIES, ACCOUNTS.c.dataset).join_from(ENTRIES, ACCOUNTS)
    mine = query.where(ENTRIES.c.id == entry_id).with_for_update(of=ENTRIES)
    return connection.execute(mine).mappings().first()


def stored_entry(connection: Connection, entry_id: str) -> RowMapping:
    """Return the row of an entry that must be there.

    Raises:
        UnsafeError: it is not.
    """
    row = find_entry(connection, entry_id)
    if row is None:
        raise UnsafeError(f"{entry_id!r} was never opened in this ledger: nothing may be drawn")
    return row


def check_affordable(account: Account, *, epsilon: float, delta: float) -> None:
    """Refuse a charge for which not enough of the budget is left.

    Args:
        account: what it may spend, and has spent.
        epsilon: of the charge.
        delta: of the charge.

    Raises:
        BudgetError: it does not fit; the line that it says lowers neither limit.
    """
    total = account.spent_epsilon + epsilon, account.spent_delta + delta
    if _within(total[0], account.epsilon) and _within(total[1], account.delta):
        return
    needed = max(total[0], account.epsilon), max(total[1], account.delta)
    raise BudgetError(
        f"{account.dataset} has {account.left} left, this needs {epsilon:.6g} and"
        f" {delta:.6g}: ask for less, or raise the budget with"
        f" `{budget_line(account.dataset, account.unit, account.relation, needed)}`"
    )


def check_delta_sum(account: Account, *, delta: float, units: int | None) -> None:
    """Refuse a charge with which the account's deltas would allow to publish one unit whole.

    Args:
        account: what is spent.
        delta: of the charge.
        units: how many there are; None is left to another charge.

    Raises:
        BudgetError: they would add up to 1/units.
    """
    if units is not None and account.spent_delta + delta >= (1 - ROUNDING) / units:
        raise BudgetError(
            f"{account.dataset} has spent delta {account.spent_delta:.6g}, with this"
            f" {delta:.6g} it is not below 1/units = {1 / units:.6g}: choose a"
            " smaller delta"
        )


def _within(total: float, limit: float) -> bool:
    return total <= limit * (1 + ROUNDING)
