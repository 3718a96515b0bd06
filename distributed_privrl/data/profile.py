"""What the columns of a table seem to be: kinds and roles, for its owner to confirm or correct.

Names, kinds and roles of columns go into the drafts of ``privrl init``. Whatever else is found
depends on single rows, is for the owner alone and stays `Sensitive`.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.csv_files import Separator
from distributed_privrl.data.sources import open_columns, separator_of
from distributed_privrl.data.values import NO_COMMAS, has_decimal_commas, times

if TYPE_CHECKING:
    import pandas as pd

PROFILED_ROWS = 2**20
"""Rows that are looked at; an import looks at all of them."""
FEW_VALUES = 50
"""Texts of more values than these are ids or free text, not categories."""
FEW_LEVELS = 32
"""Whole numbers of more values than these are no levels of an action."""

_PART_OF_A_PERSON = 0.5
"""Of the times of an id, at which each of the people who share it has rows at least."""

ColumnKind = Literal[
    "number", "whole number", "flag", "category", "date", "identifier", "text", "empty"
]
USABLE: tuple[ColumnKind, ...] = ("number", "whole number", "flag", "category", "date")
"""Kinds of columns that a schema can take as observation or action."""

_PEOPLE = {"patient", "subject", "person", "user", "customer", "client", "member", "participant"}
_PEOPLE |= {"pupil", "student", "employee", "unit", "household", "plane", "tailnum", "vehicle"}
_COURSES = {"stay", "episode", "trajectory", "session", "trip", "encounter", "admission"}
_TIMES = {"time", "hour", "day", "date", "week", "month", "year", "step", "visit", "wave", "period"}
_TIMES |= {"minute", "second", "t", "timestamp", "order", "round", "seq", "sequence"}
_PLAIN_IDS = {"id", "hid", "pid", "uid"}
_IDS = {*_PLAIN_IDS, *_PEOPLE, *_COURSES}
_NO_YES = ({"0", "1"}, {"true", "false"})


@dataclass(frozen=True, kw_only=True)
class DraftedColumn:
    """What a draft says of a column.

    Args:
        name: in the table.
        kind: what it holds.
        plain: of a flag: its values are 0 and 1, or true and false; of a whole number: it has few
            of them; of a date: it has no time of day.
        changes: within some trajectory, or else within some unit, it has several values; True
            where rows stand for themselves.
    """

    name: str
    kind: ColumnKind
    plain: bool = False
    changes: bool = True


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What a table's columns seem to be.

    Args:
        columns: of the table, in its order.
        units: columns that may say whose a row is, the likeliest first.
        trajectory: column that may tell trajectories apart; None: no such column was found.
        order: column that may sort the rows of a trajectory; None with ``trajectory`` alone.
        one_each: a column of people has another value in each row: a row is all that one has.
        separator: of the fields of a CSV file.
        found: a line each on what else there is in the rows, with exact numbers.

    Privacy: names, kinds and roles are what the table's owner declares once the draft is confirmed.
    ``found`` depends on single rows and is for the owner alone.
    """

    columns: tuple[DraftedColumn, ...]
    units: tuple[str, ...]
    trajectory: str | None
    order: str | None
    one_each: str | None
    separator: Separator
    found: Sensitive[tuple[str, ...]]

    def __getitem__(self, name: str) -> DraftedColumn:
        return next(column for column in self.columns if column.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)


@dataclass(frozen=True, kw_only=True)
class Roles:
    """Roles that the owner names; None: what the rows look like decides.

    Args:
        unit: a column, or ``transition``.
        trajectory: a column, or ``none``.
        order: a column.
    """

    unit: str | None = None
    trajectory: str | None = None
    order: str | None = None


@dataclass(frozen=True, eq=False)
class _Column:
    """A column's values, and what they seem to be."""

    drafted: DraftedColumn
    codes: NDArray[np.int64]
    numbers: NDArray[np.float64] | None
    values: int

    @property
    def missing(self) -> NDArray[np.bool_]:
        return self.codes < 0

    @property
    def repeats(self) -> bool:
        return 1 < self.values < len(self.codes)


