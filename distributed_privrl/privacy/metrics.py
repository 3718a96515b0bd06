"""Metrics that may leave: the type says why, and nothing without such a type is written."""

import math
from dataclasses import dataclass

Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class PublicValue:
    """A value that depends on no private data: a round number, a budget, a public loss.

    Raises:
        TypeError: ``value`` is no scalar.
    """

    value: Scalar

    def __post_init__(self) -> None:
        _check_scalar(self.value)


@dataclass(frozen=True)
class ReleasedValue:
    """A value that depends on private data through a release that the ledger was charged for.

    Args:
        value: what was released, or computed from releases and public data alone.
        ledger_entry: id of the entry that paid.

    Raises:
        TypeError: ``value`` is no scalar, or ``ledger_entry`` is empty.

    Privacy:
        Post-processing of the release named by ``ledger_entry``.
    """

    value: Scalar
    ledger_entry: str

    def __post_init__(self) -> None:
        _check_scalar(self.value)
        if not self.ledger_entry:
            raise TypeError("ReleasedValue needs the id of the ledger entry that paid for it")


def metrics_record(**values: PublicValue | ReleasedValue) -> dict[str, Scalar]:
    """Return what may be written to ``metrics.jsonl``; numbers that are not finite become null.

    Raises:
        TypeError: a value says neither that it is public nor who paid for it.

    Example:
        >>> metrics_record(round=PublicValue(3), units=ReleasedValue(998, ledger_entry="e1"))
        {'round': 3, 'units': 998, 'units_ledger_entry': 'e1'}
    """
    record: dict[str, Scalar] = {}
    for name, value in values.items():
        if type(value) not in (PublicValue, ReleasedValue):
            raise TypeError(
                f"metric {name!r} is a bare {type(value).__name__}: wrap it in PublicValue, or in"
                " ReleasedValue with its ledger entry; anything else may not leave"
            )
        finite = not isinstance(value.value, float) or math.isfinite(value.value)
        record[name] = value.value if finite else None
        if isinstance(value, ReleasedValue):
            record[f"{name}_ledger_entry"] = value.ledger_entry
    return record


def _check_scalar(value: object) -> None:
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(f"a metric is a number, a text or null, got {type(value).__name__}")
