"""What ``privrl init`` tells the owner of a table about its rows, on the terminal alone."""

from collections.abc import Iterable, Iterator

import numpy as np

from distributed_privrl.data.profiled_columns import (
    FEW_VALUES,
    TIMES,
    ProfiledColumn,
    hints,
    sorts,
    tied,
)

_PART_OF_A_PERSON = 0.5
"""Of the times of an id, at which each of the people who share it has rows at least."""
_STAND_INS = [
    sign * int(before * (times - 1) + digit)
    for times in (1, 2, 3, 4, 5)
    for digit in "789"
    for before in ("9", digit)
    for sign in (1, -1)
]
"""What surveys write where there is no answer, to the width of the field: 7 to 9, 88, 98, 99, .."""


def owner_notes(
    columns: dict[str, ProfiledColumn],
    ids: list[str],
    trajectory: str | None,
    order: str | None,
    *,
    more: bool,
    on_their_own: bool,
) -> Iterator[str]:
    """Yield a line each on what the owner should know of the rows, with exact numbers.

    Args:
        columns: by name, of N rows.
        ids: columns that may say whose a row is.
        trajectory: column that tells trajectories apart, if one does.
        order: column that sorts their rows.
        more: whether there are rows that nobody looked at.
        on_their_own: the owner says that rows belong to no trajectory.
    """
    rows = len(next(iter(columns.values())).codes)
    yield f"{rows:,} rows" + (" were looked at, and there are more" if more else "")
    if any(one.missing.any() for one in columns.values()):
        yield (
            "rows without a value become null rows, which methods leave out, unless kinds say"
            " otherwise (missing); in a CSV file NA, None and the like are no values, unless kinds"
            " declare them"
        )
        yield from _gaps_together(columns.values())
    for name, one in columns.items():
        gaps = int(one.missing.sum())
        noted = [f"{one.values:,} {'value' if one.values == 1 else 'values'}"]
        noted += [f"none in {gaps:,} rows"] * bool(gaps)
        noted += ["the same in every row"] * (one.values == 1)
        yield f"{name}: {one.drafted.kind}, {', '.join(noted)}"
        yield from _doubts(one)
    for name in dict.fromkeys([*filter(None, [trajectory]), *ids]):
        yield f"rows of one {name}: {_lengths(columns[name])}"
    if trajectory is not None:
        yield (
            f"{columns[trajectory].values:,} rows are the last of their {trajectory}: terminated:"
            " last keeps them whole; else those that neither terminate nor have a next observation"
            " lose their action and reward, if there are any"
        )
    if (
        trajectory is not None
        and order is not None
        and not sorts(columns[trajectory], columns[order])
    ):
        alike = int(tied(columns[trajectory], columns[order]).sum())
        yield f"{alike:,} rows have the {order} of another row of their {trajectory}"
    if trajectory is None and not on_their_own:
        yield from _joint_ids(columns, ids)


def _gaps_together(columns: Iterable[ProfiledColumn]) -> Iterator[str]:
    """Yield how many rows have a gap in any of several columns: the one with most tells less."""
    gaps = [one.missing for one in columns if one.missing.any()]
    if len(gaps) > 1:
        rows = np.any(gaps, axis=0)
        yield (
            f"{int(rows.sum()):,} of {len(rows):,} rows have no value in one column or another:"
            " columns that stay as they are drafted, and are not left out, make null rows of them"
        )


