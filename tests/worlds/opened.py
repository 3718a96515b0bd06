"""What tests look at that a run may not: a dataset's sensitive facts, opened as their owner."""

from typing import TypeVar

from distributed_privrl.core.sensitive import Purpose, Sensitive

T = TypeVar("T")


def opened(value: Sensitive[T]) -> T:
    """Return the bare value."""
    return value.open(Purpose.OWNER)
