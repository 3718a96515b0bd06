"""What an import finds in the rows and tells their owner, on the terminal and nowhere else."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

NAMED = 5
"""Values that a line names, the most frequent ones."""
_REMEMBERED = 1_000
"""Different values that are kept of a finding: a column that was taken for another may have any."""
_LONGEST = 40
"""Characters of a value."""


@dataclass
class Findings:
    """Counts rows and units by what was found in them.

    Args:
        unit: column of the units, or what a unit is (``trajectory``); None: rows are units.

    Privacy: exact numbers and values, which depend on single rows: for the owner of the table
    alone, never for a dataset's metadata, a log or anything that may leave.
    """

    unit: str | None
    _rows: dict[tuple[str, str], int] = field(default_factory=dict)
    _units: dict[tuple[str, str], list[NDArray[np.uint64]]] = field(default_factory=dict)
    _values: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)

    def add(
        self,
        what: str,
        then: str,
        rows: NDArray[np.bool_],
        units: NDArray[np.uint64] | None,
        values: Iterable[str] = (),
    ) -> None:
        """Note the rows of which something is true.

        Args:
            what: what is true of them, e.g. ``age: no value``.
            then: what becomes of them.
            rows: which they are, ``(N,)``.
            units: whose the rows are, ``(N,)``; None: each is a unit.
            values: what stands in those rows, to be named.
        """
        count, key = int(rows.sum()), (what, then)
        if not count:
            return
        self._rows[key] = self._rows.get(key, 0) + count
        if units is not None:
            self._units.setdefault(key, []).append(np.unique(units[rows]))
        for value, times in Counter(values).items():
            seen = self._values.setdefault(key, Counter())
            if value in seen or len(seen) < _REMEMBERED:
                seen[value] += times

    def lines(self) -> tuple[str, ...]:
        """Return a line for each finding: what it is, in how many rows and units, and what then.

        Values are named with the number of their rows, quoted as Python does it, so that one with a
        line break does not look like a line of its own.
        """
        return tuple(
            f"note to the owner: {what} in {count:,} row{'' if count == 1 else 's'}"
            f"{self._of(what, then)}; {then}{self._named(what, then)}"
            for (what, then), count in self._rows.items()
        )

    def _of(self, what: str, then: str) -> str:
        parts = self._units.get((what, then))
        if self.unit is None or parts is None:
            return ""
        count = len(np.unique(np.concatenate(parts)))
        one = count == 1
        if self.unit == "trajectory":
            return f" of {count:,} {self.unit if one else 'trajectories'}"
        return f" of {count:,} {'value' if one else 'values'} of {self.unit}"

    def _named(self, what: str, then: str) -> str:
        seen = self._values.get((what, then))
        if not seen:
            return ""
        shown = [f"{_quoted(value)} ({count:,})" for value, count in seen.most_common(NAMED)]
        if len(seen) > NAMED:
            shown.append("more" if len(seen) == _REMEMBERED else f"{len(seen) - NAMED} more")
        return f": {', '.join(shown)}"


def _quoted(value: str) -> str:
    return repr(value if len(value) <= _LONGEST else f"{value[: _LONGEST - 3]}...")
