"""The ledger: budgets of datasets, and every charge against them, on disk before noise is drawn."""

from typing import TYPE_CHECKING, Any

from distributed_privrl.privacy.ledger.records import (
    Account,
    Declaration,
    Hold,
    LedgerEntry,
    Reservation,
)

if TYPE_CHECKING:
    from distributed_privrl.privacy.ledger.ledger import Ledger

__all__ = ["Account", "Declaration", "Hold", "Ledger", "LedgerEntry", "Reservation"]


def __getattr__(name: str) -> Any:
    """Import the ledger, and the database behind it, when it is first asked for: no plan does."""
    if name != "Ledger":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from distributed_privrl.privacy.ledger.ledger import Ledger

    return Ledger
