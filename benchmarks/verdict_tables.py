"""The tables of the verdicts' benchmark: generated ones, and part of the people of real ones."""

from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.tables.fleet import FLEET
from benchmarks.tables.generated import GENERATED, GeneratedTable
from benchmarks.tables.panels import RESPIRATORY, VISITS_TABLE, WAGES
from benchmarks.tables.source import BenchmarkTable, SourceTable

FRESH = 20_000
"""Rows that a release is measured against."""
REAL = {table.name: table for table in (RESPIRATORY, WAGES, VISITS_TABLE, FLEET)}
TABLES: dict[str, GeneratedTable | SourceTable] = {**GENERATED, **REAL}
_FRESH_SEED = 10**9


def table_of(name: str, people: int, seed: int, *, whole: bool) -> BenchmarkTable:
    """Return a table of so many people.

    Args:
        name: of `TABLES`.
        people: of a real table some are drawn, or there are all.
        seed: makes a generated table, or draws the people.
        whole: of a generated table, people have trajectories.
    """
    table = TABLES[name]
    if isinstance(table, GeneratedTable):
        return table.sized(people, seed, whole=whole)

    def drawn(quick: bool) -> pd.DataFrame:
        return _some(table.frame(quick), table.unit, people, seed)

    return replace(table, frame=drawn)


def truth_of(name: str, seed: int, *, whole: bool) -> BenchmarkTable:
    """Return what a release is measured against: fresh rows, or everybody of a real table."""
    table = TABLES[name]
    if isinstance(table, GeneratedTable):
        count = FRESH // 8 if whole else FRESH
        return table.sized(count, seed + _FRESH_SEED, whole=whole)
    return table


def _some(frame: pd.DataFrame, unit: str, people: int, seed: int) -> pd.DataFrame:
    """Return the rows of people who were drawn, in their order."""
    names = np.sort(frame[unit].unique())
    if people >= len(names):
        return frame
    chosen = np.random.default_rng([seed, people]).choice(names, size=people, replace=False)
    return frame[frame[unit].isin(chosen)].reset_index(drop=True)
