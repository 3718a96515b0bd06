"""What holds in a table, as functions of its rows."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables.source import Relation
from distributed_privrl.data.named_rows import Rows


def correlation(one: str, other: str, *, edges: Sequence[float] | None = None) -> Relation:
    """Return the Pearson correlation of two numbers, or of the intervals that they fall into.

    Args:
        one: a column.
        other: another.
        edges: cuts of both by size, so that a few rows far out do not decide; None: as they are.
    """

    def value(rows: Rows) -> float:
        both = rows.frame[[one, other]].dropna().to_numpy(np.float64)
        if edges is not None:
            both = np.sign(both) * np.searchsorted(edges, np.abs(both), side="right")
        if not len(both) or (np.ptp(both, axis=0) == 0).any():
            return 0.0
        return float(np.corrcoef(both.T)[0, 1])

    return value


def share(holds: Callable[[Rows], "np.ndarray[tuple[int], np.dtype[np.bool_]]"]) -> Relation:
    """Return the share of rows for which something holds; NaN of no rows."""

    def value(rows: Rows) -> float:
        found = np.asarray(holds(rows))
        return float(found.mean()) if len(found) else float("nan")

    return value


def unchanged(column: str, step: float = 0.0) -> Relation:
    """Return the share of rows that go on in which a column's successor is ``step`` more."""

    def value(rows: Rows) -> float:
        both = rows.frame[[column, f"next_{column}"]].dropna().to_numpy(np.float64)
        return float((both[:, 1] - both[:, 0] == step).mean()) if len(both) else float("nan")

    return value


def mean_length(rows: Rows) -> float:
    """Return rows a trajectory: all rows over those that end one (at least one)."""
    return len(rows) / max(1, int(rows.ends.sum()))


def terminated_share(rows: Rows) -> float:
    """Return the share of rows that terminate."""
    return float(rows.frame["terminated"].to_numpy(np.float64).mean())


def places(rows: Rows) -> NDArray[np.int64]:
    """Return the place of each row in its trajectory, (N,), the first one 0.

    Example of a trajectory of two rows and one of one: ``[0, 1, 0]``.
    """
    starts = np.flatnonzero(np.append(True, rows.ends[:-1]))
    lengths = np.diff(np.append(starts, len(rows)))
    return np.arange(len(rows)) - np.repeat(starts, lengths)


def share_as_long(length: int) -> Relation:
    """Return the share of trajectories that have ``length`` rows."""

    def value(rows: Rows) -> float:
        return float((places(rows)[rows.ends] == length - 1).mean()) if rows.ends.any() else 0.0

    return value


def mean(column: str, *, first: bool = False) -> Relation:
    """Return the mean of a number in all rows, or in those that trajectories begin with."""

    def value(rows: Rows) -> float:
        numbers = rows.frame[column].to_numpy(np.float64)
        return float(np.mean(numbers[places(rows) == 0] if first else numbers))

    return value
