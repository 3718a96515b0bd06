"""What came of faults: kept in a record, so that none is repeated, and told in a table."""

import json
import math
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

BEFORE = "before the kill"
UNDISTURBED = "none"
"""The fault of a run that nothing happened to; it is no kill."""
Row = dict[str, Any]


class BrokenError(AssertionError):
    """A command that was killed could not go on, or left what must not be."""


class Record:
    """Rows of what came of faults, a line of a file each.

    Args:
        path: of the file; its folder is made.
        keys: names of what tells rows apart.
    """

    def __init__(self, path: Path, *keys: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._keys = path, keys
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows = {self._key(row): row for row in map(json.loads, lines)}

    def once(self, row: Row, happens: Callable[[], Row], *, until: float = math.inf) -> Row | None:
        """Return what came of a fault, now or when it is in the record; None: it is too late.

        Args:
            row: what is known of it before, keys among it.
            happens: lets it happen and returns the rest.
            until: of the monotonic clock; later nothing happens any more.
        """
        found = self._rows.get(self._key(row))
        if found is None and time.monotonic() <= until:
            found = row | _outcome(happens)
            with self._path.open("a") as file:
                file.write(json.dumps(found) + "\n")
            self._rows[self._key(row)] = found
        return found

    def rows(self) -> list[Row]:
        """Return all rows, the oldest first."""
        return list(self._rows.values())

    def _key(self, row: Mapping[str, Any]) -> str:
        return json.dumps([row[name] for name in self._keys])


def _outcome(happens: Callable[[], Row]) -> Row:
    """Return what came of something, or that it broke."""
    try:
        return {"calls": 0, "error": None} | happens()
    except (BrokenError, OSError, subprocess.SubprocessError) as error:
        return {"ended": "no", "calls": 0, "error": str(error)}


def cell(killed: str, rows: Sequence[Mapping[str, Any]], *, planned: int) -> Row:
    """Return a row of the table.

    Args:
        killed: what happened, and to what.
        rows: what came of it.
        planned: how many rows there are in all.
    """
    ended = Counter(row["ended"] for row in rows)
    counted = all("lost" in row for row in rows)  # not by older records, nor in runs that broke
    return {
        "killed": killed,
        "points": planned,
        "kills": len(rows),
        "ended by itself": ended["by itself"],
        "with --resume": ended["--resume"],
        "called again": ended["called again"],
        "spent": ended["spent"],
        "lost rounds": sum(row["lost"] > 0 for row in rows) if counted else None,
        "had ended": ended[BEFORE],
        "further calls at most": max((row["calls"] for row in rows), default=0),
        "broken": ended["no"],
    }


def told(rows: Iterable[Row], *, planned: Callable[[str], int], where: str = "") -> list[Row]:
    """Print rows as they come, and return a row of the table for each fault.

    Args:
        rows: what came of each fault of each method.
        planned: returns how many there are in all of a fault.
        where: the runs were.
    """
    by_fault: dict[str, list[Row]] = {}
    for row in _printed(rows):
        by_fault.setdefault(row["fault"], []).append(row)
    return [
        cell(f"{name}: a run of each method {where}".strip(), own, planned=planned(name))
        | ({"kills": 0} if name == UNDISTURBED else {})
        for name, own in by_fault.items()
    ]


def _printed(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        print(json.dumps(row), flush=True)
        yield row
