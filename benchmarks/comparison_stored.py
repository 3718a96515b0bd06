"""Cells that earlier commands of `benchmarks.utility_tables` left in the stored results."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.table_figures import FRESH, REAL

SOURCES = (
    "utility_tables_fleet_before",
    "utility_tables_fleet_rounds",
    "utility_tables_fleet_pgm",
    "utility_tables_icu_sepsis",
    "utility_tables_simulated",
)
"""Results whose cells count; where two have the same cell, the earlier in this order has it."""

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
    method, _, budget = line["cell"].partition(", ")
    privacy = None if method in (REAL, FRESH) or budget == "no privacy" else budget.split()[1]
    cost = {name: _leading(line[name]) for name in ("cpu s", "memory MB") if line[name] != "-"}
    for seed, figures in line["runs"].items():
        yield {
            "table": line["table"],
            "method": method,
            "epsilon": None if privacy is None else float(privacy),
            "seed": int(seed),
            "commit": commit,
            **cost,
            "figures": figures,
        }


def _leading(shown: str) -> float:
    """Return the first number of a median and its range.

    Example:
        >>> _leading("2,016 (1,955 .. 2,078)")
        2016.0
    """
    return float(shown.split()[0].replace(",", ""))
