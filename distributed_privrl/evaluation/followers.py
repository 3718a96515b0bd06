"""Columns that follow from another one: an indicator of a category, what a person keeps."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

_ROWS_A_LEVEL = 20
"""Rows that values of a column have on average, at least, so that nothing follows by chance."""
_KEPT_ROWS = 20
"""Rows with both steps, at least, in which a column that is kept stays what it is."""


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


def kept_ones(frame: pd.DataFrame, steps: Mapping[str, str]) -> dict[str, str]:
    """Return the columns of the next step that are what the row has, wherever both are known.

    Args:
        frame: ``(N, columns)``, real rows.
        steps: columns of the next step, and those of the row that they continue.

    Example:
        >>> frame = pd.DataFrame({"sex": [0, 1] * 20, "next sex": [0, 1] * 20})
        >>> kept_ones(frame, {"next sex": "sex"})
        {'next sex': 'sex'}
    """
    found = {}
    for after, now in steps.items():
        known = (frame[now].notna() & frame[after].notna()).to_numpy()
        if known.sum() >= _KEPT_ROWS:
            one, other = (frame[name].to_numpy()[known] for name in (now, after))
            if np.array_equal(one, other):
                found[after] = now
    return found


def roots(columns: Iterable[str], follows: Mapping[str, str]) -> frozenset[str]:
    """Return the columns that others of ``columns`` follow from, and those that follow from none.

    Args:
        columns: names.
        follows: columns that another one tells, and that other one.
    """
    return frozenset(follows.get(name, name) for name in columns)


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
        follows: columns that another one tells, and that other one.
    """
    groups: dict[tuple[object, ...], dict[int, Problem]] = {}
    for place, one in enumerate(problems):
        about = roots(one.columns, follows)
        is_told = bool(about & set(follows.values()))
        groups.setdefault((one.kind, about) if is_told else (place,), {})[place] = one
    lines: dict[int, str] = {}
    for group in groups.values():
        lines |= _lines(group, follows)
    return [lines[place] for place in sorted(lines)]


def _lines(group: Mapping[int, Problem], follows: Mapping[str, str]) -> dict[int, str]:
    """Return the texts of problems that say one thing, by place: those of followers once."""
    again = [place for place, one in group.items() if set(one.columns) & set(follows)]
    first, *others = [place for place in group if place not in again] or [again.pop(0)]
    text = group[first].text
    if again:
        columns = {name for place in again for name in group[place].columns}
        tellers = {follows[name] for name in columns if name in follows}
        text += (
            f" ({len(again)} more such {'line' if len(again) == 1 else 'lines'} on columns that"
            f" follow from {' or '.join(sorted(tellers))})"
        )
    return {min(group): text, **{place: group[place].text for place in others}}