def profile_file(path: Path, roles: Roles, *, separator: Separator | None = None) -> Profile:
    """Return what the columns of a ``.csv`` or ``.parquet`` table seem to be.

    Args:
        path: the table.
        roles: that its owner names.
        separator: of the fields of a CSV file; None: what splits its header into most fields.

    Raises:
        ConfigError: as `sources.open_columns`, or a column that is named is not there.
        StorageError: the file cannot be read.
    """
    import pandas as pd

    frames, rows, more = [], 0, False
    separator = separator or separator_of(path)
    for frame in open_columns(path, separator=separator):
        if rows + len(frame) > PROFILED_ROWS:
            frame, more = frame.head(PROFILED_ROWS - rows), True
        frames.append(frame)
        rows += len(frame)
        if more:
            break
    table = pd.concat(frames, ignore_index=True)
    return profile(table, roles, source=str(path), separator=separator, more=more)


def profile(
    frame: "pd.DataFrame",
    roles: Roles,
    *,
    source: str = "the table",
    separator: Separator = "comma",
    more: bool = False,
) -> Profile:
    """Return what the columns of a table seem to be; see `profile_file`.

    Args:
        frame: N rows.
        roles: that its owner names.
        source: where they come from, for messages.
        separator: of the fields of a CSV file that they come from.
        more: whether there are rows that nobody looks at.

    Raises:
        ConfigError: a column that is named is not there, or numbers have decimal commas.
    """
    names = [str(name) for name in frame.columns]
    asked = {roles.unit, roles.trajectory, roles.order} - {None, "transition", "none"}
    if unknown := sorted(str(name) for name in asked if name not in names):
        raise ConfigError(f"{source} has no column {', '.join(unknown)}; it has {', '.join(names)}")
    if commas := [str(name) for name in frame.columns if has_decimal_commas(frame[name])]:
        raise ConfigError(
            f"{source}: {', '.join(commas)} {'have' if len(commas) > 1 else 'has'} numbers with a"
            f" comma: {NO_COMMAS}"
        )
    columns = {str(name): _column(str(name), frame[name]) for name in frame.columns}
    ids = [name for name, one in columns.items() if one.repeats and _is_id(one)]
    ids.sort(key=lambda name: (not _hints(name, _PEOPLE), -columns[name].values))
    trajectory, order = _trajectory(columns, ids, roles)
    units = tuple(name for name in ids if trajectory is None or _nested(columns, trajectory, name))
    if trajectory is not None and trajectory not in units:
        units = (*units, trajectory)
    whole = [name for name, one in columns.items() if one.values == len(frame) and _is_id(one)]
    alone = trajectory or (roles.unit if roles.unit in columns else next(iter(units), None))
    return Profile(
        columns=tuple(
            replace(one.drafted, changes=alone is None or _changes(columns[alone], one))
            for one in columns.values()
        ),
        units=units,
        trajectory=trajectory,
        order=order,
        one_each=next((name for name in whole if _hints(name, _PEOPLE | _PLAIN_IDS)), None),
        separator=separator,
        found=Sensitive(tuple(_found(columns, ids, trajectory, order, roles, more=more))),
    )


def _column(name: str, series: "pd.Series[Any]") -> _Column:
    import pandas as pd

    codes, values = pd.factorize(series)
    there = series.dropna()
    kind, plain, numbers = _kind(name, there, len(values))
    if numbers is not None:
        placed = np.full(len(series), np.nan)
        placed[np.flatnonzero(codes >= 0)] = numbers
        numbers = placed
    return _Column(DraftedColumn(name=name, kind=kind, plain=plain), codes, numbers, len(values))


def _kind(
    name: str, there: "pd.Series[Any]", values: int
) -> tuple[ColumnKind, bool, NDArray[np.float64] | None]:
    """Return the kind of a column's values, whether it is a plain one, and its numbers."""
    import pandas as pd

    if there.empty:
        return "empty", False, None
    texts = {str(value).lower() for value in there.head(1000)}
    if values <= 2 and any(texts <= pair for pair in _NO_YES):
        return "flag", True, None
    numeric = pd.to_numeric(there, errors="coerce") if _may_be_numbers(there) else None
    if numeric is not None and numeric.notna().all():
        found = numeric.to_numpy(np.float64, na_value=np.nan)
        return (*_number_kind(name, found, values), found)
    if (seconds := _times(there)) is not None:
        return "date", bool((seconds % 86_400 == 0).all()), seconds
    if values == 2:
        return "flag", False, None
    if values <= FEW_VALUES and values <= len(there) / 2 and not _hints(name, _IDS):
        return "category", False, None
    spaces = there.head(1000).astype(str).str.count(r"\s").mean()
    return ("text" if spaces >= 2 and values > len(there) / 2 else "identifier"), False, None


