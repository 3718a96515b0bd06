"""Columns that follow from another one, such as an indicator of one value of a category."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

_ROWS_A_LEVEL = 20
"""Rows that values of a column have on average, at least, so that nothing follows by chance."""


def followers(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, str]:
    """Return the columns that another one tells in every row, and that other one.

    Args:
        frame: ``(N, columns)``, real rows.
        names: of the columns; of two that tell each other the first one is told of none.

    Example:
        >>> wards = pd.Series(["A", "B", "C"] * 20, dtype="category")
        >>> frame = pd.DataFrame({"ICU": wards == "C", "ward": wards})
        >>> followers(frame, ["ICU", "ward"])
        {'ICU': 'ward'}
    """
    codes = {name: pd.factorize(frame[name])[0] for name in names}
    levels = {name: len(np.unique(code)) for name, code in codes.items()}
    tellers = [
        name
        for name in sorted(names, key=levels.__getitem__, reverse=True)
        if levels[name] * _ROWS_A_LEVEL <= len(frame)
    ]
    found: dict[str, str] = {}
    for teller in tellers:
        if teller in found:
            continue
        for name in names:
            if name != teller and name not in found and levels[name] <= levels[teller]:
                both = codes[teller].astype(np.int64) * (len(frame) + 1) + codes[name]
                if len(np.unique(both)) == levels[teller]:
                    found[name] = teller
    return found


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What rows are not useful for.

    Args:
        text: with the reason.
        kind: of the check.
        columns: that it is about.
    """

    text: str
    kind: str
    columns: tuple[str, ...]


def in_lines(problems: Iterable[Problem], follows: Mapping[str, str]) -> list[str]:
    """Return the texts of problems, in their order; those that say one thing again are counted.

    A column that follows from another one fails where that fails. So of a check that fails for
    both, or for several that follow from one, a single line is told.

    Args:
        problems: the worst of each kind first.
        follows: as `followers` returns them.
    """
    groups: dict[tuple[object, ...], list[Problem]] = {}
    for place, one in enumerate(problems):
        roots = frozenset(follows.get(name, name) for name in one.columns)
        is_told = bool(roots & set(follows.values()))
        groups.setdefault((one.kind, roots) if is_told else (place,), []).append(one)
    return [line for group in groups.values() for line in _lines(group, follows)]


def _lines(group: Sequence[Problem], follows: Mapping[str, str]) -> list[str]:
    """Return the texts of problems that say one thing: of columns that follow from others once."""
    again = [one for one in group if set(one.columns) & set(follows)]
    alone = [one for one in group if one not in again] or [again.pop(0)]
    first, *others = [one.text for one in alone]
    if again:
        tellers = {follows[name] for one in again for name in one.columns if name in follows}
        first += (
            f" ({len(again)} more such {'line' if len(again) == 1 else 'lines'} on columns that"
            f" follow from {' or '.join(sorted(tellers))})"
        )
    return [first, *others]
