"""Cells that earlier commands of `benchmarks.utility_tables` left in the stored results."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.table_figures import FRESH, REAL

SOURCES = (
    "utility_tables_fleet_tails",
    "utility_tables_fleet",
    "utility_tables_sepsis",
    "utility_tables_mazes",
    "utility_tables_fleet_rounds",
    "comparison",
    "utility_tables_fleet_pgm",
    "utility_tables_simulated",
)
"""Results whose cells count, those of today's methods first; where two have the same cell, the
earlier in this order has it. The last comparison has cells whose work folders are gone.
"""

Key = tuple[str, str, float | None, int]
"""Table, method, epsilon and seed of a cell."""


def key_of(row: dict[str, Any]) -> Key:
    """Return what tells a cell from others."""
    return row["table"], row["method"], row["epsilon"], row["seed"]


def stored_cells(
    sources: Sequence[str] = SOURCES, *, folder: Path = harness.RESULTS
) -> Iterator[dict[str, Any]]:
    """Yield each stored cell once, as `utility_tables.run_cell` returns it.

    Args:
        sources: names of results; those that are missing are passed over.
        folder: of the results.
    """
    seen: set[Key] = set()
    for name in sources:
        path = folder / f"{name}.json"
        content = json.loads(path.read_text()) if path.exists() else {"cells": []}
        for line in content["cells"]:
            for row in _rows(line, content["commit"]):
                if key_of(row) not in seen:
                    seen.add(key_of(row))
                    yield row


def _rows(line: dict[str, Any], commit: str) -> Iterator[dict[str, Any]]:
    """Yield the cells of a line; its seconds and memory are medians of them."""
    if "cell" in line:
        method, _, budget = line["cell"].partition(", ")
        private = method not in (REAL, FRESH) and budget != "no privacy"
        privacy = budget.split()[1] if private else ""
        costs = (("cpu s", line["cpu s"], 1), ("memory MB", line["memory MB"], 1))
    else:  # of a comparison, whose blank lines have no runs
        method, privacy, commit = line["method"], line["epsilon"], line["commits"]
        costs = (("cpu s", line["CPU min"], 60), ("memory MB", line["MB"], 1))
    for seed, figures in line["runs"].items():
        yield {
            "table": line["table"],
            "method": method,
            "epsilon": float(privacy) if privacy else None,
            "seed": int(seed),
            "commit": commit,
            **{name: unit * _leading(text) for name, text, unit in costs if text not in ("-", "")},
            "figures": figures,
        }


def _leading(shown: str) -> float:
    """Return the first number of a median and its range.

    Example:
        >>> _leading("2,016 (1,955 .. 2,078)")
        2016.0
    """
    return float(shown.split()[0].replace(",", ""))
