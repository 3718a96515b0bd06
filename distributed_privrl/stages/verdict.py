"""Whether a run is worth its budget, told from public facts before anything is drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from distributed_privrl.core.errors import UselessError


class Grade(StrEnum):
    """How much of the data the noise leaves."""

    FINE = "fine"
    LIMITED = "limited"
    HOPELESS = "hopeless"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a plan says of itself; public facts only.

    Args:
        grade: in one word.
        reason: what the noise leaves, with its figures.
        advice: what to change; empty where nothing need be.
    """

    grade: Grade
    reason: str
    advice: str = ""

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.grade}: {self.reason}" + (f"; {self.advice}" if self.advice else "")

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan --json`` writes."""
        return {"grade": str(self.grade), "reason": self.reason, "advice": self.advice}


def check_useful(verdicts: Sequence[Verdict | None]) -> None:
    """Refuse a run of which nothing would be left but noise.

    Raises:
        UselessError: a verdict is hopeless.
    """
    for verdict in verdicts:
        if verdict is not None and verdict.grade is Grade.HOPELESS:
            raise UselessError(
                f"this run would be useless: {verdict.reason}: {verdict.advice}; --anyway"
                " (anyway=True) runs it all the same"
            )
