"""All measures of one pair of tables as flat figures, and what a command prints of many cells."""

import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.tables.relations import places
from benchmarks.tables.source import BenchmarkTable
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.evaluation.table_measures import (
    cells_of,
    gaps,
    marginals,
    pearson,
    rare_cells,
)
from distributed_privrl.evaluation.two_sample import AREA_ROWS, two_sample_areas

PAIR_ROWS = 50_000
"""Of each table, at most, for associations of pairs."""
STRETCHES = {"row 1": (0, 1), "rows 2 to 4": (1, 4), "5 to 16": (4, 16), "17 on": (16, None)}
"""Of a trajectory: the first row of each, and the first one after it; None: to the end."""
_FEWEST_ROWS = 100
"""Of a stretch, that are compared."""
REAL, FRESH = "real", "fresh real"


def figures_of(
    real: Rows,
    synthetic: Rows,
    table: BenchmarkTable,
    rng: np.random.Generator,
    *,
    area_rows: int = AREA_ROWS,
) -> dict[str, Any]:
    """Return every measure of synthetic rows against real ones, by name.

    Args:
        real: the table's rows.
        synthetic: those that are judged.
        table: names its relations and cells.
        rng: of subsamples and splits.
        area_rows: of each side that a classifier sees, training and test together.
    """
    by_column = marginals(real.frame, synthetic.frame)
    pairs = real.sample(PAIR_ROWS, rng).frame, synthetic.sample(PAIR_ROWS, rng).frame
    by_pair, by_line = gaps(*pairs), gaps(*pairs, pearson)
    rare = rare_cells(cells_of(real.frame, table.cells), cells_of(synthetic.frame, table.cells))
    worst_pair = max(by_pair, key=lambda pair: by_pair[pair])
    worst_line = max(by_line, key=lambda pair: by_line[pair])
    worst_column = min(by_column, key=lambda name: by_column[name])
    areas = two_sample_areas(real, synthetic, rng, rows=area_rows)
    return {
        "marginal": statistics.fmean(by_column.values()),
        "worst marginal": by_column[worst_column],
        "worst column": worst_column,
        "association gap": statistics.fmean(by_pair.values()),
        "worst gap": by_pair[worst_pair],
        "worst pair": " x ".join(worst_pair),
        "worst Pearson gap": by_line[worst_line],
        "worst Pearson pair": " x ".join(worst_line),
        "rare cells, synthetic / real": rare.ratio,
        "rare cells missed": rare.missed,
        "cells invented": rare.invented,
        **{f"area {name}": value for name, value in areas.items()},
        **relation_values(synthetic, table.relations),
    }


def along_figures(real: Rows, synthetic: Rows) -> dict[str, float]:
    """Return how alike columns are at each stretch of whole trajectories: whether they drift.

    Args:
        real: the table's rows, whole trajectories.
        synthetic: likewise.

    Returns:
        by name the mean `marginal` of the actions' columns, and that of the state's; no figure of
        a stretch that either table has hardly a row of.
    """
    times = places(real), places(synthetic)
    found = {}
    for name, (first, end) in STRETCHES.items():
        parts = [
            rows.select((at >= first) & (at < (np.inf if end is None else end)))
            for rows, at in zip((real, synthetic), times, strict=True)
        ]
        if min(map(len, parts)) < _FEWEST_ROWS:
            continue
        by_column = marginals(*(part.frame[[*real.action, *real.state]] for part in parts))
        for kind, names in (("action", real.action), ("state", real.state)):
            found[f"{kind}, {name}"] = statistics.fmean(by_column[one] for one in names)
    return found


def relation_values(
    rows: Rows, relations: Mapping[str, Callable[[Rows], float]]
) -> dict[str, float]:
    """Return each declared relation of a table, by name."""
    return {name: float(relation(rows)) for name, relation in relations.items()}


def real_figures(real: Rows, table: BenchmarkTable) -> dict[str, Any]:
    """Return what the real rows themselves say: their relations."""
    return relation_values(real, table.relations)


def sheet(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a line a measure and a column a kind of cell: median (lowest .. highest).

    Args:
        rows: finished cells of one table.
    """
    columns: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        columns.setdefault(column_of(row), []).append(row)
    names = list(dict.fromkeys(name for row in rows for name in row["figures"]))
    cost = ("certified epsilon", "cpu s", "memory MB")
    return [
        {
            "measure": name,
            **{
                column: shown([_figure(row, name) for row in found])
                for column, found in columns.items()
            },
        }
        for name in (*names, *cost)
    ]


def _figure(row: Mapping[str, Any], name: str) -> Any:
    return row["figures"].get(name) if name in row["figures"] else row.get(name)


def column_of(row: Mapping[str, Any]) -> str:
    """Return the heading of a cell's column."""
    if row["method"] in (REAL, FRESH):
        return str(row["method"])
    budget = "no privacy" if row["epsilon"] is None else f"eps {row['epsilon']:g}"
    return f"{row['method']}, {budget}"


def shown(values: Sequence[Any]) -> str:
    """Return values of several generators: the median and the range, or the names that occur.

    Example:
        >>> shown([1.0, 2.0, 4.0])
        '2 (1 .. 4)'
    """
    known = [value for value in values if value is not None and value == value]
    if not known:
        return "-"
    if isinstance(known[0], str):
        return ", ".join(dict.fromkeys(known))
    middle, low, high = statistics.median(known), min(known), max(known)
    return _short(middle) if low == high else f"{_short(middle)} ({_short(low)} .. {_short(high)})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def result_of(rows: Sequence[Mapping[str, Any]], notes: Sequence[str]) -> harness.Result:
    """Return a line a table and kind of cell, and below a sheet a table.

    Args:
        rows: finished cells.
        notes: further lines.
    """
    lines: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        lines.setdefault((row["table"], column_of(row)), []).append(row)
    overview = ("marginal", "worst marginal", "association gap", "worst gap", "area s, a, r")
    cells = [
        {
            "table": table,
            "cell": column,
            "generators": len(found),
            **{name: shown([_figure(row, name) for row in found]) for name in overview},
            "cpu s": shown([row.get("cpu s") for row in found]),
            "memory MB": shown([row.get("memory MB") for row in found]),
            "runs": {str(row["seed"]): row["figures"] for row in found},
        }
        for (table, column), found in lines.items()
    ]
    tables = list(dict.fromkeys(row["table"] for row in rows))
    sheets = [
        text
        for name in tables
        for text in (
            f"## {name}",
            "",
            harness.table(sheet([row for row in rows if row["table"] == name])),
            "",
        )
    ]
    return harness.Result(
        cells=cells, ratios=_ratios(rows), notes=[*notes, "", *sheets], facts={"cells": len(rows)}
    )


def _ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the median marginal and area of each column of each table."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for name in ("marginal", "association gap", "area s, a, r"):
            value = row["figures"].get(name)
            if value is not None and math.isfinite(value):
                found.setdefault(f"{row['table']}: {column_of(row)}: {name}", []).append(value)
    return {name: statistics.median(values) for name, values in found.items()}


def plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures as JSON has them: what is not a number is None."""
    kept: dict[str, Any] = json.loads(
        json.dumps({name: None if value != value else value for name, value in figures.items()})
    )
    return kept