def _may_be_numbers(there: "pd.Series[Any]") -> bool:
    """Say whether values are numbers, or texts none of which has zeros before it, as ids have."""
    from pandas.api.types import is_datetime64_any_dtype, is_numeric_dtype

    if is_numeric_dtype(there.dtype):
        return True
    if is_datetime64_any_dtype(there.dtype):
        return False
    return not there.astype(str).str.match(r"[+-]?0\d").any()


def _number_kind(name: str, found: NDArray[np.float64], values: int) -> tuple[ColumnKind, bool]:
    with np.errstate(all="ignore"):
        whole = bool((np.isfinite(found) & (np.floor(found) == found)).all())
    if not whole:
        return "number", False
    counted = values == len(found) > 2 and found.max() - found.min() + 1 == values
    if counted or _hints(name, _IDS):
        return "identifier", False
    return "whole number", values <= FEW_LEVELS


def _times(there: "pd.Series[Any]") -> NDArray[np.float64] | None:
    try:
        found = times(there, name="")
    except ConfigError:
        return None
    return found if np.isfinite(found).all() else None


def called_as_a_person(name: str) -> bool:
    """Say whether a column's name has a word for a person, or for what stands for one, in it.

    Example:
        >>> called_as_a_person("patient_id"), called_as_a_person("id")
        (True, False)
    """
    return _hints(name, _PEOPLE)


