"""Finds rules in a sample of real rows. None of this is a private release."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from distributed_privrl.evaluation.exact_rules.columns import CodedTable, Floats
from distributed_privrl.evaluation.exact_rules.kinds import (
    Function,
    Line,
    Mask,
    NeverTogether,
    NotAbove,
    Picked,
    Rule,
    Sum,
)

HOLDS = 0.995
"""Share of the rows that must keep to a rule."""
VARIED = 0.95
"""A rule says something if a constant, or chance, would be right in no more rows than that."""
FEWEST_ROWS, FEWEST_UNITS = 30, 10
"""Rows, and units, that must be other than most, so that the rule is no chance."""
_COVERED = 0.9
"""A rule is told of this share of the rows at least."""
_LEVEL_ROWS = 5
_MEETINGS = 10
"""Units in which two levels would meet by chance, if their never meeting is to tell anything."""
_PICKING_LEVELS, _MEETING_LEVELS = 32, 50
_GLANCE = 64
"""Rows that tell most pairs without a rule from others."""


def rules_of(rows: CodedTable, later: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules that rows keep to; of two columns one, and the plainest.

    Args:
        rows: real ones.
        later: columns of what comes after a row, which tell nothing of each other that columns of
            the row itself do not.
    """
    varied = {name for name in rows.codings if _varies(rows, name)}
    related: set[tuple[str, str]] = set()
    ordered: list[NotAbove] = []
    for one, other in itertools.combinations(rows.codings, 2):
        if one in later and other in later:
            continue
        ways = [(one, other), (other, one)]
        found = next(_between(rows, [way for way in ways if way[1] in varied]), None)
        if found is not None:
            related |= set(ways)
            yield found
        elif (smaller := _not_above(rows, one, other)) is not None:
            ordered.append(smaller)
        elif (never := _never(rows, one, other)) is not None:
            yield never
    yield from _sums([name for name in rows.codings if name not in later], rows, related)
    yield from _plainest(ordered)
    yield from _picked_ones(rows, varied, related)


def _varies(rows: CodedTable, name: str) -> bool:
    """Say whether enough rows, and units, differ from most, in a column."""
    numbers = rows.numbers[name][rows.known(name)]
    if not len(numbers):
        return False
    differs = np.abs(rows.numbers[name] - _middle(numbers)) > rows.codings[name].near
    others = rows.known(name) & differs
    enough = others.sum() >= max(FEWEST_ROWS, (1 - VARIED) * len(numbers))
    return bool(enough and rows.units_of(others) >= FEWEST_UNITS)


