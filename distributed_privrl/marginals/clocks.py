"""Numbers that grow: how late it is tells of them, and of what they become.

What a score becomes in a year follows from the score, and from the year. Of a number that grows
with the year, the year tells little more about the next one than the number itself does, so that a
model that knows the number alone is hardly wrong about any two columns. It is wrong about three:
among people of the same year it has numbers forget what they were, as it cannot tell a low number
of a late year from a high one of an early year. So what such a number becomes is counted with both.

All of it is post-processing of released counts.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.tables import Clique, ReleasedTable

_GROWS = 0.2
"""Part of a number's variance, in ranks, between times from which on it grows."""


def clocks(columns: TableColumns) -> tuple[int, ...]:
    """Return the columns that tell how late it is: of a step, and numbers that never fall."""
    rise = {columns[i].place for i in columns.of("next_observation") if columns[i].rises}
    rising = (i for i in columns.of("observation") if columns[i].place in rise)
    return (*columns.of("time"), *rising)


def asked_by_growth(bins: Bins, tables: Sequence[ReleasedTable]) -> tuple[Clique, ...]:
    """Return the pairs of columns that are counted in any case, as released counts have growth.

    They are of what a number becomes: one with the column that tells most of how late it is, one
    with the number itself. A number that is drawn as a change has none.

    Args:
        bins: of the columns.
        tables: joint counts that were released.

    Privacy: post-processing of released counts; no event. What is counted so takes the place of a
    choice, whose event is charged.
    """
    columns = bins.columns
    late = set(clocks(columns))
    before = {columns[i].place: i for i in columns.of("observation")}
    found: list[Clique] = []
    for after in columns.of("next_observation"):
        number = before[columns[after].place]
        if columns[after].difference or columns[number].cells is None or number in late:
            continue
        told = [
            (_told(bins, table, number, clock), -clock)
            for table in tables
            for clock in late & set(table.clique)
            if number in table.clique
        ]
        share, clock = max(told, default=(0.0, 0))
        if share >= _GROWS:
            pairs = (-clock, after), (number, after)
            found += [(min(pair), max(pair)) for pair in pairs]
    return tuple(found)


def _told(bins: Bins, table: ReleasedTable, number: int, clock: int) -> float:
    """Return which part of a number's variance, in ranks, lies between the bins of a clock."""
    first, second = table.clique.index(number), table.clique.index(clock)
    others = tuple(axis for axis in range(table.cleaned.ndim) if axis not in (first, second))
    counts = table.cleaned.sum(axis=others)
    counts = counts if first < second else counts.T
    return between(counts[: len(counts) - bins.columns[number].gaps])


def between(counts: NDArray[np.float64]) -> float:
    """Return the part of the variance of ranks that lies between columns of a table.

    Args:
        counts: ``(K, T)`` of values, rising, at each of some times; not negative.

    Example:
        >>> between(np.eye(3)), between(np.ones((3, 3)))
        (1.0, 0.0)
    """
    values, times = counts.sum(axis=1), counts.sum(axis=0)
    total = float(values.sum())
    if total <= 0:
        return 0.0
    ranks = (values.cumsum() - values / 2) / total - 0.5
    variance = float(values @ ranks**2) / total
    means = np.divide(ranks @ counts, times, out=np.zeros_like(times), where=times > 0)
    return float(times @ means**2) / total / variance if variance > 0 else 0.0