def _hints(name: str, words: set[str]) -> bool:
    """Say whether a name has one of some words in it: ``patient_id``, ``stayId``, ``Subject 2``."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return apart in words or bool(set(re.split(r"[^a-z]+", apart)) & words)


def _is_id(column: _Column) -> bool:
    return column.drafted.kind == "identifier" and not column.missing.any()


def _trajectory(
    columns: dict[str, _Column], ids: list[str], roles: Roles
) -> tuple[str | None, str | None]:
    """Return which column tells trajectories apart, and which sorts their rows."""
    if roles.trajectory == "none":
        return None, None
    if roles.trajectory is not None:
        return roles.trajectory, roles.order or _order(columns, roles.trajectory, strict=False)
    may_be = [*ids]
    if roles.unit is not None and roles.unit in columns:
        may_be = [one for one in ids if _nested(columns, one, roles.unit)]
        may_be += [roles.unit] * (roles.unit not in may_be)
    else:
        grids = ("category", "text", "whole number")
        may_be += [
            name
            for name, one in columns.items()
            if one.drafted.kind in grids and one.repeats and not _hints(name, _TIMES)
        ]
    may_be.sort(key=lambda name: (not _hints(name, _COURSES), -columns[name].values))
    for name in may_be:
        strict = columns[name].drafted.kind != "identifier" and name != roles.unit
        order = roles.order if roles.order else _order(columns, name, strict=strict)
        if order is not None and _sorts(columns[name], columns[order]):
            return name, order
    return None, None


def _order(columns: dict[str, _Column], of: str, *, strict: bool) -> str | None:
    """Return the column that sorts the rows of a trajectory, the likeliest if there are several.

    Args:
        columns: of the table.
        of: column of the trajectories.
        strict: each trajectory must have the same times, as in a balanced panel.
    """
    found = []
    for name, one in columns.items():
        if name == of or one.drafted.kind not in ("whole number", "number", "date", "identifier"):
            continue
        if not _sorts(columns[of], one):
            continue
        grid = columns[of].values * one.values == len(one.codes)
        named = _hints(name, _TIMES) or one.drafted.kind == "date"
        if (strict and not grid) or not (named or (grid and _rises(columns[of], one))):
            continue
        found.append((not named, not _rises(columns[of], one), one.values, name))
    return min(found)[-1] if found else None


def _sorts(trajectory: _Column, order: _Column) -> bool:
    """Say whether rows of a trajectory never share a value of a column, and differ in it."""
    if order.numbers is None or order.missing.any() or trajectory.missing.any():
        return False
    return not _tied(trajectory, order).any() and trajectory.values * 2 <= len(order.codes)


def _tied(trajectory: _Column, order: _Column) -> NDArray[np.bool_]:
    """Return which rows share both values with another row, ``(N,)``."""
    pairs = trajectory.codes * (order.values + 1) + order.codes
    _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    tied: NDArray[np.bool_] = (counts > 1)[place]
    return tied


def _rises(trajectory: _Column, order: _Column) -> bool:
    """Say whether a column rises within each trajectory, as the rows stand."""
    assert order.numbers is not None
    place = np.argsort(trajectory.codes, kind="stable")
    inner = trajectory.codes[place][1:] == trajectory.codes[place][:-1]
    return bool((np.diff(order.numbers[place])[inner] > 0).all())


def _nested(columns: dict[str, _Column], inner: str, outer: str) -> bool:
    """Say whether all rows of a value of one column have the same value of another."""
    other = columns[outer]
    return not other.missing.any() and not _changes(columns[inner], other)


def _changes(within: _Column, column: _Column) -> bool:
    """Say whether some rows of one value of a column differ in another one; a gap is a value."""
    pairs = within.codes * (column.values + 1) + column.codes
    return len(np.unique(pairs)) > len(np.unique(within.codes))


def _found(
    columns: dict[str, _Column],
    ids: list[str],
    trajectory: str | None,
    order: str | None,
    roles: Roles,
    *,
    more: bool,
) -> Iterator[str]:
    """Yield what the owner should know of the rows."""
    rows = len(next(iter(columns.values())).codes)
    yield f"{rows:,} rows" + (" were looked at, and there are more" if more else "")
    if any(one.missing.any() for one in columns.values()):
        yield (
            "rows without a value become null rows, which methods leave out, unless kinds say"
            " otherwise (missing); in a CSV file NA, None and the like are no values, unless kinds"
            " declare them"
        )
    for name, one in columns.items():
        gaps = int(one.missing.sum())
        noted = [f"{one.values:,} {'value' if one.values == 1 else 'values'}"]
        noted += [f"none in {gaps:,} rows"] * bool(gaps)
        noted += ["the same in every row"] * (one.values == 1)
        yield f"{name}: {one.drafted.kind}, {', '.join(noted)}"
    for name in dict.fromkeys([*filter(None, [trajectory]), *ids]):
        yield f"rows of one {name}: {_lengths(columns[name])}"
    if trajectory is not None:
        yield (
            f"{columns[trajectory].values:,} rows are the last of their {trajectory}: those that"
            " neither terminate nor have a next observation lose their action and reward, which"
            " terminated: last prevents"
        )
    if (
        trajectory is not None
        and order is not None
        and not _sorts(columns[trajectory], columns[order])
    ):
        tied = int(_tied(columns[trajectory], columns[order]).sum())
        yield f"{tied:,} rows have the {order} of another row of their {trajectory}"
    if trajectory is None and roles.trajectory != "none":
        yield from _joint_ids(columns, ids)


def _lengths(column: _Column) -> str:
    counts = np.bincount(column.codes[column.codes >= 0])
    return f"{int(np.median(counts)):,} in the middle, {int(counts.max()):,} at most"


def _joint_ids(columns: dict[str, _Column], ids: Iterable[str]) -> Iterator[str]:
    """Yield what pairs of columns would tell trajectories apart where one alone does not."""
    named = [one for one in columns.values() if _hints(one.drafted.name, _TIMES)]
    for name in ids:
        for time in (one for one in named if one.numbers is not None and one.repeats):
            for other, beside in columns.items():
                if other in (name, time.drafted.name) or not 1 < beside.values <= FEW_VALUES:
                    continue
                codes = columns[name].codes * (beside.values + 1) + beside.codes
                joint = _Column(beside.drafted, codes, None, len(np.unique(codes)))
                if _sorts(columns[name], time) or not _sorts(joint, time):
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


def _breaks_ties(person: _Column, time: _Column, joint: _Column) -> bool:
    """Say whether what tells rows of the same time apart numbers them, and is no part of a person.

    Two people who share an id have rows at most times each; a second row at one time is rare.

    Args:
        person: column in which rows of the same time are.
        time: that column of times.
        joint: ``person`` and the column beside it, which no rows of the same time share.
    """
    tied = np.unique(person.codes[_tied(person, time)])
    mine = np.isin(person.codes, tied)
    times = np.unique(np.stack([person.codes[mine], time.codes[mine]]), axis=1)[0]
    _, first, rows = np.unique(joint.codes[mine], return_index=True, return_counts=True)
    owners = np.searchsorted(tied, person.codes[mine][first])
    shortest = np.full(len(tied), len(person.codes))
    np.minimum.at(shortest, owners, rows)
    shares = shortest / np.bincount(np.searchsorted(tied, times), minlength=len(tied))
    return bool(np.median(shares) < _PART_OF_A_PERSON)
