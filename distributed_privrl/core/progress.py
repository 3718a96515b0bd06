"""How long work tells where it is, without knowing who listens."""

from typing import Protocol

SAMPLING = "sampling"
"""What the stage is called in which a release is drawn from what was learned."""


class Progress(Protocol):
    """Receives public facts about a stage of a run."""

    def __call__(self, stage: str, done: int, total: int, note: str = "") -> None:
        """Say that ``done`` of ``total`` steps of ``stage`` are behind.

        Args:
            stage: e.g. ``"private rounds"``.
            done: steps done.
            total: steps in all.
            note: a short public remark, e.g. the epsilon reserved so far.
        """
        ...


def silent(stage: str, done: int, total: int, note: str = "") -> None:
    """Ignore progress."""


def mark_of(done: int, total: int) -> int:
    """Return the last mark of a stage in per cent: its start, a hundredth, a tenth, its end."""
    percent = 100 * done // total if total else 100
    return percent // 10 * 10 or min(percent, 1)
