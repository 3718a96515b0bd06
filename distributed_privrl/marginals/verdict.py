"""What the noise of a plan of marginals leaves of a table, from public facts alone."""

import math
import statistics
from collections.abc import Sequence

from distributed_privrl.stages.verdict import OF_STRONG_PAIRS, Grade, Verdict

_STANDS_OUT = 3.0
FEWEST_BINS = 10.0
"""Bins of a column that can be told from noise, below which no column of many values survives."""
BINS_A_VALUE = 2.0
"""Bins that can be told from noise for each value of a column of few, below which it is lost."""
FEWEST_CELLS = 80.0
"""Cells of a joint count that can be told from noise, below which most pairs are lost."""


def bins_needed(sizes: Sequence[int]) -> float:
    """Return how many bins of a column must be told from noise, so that half of them survive.

    Args:
        sizes: cells or categories of each column; () where nobody knows: they have many.

    Example:
        >>> bins_needed([2, 2, 101]), bins_needed([2, 101, 101])
        (4.0, 10.0)
    """
    return min(BINS_A_VALUE * statistics.median_low(sizes), FEWEST_BINS) if sizes else FEWEST_BINS


def pairs_of(columns: int) -> int:
    """Return how many pairs columns have."""
    return math.comb(columns, 2)


def pairs_in_words(
    columns: int,
    joint_counts: int,
    *,
    ways: Sequence[str] = (),
    correlated: int = 0,
    deviation: float = 0.0,
) -> str:
    """Return how many of the pairs of columns are counted; empty where all of them may be.

    Args:
        columns: of the table.
        joint_counts: that are chosen, each of two or three columns.
        ways: to keep more of them.
        correlated: pairs of questions to columns of a row whose correlations are measured.
        deviation: of such a correlation's noise, where answers are even.

    Example:
        >>> pairs_in_words(22, 18)[:59]
        'of 231 pairs of columns 18 are counted (some with a third c'
    """
    pairs = pairs_of(columns)
    if joint_counts >= pairs:
        return ""
    found = f"of {pairs} pairs of columns {joint_counts} are counted (some with a third column)"
    if not correlated:
        better = ", ".join([*ways, "leave out columns that nobody needs"])
        return f"{found}, and other relations are indirect or lost: {better}"
    return (
        f"{found}; of every two columns of a row, and of actions and what follows them, it is"
        " measured how their halves or frequent values go together, by"
        f" {correlated} numbers, each to within {2 * deviation:.2g} (more where one"
        " of them is rare), and rows are chosen by it; what such a number does not tell, such as"
        " curves and tails, is guessed where nothing was counted"
    )


def verdict_of(
    units: int,
    sizes: Sequence[int],
    *,
    column_noise_units: float,
    joint_noise_units: float,
    rows_per_unit: int = 1,
    fewer: str = "",
    counted: str = "",
) -> Verdict:
    """Return what is left of a table under its noise.

    A cell can be told from noise where it weighs three deviations of it, so that
    units / (3 deviations) cells can. The limits are measured: docs/design/0004-verdicts.md.

    Args:
        units: number of them.
        sizes: see `bins_needed`.
        column_noise_units: deviation of a column's cell, in units.
        joint_noise_units: deviation of a joint count's cell, in units.
        rows_per_unit: rows that a unit must have to weigh one; the verdict takes it that they do.
        fewer: key and value that ask for fewer joint counts; empty: there is only one.
        counted: how many of the pairs of columns are; see `pairs_in_words`.
    """
    bins = units / (_STANDS_OUT * column_noise_units)
    cells = units / (_STANDS_OUT * joint_noise_units)
    figures = (
        f"of {units} units, {bins:.3g} bins of a column (its values, or ranges of them) and"
        f" {cells:.3g} cells of a joint count (combinations of values) can be told from noise"
    )
    if rows_per_unit > 1:
        figures += (
            f", if most units have {rows_per_unit} rows or more: one with n rows weighs"
            f" n/{rows_per_unit} (model.rows_per_unit)"
        )
    changes = ["raise privacy.epsilon", "leave out columns"]
    other = "or take a method that makes less of the data"
    needed = bins_needed(sizes)
    named = {"bins": bins, "bins_needed": needed, "cells": cells}
    if bins < needed:
        return Verdict(
            grade=Grade.HOPELESS,
            reason=f"nothing survives: {figures}, where half of the columns need {needed:g} bins",
            advice=", ".join([*changes, other]),
            figures=named,
        )
    few = math.ceil(_STANDS_OUT * column_noise_units), math.ceil(_STANDS_OUT * joint_noise_units)
    figures += (
        f"; a category, or a single value of a number, that fewer than about {few[0]} units have,"
        f" and two of them that fewer than about {few[1]} have together, may be lost or invented;"
        " what rare values and tails of numbers go together with needs more"
    )
    counts = f"{counted}; " if counted else ""
    if cells < FEWEST_CELLS:
        asked = [f"ask for fewer joint counts ({fewer})"] if fewer else []
        return Verdict(
            grade=Grade.LIMITED,
            reason=f"single columns only, and the strongest pairs of them: {counts}{figures}",
            advice=", ".join([*changes, *asked, other]),
            figures=named,
        )
    return Verdict(grade=Grade.FINE, reason=f"{counts}{OF_STRONG_PAIRS}: {figures}", figures=named)
