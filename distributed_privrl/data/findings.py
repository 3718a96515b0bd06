"""What an import finds in the rows and tells their owner, on the terminal and nowhere else."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class Findings:
    """Counts rows and units by what was found in them.

    Args:
        unit: column of the units, or what a unit is (``trajectory``); None: rows are units.

    Privacy: exact numbers, which depend on single rows: for the owner of the table alone, never for
    a dataset's metadata, a log or anything that may leave.
    """

    unit: str | None
    _rows: dict[tuple[str, str], int] = field(default_factory=dict)
    _units: dict[tuple[str, str], list[NDArray[np.uint64]]] = field(default_factory=dict)

    def add(
        self, what: str, then: str, rows: NDArray[np.bool_], units: NDArray[np.uint64] | None
    ) -> None:
        """Note the rows of which something is true.

        Args:
            what: what is true of them, e.g. ``age: no value``.
            then: what becomes of them.
            rows: which they are, ``(N,)``.
            units: whose the rows are, ``(N,)``; None: each is a unit.
        """
        count, key = int(rows.sum()), (what, then)
        if not count:
            return
        self._rows[key] = self._rows.get(key, 0) + count
        if units is not None:
            self._units.setdefault(key, []).append(np.unique(units[rows]))

    def lines(self) -> tuple[str, ...]:
        """Return a line for each finding: what it is, in how many rows and units, and what then."""
        return tuple(
            f"note to the owner: {what} in {count:,} row{'' if count == 1 else 's'}"
            f"{self._of(what, then)}; {then}"
            for (what, then), count in self._rows.items()
        )

    def _of(self, what: str, then: str) -> str:
        parts = self._units.get((what, then))
        if self.unit is None or parts is None:
            return ""
        count = len(np.unique(np.concatenate(parts)))
        plural = self.unit == "trajectory" and count != 1
        return f" of {count:,} {'trajectories' if plural else self.unit}"
