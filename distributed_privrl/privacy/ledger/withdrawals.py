"""Accounts that are removed because nothing was ever charged to them."""

from sqlalchemy import Connection, delete, func, select

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.ledger.budgets import find_accounts
from distributed_privrl.privacy.ledger.records import Account
from distributed_privrl.privacy.ledger.schema import ACCOUNTS, ENTRIES, HOLDS, SKETCHES


def withdraw(connection: Connection, dataset: str) -> Account:
    """Remove an account that nothing was ever charged to or is held of; see `Ledger.withdraw`."""
    found = find_accounts(connection, ACCOUNTS.c.dataset == dataset)
    if not found:
        raise BudgetError(f"no budget is set for {dataset}: `privrl ledger show` lists all")
    (account,) = found
    for table, what in ((ENTRIES, "charged"), (HOLDS, "held")):
        query = select(func.count()).where(table.c.account_id == account.id)
        if connection.execute(query).scalar_one():
            raise UnsafeError(
                f"something was {what} of the budget of {dataset}, and an account that has been"
                " charged stays: `privrl ledger show` has the runs"
            )
    connection.execute(delete(SKETCHES).where(SKETCHES.c.account_id == account.id))
    connection.execute(delete(ACCOUNTS).where(ACCOUNTS.c.id == account.id))
    return account
