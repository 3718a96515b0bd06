"""Bugs in affording a run and in the order of its draws."""

from dataclasses import replace
from typing import Any

import pytest

from distributed_privrl.privacy.ledger import Ledger, budgets, holds
from distributed_privrl.privacy.ledger.records import Holding
from distributed_privrl.rounds.round_server import RoundServer


def checked_and_charged_later(patch: pytest.MonkeyPatch) -> None:
    """A run looks whether it could pay, and pays when it gets there."""

    def look(self: Ledger, asked: Holding, charges: Any = ()) -> None:
        (account,) = (one for one in self.accounts() if one.dataset == asked.dataset)
        budgets.check_affordable(account, epsilon=asked.epsilon, delta=asked.delta)

    def take(connection: Any, account_id: int, request: Any) -> None:
        (account,) = budgets.find_accounts(connection, budgets.ACCOUNTS.c.id == account_id)
        budgets.check_affordable(account, epsilon=request.epsilon, delta=request.delta)

    _without_holds(patch)
    patch.setattr(Ledger, "open_hold", look)
    patch.setattr(holds, "take", take)


def _without_holds(patch: pytest.MonkeyPatch) -> None:
    right = budgets.Charge.columns
    patch.setattr(budgets.Charge, "columns", lambda self: right(self) | {"hold": None})


def holds_are_not_spent(patch: pytest.MonkeyPatch) -> None:
    """Others may spend what a run holds."""
    right = budgets._as_account

    def account(connection: Any, row: Any) -> Any:
        mine = holds.HOLDS.c.account_id == row["id"]
        held = connection.execute(holds.select(holds.HOLDS.c.epsilon).where(mine)).scalars()
        found = right(connection, row)
        return replace(found, spent_epsilon=found.spent_epsilon - sum(held))

    patch.setattr(budgets, "_as_account", account)


def holds_are_never_used_up(patch: pytest.MonkeyPatch) -> None:
    """Each charge finds the whole hold."""
    right = holds.take

    def take(connection: Any, account_id: int, request: Any) -> None:
        before = holds.find_hold(connection, request.hold)
        right(connection, account_id, request)
        whole = {"epsilon": before["epsilon"], "delta": before["delta"]} if before else {}
        row = holds.HOLDS.c.run_id == request.hold
        connection.execute(holds.update(holds.HOLDS).where(row).values(whole))

    patch.setattr(holds, "take", take)


def draws_are_counted_by_the_run(patch: pytest.MonkeyPatch) -> None:
    """Which draw comes next is what the checkpoint says."""
    patch.setattr(RoundServer, "_reserved_round", property(lambda self: self._round))
