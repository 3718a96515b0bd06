"""Rare values of real rows, and what synthetic rows have of them."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.data.named_rows import Rows, is_category
from distributed_privrl.evaluation.followers import Problem
from distributed_privrl.evaluation.judged import Judged

RARE_EVENT = 0.05
"""Share of the real rows below which what else is there beside a value is looked at."""
SELDOM = 0.15
"""Share of the real rows below which a value may vanish, and its column's distance is not red."""
_TAIL = 0.01
EVENT_ROWS, EVENT_UNITS = 30, 10
"""Rows, and units, that a rare event must have to decide of anything."""
EVENT_FACTOR = 3.0
"""It is lost if it is more often, or more seldom, than in any real sample by this factor."""
RATE_UNITS = 30
"""Units of either side that a rare event must have to say how often something else is there."""
FAR_RATE = 0.2
"""A rate among rare rows is lost if it is off by more from that of any real sample."""


def event_problems(events: Sequence[Judged]) -> list[Problem]:
    """Return which rare events the rows are not useful for, with the reason."""
    return [
        Problem(
            text=f"how often {one.name}: {one.synthetic:.2%} of synthetic rows, {one.real:.2%} of"
            " real ones",
            kind="event",
            columns=one.columns,
        )
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
    for name, (happens, column) in _counted(whole, names, below=SELDOM).items():
        share = float(happens(whole.frame).mean())
        own = [float(happens(half.frame).mean()) for pair in splits for half in pair]
        theirs = float(happens(made.frame).mean())
        found.append(
            Judged(
                name=name,
                columns=(column,),
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


def rates_among_rare(
    whole: Rows, splits: Sequence[tuple[Rows, Rows]], made: Rows, names: Sequence[str]
) -> tuple[Judged, ...]:
    """Return how often columns of two values have the second one where something rare happens.

    Where few people are, one range may hold so few of them that noise decides what they have.

    Args:
        whole: all real rows.
        splits: of them, each into halves.
        made: synthetic rows; events that fewer than `RATE_UNITS` units of either side have are
            left out.
        names: of the columns.
    """
    levels = {name: whole.frame[name].dropna().unique() for name in names}
    second = {name: max(values, key=str) for name, values in levels.items() if len(values) == 2}
    if not second:
        return ()
    halves = [half for pair in splits for half in pair]
    has = [
        np.stack([(part.frame[name] == value).to_numpy(bool) for name, value in second.items()], 1)
        for part in (whole, made, *halves)
    ]
    found = []
    for event, (happens, column) in _counted(whole, names, below=RARE_EVENT).items():
        there = [happens(part.frame) for part in (whole, made, *halves)]
        both = zip((whole, made), there, strict=False)
        if min(len(np.unique(part.units[rows])) for part, rows in both) < RATE_UNITS:
            continue
        mine, theirs, *own = (
            values[rows].mean(axis=0) for values, rows in zip(has, there, strict=True) if rows.any()
        )
        for place, name in enumerate(second):
            if name == column:
                continue
            shares = [float(half[place]) for half in own]
            value, share = float(theirs[place]), float(mine[place])
            found.append(
                Judged(
                    name=f"{name} is {_text(second[name])} where {event}",
                    columns=(name, column),
                    value=value,
                    reference=share,
                    lowest=min(shares),
                    highest=max(shares),
                    real=share,
                    synthetic=value,
                )
            )
    return tuple(sorted(found, key=lambda one: -_off(one)))


def rate_problems(rates: Sequence[Judged]) -> list[Problem]:
    """Return which rates among rare rows they are not useful for, with the reason."""
    return [
        Problem(
            text=f"how often {one.name}: {one.synthetic:.0%} of such synthetic rows,"
            f" {one.real:.0%} of real ones",
            kind="rate",
            columns=one.columns,
        )
        for one in rates
        if _off(one) > FAR_RATE
    ]


def _off(rate: Judged) -> float:
    """Return how far a rate is from what any other real sample has."""
    return max(rate.lowest - rate.value, rate.value - rate.highest)


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_Event = Callable[[pd.DataFrame], NDArray[np.bool_]]


def _counted(whole: Rows, names: Sequence[str], *, below: float) -> dict[str, tuple[_Event, str]]:
    """Return the rare events that enough rows and units have, and the column of each."""
    found = {}
    for name, (happens, column) in _rare(whole.frame, names).items():
        rows = happens(whole.frame)
        enough = rows.sum() >= EVENT_ROWS and len(np.unique(whole.units[rows])) >= EVENT_UNITS
        if enough and rows.mean() < below:
            found[name] = happens, column
    return found


def _rare(frame: pd.DataFrame, names: Sequence[str]) -> dict[str, tuple[_Event, str]]:
    """Return the values of categories, and the tails of numbers, that may be rare."""
    found: dict[str, tuple[_Event, str]] = {}
    for name in names:
        column = frame[name].dropna()
        if is_category(column):
            for value in column.cat.categories:
                found[f"{name} is {value}"] = partial(_is, name=name, value=value), name
            continue
        low, high = np.quantile(column, [_TAIL, 1 - _TAIL], method="nearest")
        below = partial(_at_most, name=name, limit=float(low))
        above = partial(_at_least, name=name, limit=float(high))
        found[f"{name} is {low:.4g} or less"] = below, name
        found[f"{name} is {high:.4g} or more"] = above, name
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
