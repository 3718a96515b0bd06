"""Rare values of real rows, and what synthetic rows have of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import Rows, is_category
from distributed_privrl.evaluation.judged import Judged

RARE_EVENT = 0.05
"""Share of the real rows below which a value is a rare event."""
_TAIL = 0.01
EVENT_ROWS, EVENT_UNITS = 30, 10
"""Rows, and units, that a rare event must have to decide of anything."""
EVENT_FACTOR = 3.0
"""It is lost if it is more often, or more seldom, than in any real sample by this factor."""


def event_problems(events: Sequence[Judged]) -> list[str]:
    """Return which rare events the rows are not useful for, with the reason."""
    return [
        f"how often {one.name}: {one.synthetic:.2%} of synthetic rows, {one.real:.2%} of real ones"
        for one in events
        if not one.lowest / EVENT_FACTOR <= one.value <= one.highest * EVENT_FACTOR
    ]


def rare_events(
    whole: Rows, splits: Sequence[tuple[Rows, Rows]], made: Rows, names: Sequence[str]
) -> tuple[Judged, ...]:
    """Return the shares of rows of rare values that enough rows and units have.

    Args:
        whole: all real rows.
        splits: of them, each into halves.
        made: synthetic rows.
        names: of the columns.
    """
    found = []
    for name, happens in _rare(whole.frame, names).items():
        rows = happens(whole.frame)
        share = float(rows.mean())
        enough = rows.sum() >= EVENT_ROWS
        if not (enough and len(np.unique(whole.units[rows])) >= EVENT_UNITS and share < RARE_EVENT):
            continue
        own = [float(happens(half.frame).mean()) for pair in splits for half in pair]
        theirs = float(happens(made.frame).mean())
        found.append(
            Judged(
                name=name,
                value=theirs,
                reference=share,
                lowest=min(own),
                highest=max(own),
                real=share,
                synthetic=theirs,
            )
        )
    least = 1 / max(len(made), 1)
    return tuple(
        sorted(found, key=lambda one: -abs(np.log((one.value + least) / (one.real + least))))
    )


_Event = Callable[[pd.DataFrame], NDArray[np.bool_]]


def _rare(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, _Event]:
    """Return the values of categories, and the tails of numbers, that may be rare."""
    found: dict[str, _Event] = {}
    for name in names:
        column = frame[name].dropna()
        if is_category(column):
            for value in column.cat.categories:
                found[f"{name} is {value}"] = partial(_is, name=name, value=value)
            continue
        low, high = np.quantile(column, [_TAIL, 1 - _TAIL], method="nearest")
        found[f"{name} is {low:.4g} or less"] = partial(_at_most, name=name, limit=float(low))
        found[f"{name} is {high:.4g} or more"] = partial(_at_least, name=name, limit=float(high))
    return found


def _is(frame: pd.DataFrame, *, name: str, value: object) -> NDArray[np.bool_]:
    return (frame[name] == value).to_numpy(bool)


def _at_most(frame: pd.DataFrame, *, name: str, limit: float) -> NDArray[np.bool_]:
    return (frame[name] <= limit).to_numpy(bool)


def _at_least(frame: pd.DataFrame, *, name: str, limit: float) -> NDArray[np.bool_]:
    return (frame[name] >= limit).to_numpy(bool)


def vanished(real: pd.DataFrame, made: pd.DataFrame, names: Sequence[str]) -> Mapping[str, int]:
    """Return the categories that real rows have and no synthetic row has.

    Args:
        real: rows.
        made: synthetic rows.
        names: of the columns.

    Returns:
        the number of real rows of each, the most frequent first.
    """
    found: dict[str, int] = {}
    for name in names:
        if not is_category(real[name]):
            continue
        counts, theirs = real[name].value_counts(), set(made[name].dropna().unique())
        found |= {
            f"{name} is {value}": int(count)
            for value, count in counts.items()
            if count and value not in theirs
        }
    return dict(sorted(found.items(), key=lambda one: -one[1]))