def _doubts(column: ProfiledColumn) -> Iterator[str]:
    """Yield what an import would take for something else than the owner does."""
    name = column.drafted.name
    if column.drafted.kind == "unclear date":
        yield (
            f"{name}: nobody can tell day and month of such dates apart for certain, so they are"
            " not read: write them as 2024-05-31 in the file"
        )
    if column.drafted.kind in ("number", "whole number"):
        for code, rows, why in _stand_ins(column):
            yield (
                f"{name}: {code:g}, in {rows:,} {'row' if rows == 1 else 'rows'}, {why}: if it"
                " means that there is none, leave the field empty in the file, else it counts as a"
                " number"
            )
    if column.drafted.kind == "whole number" and column.values == len(column.codes) > 2:
        yield (
            f"{name}: another number in each row: if it only says whose the row is, take it out of"
            " the drafts, else it counts as a number"
        )
    if column.drafted.kind == "identifier" and column.repeats and column.missing.any():
        yield (
            f"{name}: is taken for no unit and no trajectory, because an import refuses rows"
            " without one: if it says whose a row is, say so in them, too, or leave them out, and"
            " draft anew"
        )


def _stand_ins(column: ProfiledColumn) -> Iterator[tuple[float, int, str]]:
    """Yield values such as -9 and 999, with their rows and with what sets them apart.

    A value's distance to the nearest other one is larger than the range of the others, or it is
    below 0 where no other is.
    """
    assert column.numbers is not None
    values, rows = np.unique(column.numbers[np.isfinite(column.numbers)], return_counts=True)
    coded = np.isin(values, _STAND_INS)
    others = values[~coded]
    if len(others) < 2:
        return
    low, high = others[0], others[-1]
    for value, count in zip(values[coded], rows[coded], strict=True):
        if max(low - value, value - high) > high - low:
            yield float(value), int(count), "is far from every other value"
        elif value < 0 <= low:
            yield float(value), int(count), "is below 0, as no other value is"


def _lengths(column: ProfiledColumn) -> str:
    counts = np.bincount(column.codes[column.codes >= 0])
    return f"{int(np.median(counts)):,} in the middle, {int(counts.max()):,} at most"


def _joint_ids(columns: dict[str, ProfiledColumn], ids: Iterable[str]) -> Iterator[str]:
    """Yield what pairs of columns would tell trajectories apart where one alone does not."""
    named = [one for one in columns.values() if hints(one.drafted.name, TIMES)]
    for name in ids:
        for time in (one for one in named if one.numbers is not None and one.repeats):
            for other, beside in columns.items():
                if other in (name, time.drafted.name) or not 1 < beside.values <= FEW_VALUES:
                    continue
                codes = columns[name].codes * (beside.values + 1) + beside.codes
                joint = ProfiledColumn(beside.drafted, codes, None, len(np.unique(codes)))
                if sorts(columns[name], time) or not sorts(joint, time):
                    continue
                if _breaks_ties(columns[name], time, joint):
                    yield (
                        f"some rows of one {name} have the same {time.drafted.name}, and {other}"
                        f" tells them apart, as a number within one {time.drafted.name} does: for"
                        f" trajectories, sort the file by {other} and draft with --trajectory"
                        f" {name} --order {time.drafted.name}"
                    )
                else:
                    yield (
                        f"{time.drafted.name} is the same in several rows of one {name}, and in"
                        f" none of one {other} and {name}: if both together are the person, add a"
                        " column that joins them and name it with --unit and --trajectory"
                    )
                return


def _breaks_ties(person: ProfiledColumn, time: ProfiledColumn, joint: ProfiledColumn) -> bool:
    """Say whether what tells rows of the same time apart numbers them, and is no part of a person.

    Two people who share an id have rows at most times each; a second row at one time is rare.

    Args:
        person: column in which rows of the same time are.
        time: that column of times.
        joint: ``person`` and the column beside it, which no rows of the same time share.
    """
    several = np.unique(person.codes[tied(person, time)])
    mine = np.isin(person.codes, several)
    times = np.unique(np.stack([person.codes[mine], time.codes[mine]]), axis=1)[0]
    _, first, rows = np.unique(joint.codes[mine], return_index=True, return_counts=True)
    owners = np.searchsorted(several, person.codes[mine][first])
    shortest = np.full(len(several), len(person.codes))
    np.minimum.at(shortest, owners, rows)
    shares = shortest / np.bincount(np.searchsorted(several, times), minlength=len(several))
    return bool(np.median(shares) < _PART_OF_A_PERSON)