def _middle(numbers: Floats) -> float:
    """Return the median, as a value that is there: what most rows have, if any, is this."""
    return float(np.partition(numbers, len(numbers) // 2)[len(numbers) // 2])


def _same(numbers: Floats, near: float) -> bool:
    """Say whether a constant is right in nearly all rows."""
    return bool(np.mean(np.abs(numbers - _middle(numbers)) <= near) > VARIED)


def _between(rows: CodedTable, ways: Iterable[tuple[str, str]]) -> Iterator[Rule]:
    """Yield what relates two columns, in either way."""
    numbers = [way for way in ways if all(rows.codings[name].categories is None for name in way)]
    searches = [*((_line, way) for way in numbers[:1]), *((_function, way) for way in ways)]
    for search, (given, target) in searches:
        found = search(rows, given, target)
        if found is not None:
            yield found


def _holds(kept: Mask, told: Mask, rows: int) -> bool:
    """Say whether a rule is told of enough rows, and they keep to it."""
    number = int(told.sum())
    return number >= max(_COVERED * rows, FEWEST_ROWS) and kept[told].mean() >= HOLDS


def _line(rows: CodedTable, given: str, target: str) -> Line | None:
    """Return a line through the rows; the same distance or sum first."""
    known = rows.known(given, target)
    x, y = rows.numbers[given][known], rows.numbers[target][known]
    exact = rows.codings[target].exact
    if len(x) < FEWEST_ROWS or np.ptp(x) == 0 or _same(y, rows.codings[target].near):
        return None
    low, high = np.quantile(x, [0.25, 0.75]), np.quantile(y, [0.25, 0.75])
    ratio = np.ptp(high) / np.ptp(low) if np.ptp(low) and np.ptp(high) else 1.0
    for slope in (1.0, -1.0, ratio, -ratio):
        some = y[:_GLANCE] - slope * x[:_GLANCE]
        if np.mean(np.abs(some - np.median(some)) <= exact) < _COVERED:
            continue
        rest = y - slope * x
        offset = float(np.median(rest))
        if np.mean(np.abs(rest - offset) <= exact) >= HOLDS:
            zero = abs(offset) <= exact
            return Line(
                target=target, given=given, slope=float(slope), offset=0.0 if zero else offset
            )
    return None


def _function(rows: CodedTable, given: str, target: str) -> Function | None:
    """Return what the target is at each level of the given column, if it is one thing there."""
    known = rows.known(given, target)
    levels, numbers = rows.levels[given][known], rows.numbers[target][known]
    if not len(levels):
        return None
    order = np.argsort(numbers)
    order = order[np.argsort(levels[order], kind="stable")]
    counts = np.bincount(levels, minlength=rows.codings[given].levels)
    middle = np.cumsum(counts) - counts + counts // 2
    values: Floats = numbers[order][middle.clip(max=len(order) - 1)]
    told = counts >= _LEVEL_ROWS
    kept = np.abs(numbers - values[levels]) <= rows.codings[target].exact
    if not _holds(kept, told[levels], len(levels)) or _same(numbers, rows.codings[target].near):
        return None
    return Function(target=target, given=given, values=np.where(told, values, np.nan))


def _not_above(rows: CodedTable, one: str, other: str) -> NotAbove | None:
    """Return which of two numbers is never above the other one, though chance would have it."""
    known = rows.known(one, other)
    numbers = [rows.codings[name].categories is None for name in (one, other)]
    if not all(numbers) or known.sum() < FEWEST_ROWS or rows.units_of(known) < FEWEST_UNITS:
        return None
    mine, theirs = rows.numbers[one][known], rows.numbers[other][known]
    for target, given, lower, upper in ((one, other, mine, theirs), (other, one, theirs, mine)):
        if np.mean(lower <= upper) < HOLDS:
            continue
        below = np.searchsorted(np.sort(lower), upper, side="right")
        if below.mean() <= VARIED * len(lower):
            return NotAbove(target=target, given=given)
    return None


def _plainest(ordered: Sequence[NotAbove]) -> Iterator[NotAbove]:
    """Yield the orders of two numbers that do not follow from those of both with a third one."""
    pairs = {(one.target, one.given) for one in ordered}
    above: dict[str, set[str]] = {}
    for target, given in pairs:
        above.setdefault(target, set()).add(given)
    for one in ordered:
        if not any((middle, one.given) in pairs for middle in above[one.target]):
            yield one


def _sums(names: Sequence[str], rows: CodedTable, related: set[tuple[str, str]]) -> list[Sum]:
    """Return the numbers that are sums of two others or more, each relation once.

    Least squares of a number on all others have the coefficients 1 and -1 where it is their sum.
    Numbers that have gaps, or that another one tells, take no part.
    """
    numbers: list[str] = []
    for name in names:
        is_told = any((one, name) in related for one in numbers)
        if rows.codings[name].categories is None and rows.known(name).all() and not is_told:
            numbers.append(name)
    count = len(rows.units)
    if len(numbers) < 3 or count < max(FEWEST_ROWS, 2 * len(numbers)):
        return []
    values = np.stack([rows.numbers[name] for name in numbers], axis=1)
    found: dict[frozenset[str], Sum] = {}
    for place, target in enumerate(numbers):
        others = np.delete(values, place, axis=1)
        scales = np.maximum(others.std(axis=0), 1e-300)
        scaled, aim = others / scales, values[:, place]
        weights = np.linalg.lstsq(scaled - scaled.mean(axis=0), aim - aim.mean(), rcond=None)[0]
        signs = np.rint(weights / scales).clip(-1, 1)
        used = np.flatnonzero(signs)
        if len(used) < 2 or rows.units_of(np.ones(count, np.bool_)) < FEWEST_UNITS:
            continue
        rest = np.abs(aim - others[:, used] @ signs[used])
        if np.mean(rest <= rows.codings[target].exact) < HOLDS:
            continue
        columns = tuple(np.delete(numbers, place)[used].tolist())
        one = Sum(target=target, columns=columns, signs=tuple(signs[used].tolist()))
        key = frozenset((target, *columns))
        if key not in found or min(one.signs) > min(found[key].signs):
            found[key] = one
    return list(found.values())


def _never(rows: CodedTable, one: str, other: str) -> NeverTogether | None:
    """Return which levels of two columns never meet though chance would have them meet.

    Units weigh one together, so that rows of few units are no evidence.
    """
    sizes = rows.codings[one].levels, rows.codings[other].levels
    few = rows.codings[one].few and rows.codings[other].few
    if not few or max(sizes) > _MEETING_LEVELS or min(sizes) < 2:
        return None
    known = rows.known(one, other)
    mine, theirs = (rows.levels[name][known].astype(np.int64) for name in (one, other))
    cells, units = mine * sizes[1] + theirs, rows.units[known]
    weights = 1 / np.bincount(units, minlength=1)[units] if len(units) else np.empty(0)
    table = np.bincount(cells, weights, minlength=sizes[0] * sizes[1]).reshape(sizes)
    if not table.any():
        return None
    chance = np.outer(table.sum(1), table.sum(0)) / table.sum()
    never = (table == 0) & (chance >= _MEETINGS)
    if not never.any():
        return None
    rarer = [table.sum(1 - axis)[never.any(1 - axis)].sum() for axis in (0, 1)]
    names, table, chance, never = (
        ((one, other), table, chance, never)
        if rarer[0] <= rarer[1]
        else ((other, one), table.T, chance.T, never.T)
    )
    involved = never.any(axis=1)
    if 1 - chance[never].sum() / table[involved].sum() > VARIED:
        return None
    worst = np.unravel_index(np.argmax(np.where(never, chance, 0)), never.shape)
    target, given = names
    concerned = rows.known(*names) & involved[rows.levels[target]]
    if concerned.sum() < FEWEST_ROWS or rows.units_of(concerned) < FEWEST_UNITS:
        return None
    labels = rows.codings[target].labels[worst[0]], rows.codings[given].labels[worst[1]]
    return NeverTogether(target=target, given=given, never=never, example=labels)


def _picked_ones(
    rows: CodedTable, varied: set[str], related: set[tuple[str, str]]
) -> Iterator[Picked]:
    """Yield numbers that are those of several others which a category picks."""
    numbers = [name for name, coding in rows.codings.items() if coding.categories is None]
    pickers = [
        name
        for name, coding in rows.codings.items()
        if coding.categories is not None and coding.levels <= _PICKING_LEVELS
    ]
    for target in numbers:
        free = [one for one in pickers if (one, target) not in related]
        others = tuple(one for one in numbers if (one, target) not in related and one != target)
        if target not in varied or not free or len(others) < 2:
            continue
        columns = np.stack([rows.numbers[one] for one in others], axis=1)
        sides, exact = rows.numbers[target][:, None], rows.codings[target].exact
        equal = np.concatenate(
            [np.abs(sides - sign * columns) <= exact for sign in (1, -1)], axis=1
        )
        known = rows.known(target)
        if equal[known].any(axis=1).mean() < _COVERED:
            continue
        for given in free:
            found = _picked(rows, given, target, others, equal)
            if found is not None:
                yield found


def _picked(
    rows: CodedTable, given: str, target: str, others: tuple[str, ...], equal: Mask
) -> Picked | None:
    known = rows.known(given, target)
    levels, size = rows.levels[given][known].astype(np.int64), rows.codings[given].levels
    if not len(levels):
        return None
    chosen = (levels[:, None] == np.arange(size)).astype(np.float32)
    alike = chosen.T @ equal[known].astype(np.float32)
    counts, best = chosen.sum(axis=0), alike.argmax(axis=1)
    told = counts >= FEWEST_ROWS
    kept = equal[known][np.arange(len(levels)), best[levels]]
    alone = equal[known].mean(axis=0).max()
    if not _holds(kept, told[levels], len(levels)) or alone > VARIED:
        return None
    return Picked(
        target=target,
        given=given,
        columns=others,
        column=np.where(told, best % len(others), -1),
        sign=np.where(best < len(others), 1.0, -1.0),
    )
