"""Whether a run is worth its budget, told from public facts before anything is drawn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from distributed_privrl.core.errors import UselessError

OF_STRONG_PAIRS = (
    "columns survive, and most pairs of them with a correlation of .5 or more, as measured on other"
    " tables; weaker relations may be lost"
)
"""What a verdict of ``fine`` is about: docs/design/0004-verdicts.md."""


class Grade(StrEnum):
    """How much of the data the noise leaves, the better first."""

    FINE = "fine"
    NOT_JUDGED = "not judged"
    LIMITED = "limited"
    HOPELESS = "hopeless"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a plan says of itself; public facts only.

    Args:
        grade: in one word.
        reason: what the noise leaves, with its figures.
        advice: what to change; empty where nothing need be.
        figures: numbers that it rests on, by their names; for tables of several plans.
    """

    grade: Grade
    reason: str
    advice: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Return it as one line."""
        return f"{self.grade}: {self.reason}" + (f"; {self.advice}" if self.advice else "")

    def clauses(self) -> list[str]:
        """Return it as lines, one a thought."""
        return str(self).split("; ")

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan --json`` writes."""
        return {
            "grade": str(self.grade),
            "reason": self.reason,
            "advice": self.advice,
            "figures": {name: float(f"{value:.4g}") for name, value in self.figures.items()},
        }


def worse(one: Verdict | None, other: Verdict | None) -> Verdict | None:
    """Return the worse of two verdicts, the first of equal ones; None: there is none."""
    grades = list(Grade)
    known = [verdict for verdict in (one, other) if verdict is not None]
    return max(known, key=lambda verdict: grades.index(verdict.grade), default=None)


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
