"""All small neighbouring datasets of a few units, and what workers count of them."""

import itertools
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.unit_sizes import UnitSizes
from distributed_privrl.privacy.units import Relation
from tests.marginals.rows import few_columns, group, steps_of

COLUMNS = few_columns().with_unit_sizes(UnitSizes(1, 4))
CLIQUES = [(0,), (0, 1), (0, 2), (0, 1, 3), (1, 2, 4), (5,), (0, 5)]
Row = tuple[float, int, float, float, bool]
Unit = tuple[Row, ...]
Data = tuple[Unit, ...]
A: Row = (0.0, 0, 0.0, 0.0, False)
B: Row = (3.0, 1, 1.0, 3.0, True)
C: Row = (1.0, 1, 0.0, 2.0, False)
BAD: Row = (np.nan, 0, 0.0, 0.0, False)
ABSENT: Unit = ()
UNITS: tuple[Unit, ...] = (
    (A,),
    (B,),
    (A, A),
    (A, B, C),
    (B,) * 5,
    (A, BAD),
    (BAD,),
    (C,) * 3 + (A,),
)
ALL = (ABSENT, *UNITS)
CAP, MOST = 2, 4


def table(units: Data, copies: int = 1) -> Transitions | None:
    """Return the rows of units, whose numbers are 0, 1, ..: an absent one leaves its own free."""
    rows = [row for unit in units for row in unit]
    owners = [owner for owner, unit in enumerate(units) for _ in unit]
    return steps_of(rows, owners) if rows else None


@cache
def counts(units: Data, cap: int, most: int | None) -> tuple[NDArray[np.int64], ...]:
    """Return the counts of columns, then of each clique."""
    workers = group(table(units), COLUMNS, cap=cap, most=most)
    (columns,) = workers.call("columns")
    bins = [np.arange(size) for size in COLUMNS.sizes]
    (tables,) = workers.call("tables", {"bins": bins, "cliques": CLIQUES})
    return (columns, *tables)


def neighbours(relation: Relation) -> Iterator[tuple[Unit, Unit]]:
    """Yield what a unit may hold in the one dataset and in the other."""
    if relation is Relation.REPLACE_ONE:
        yield from itertools.combinations(ALL, 2)
        return
    yield from ((unit, ABSENT) for unit in UNITS)
