"""The ledger: budgets of datasets, and every charge against them, on disk before noise is drawn."""

from distributed_privrl.privacy.ledger.ledger import Ledger
from distributed_privrl.privacy.ledger.records import (
    Account,
    Declaration,
    Hold,
    LedgerEntry,
    Reservation,
)

__all__ = ["Account", "Declaration", "Hold", "Ledger", "LedgerEntry", "Reservation"]
