"""Answers of releases that nobody made, for tests of what shows them."""

from typing import Any, TypeVar

from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.metrics import Answer, ReleasedValue, settled_answer
from distributed_privrl.privacy.units import Relation

T = TypeVar("T")


def entry_of(name: str, **changes: Any) -> LedgerEntry:
    """Return a settled entry of the ledger called ``name``."""
    values: dict[str, Any] = {
        "id": name,
        "dataset": "some/data-v0",
        "unit": "trajectory",
        "relation": Relation.REPLACE_WITH_NULL,
        "kind": "release",
        "reserved_rounds": 1,
        "drawn_rounds": 1,
        "committed_rounds": 1,
        "max_rounds": 1,
        "epsilon": 1.0,
        "delta": 0.0,
        "event": {"kind": "pure_dp"},
        "status": "settled",
        "created": "2026-01-01T00:00:00+00:00",
        "made_by": "somebody@somewhere",
        "units": None,
        "certificate_digest": None,
    }
    return LedgerEntry(**{**values, **changes})


def answer(value: T, entry: str) -> Answer[T]:
    """Return ``value`` as if a release under ``entry`` had returned it."""
    return settled_answer(entry_of(entry), value)


def released(value: Any, entry: str) -> ReleasedValue:
    """Return ``value`` as what `answer` shows."""
    return answer(value, entry).map(lambda same: same)
