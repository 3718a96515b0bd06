"""What the columns of a table seem to be: kinds and roles, for its owner to confirm or correct.

Names, kinds and roles of columns go into the drafts of ``privrl init``. Whatever else is found
depends on single rows, is for the owner alone and stays `Sensitive`.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.data.csv_files import Separator
from distributed_privrl.data.profile_notes import owner_notes
from distributed_privrl.data.profiled_columns import (
    COURSES,
    PEOPLE,
    PLAIN_IDS,
    TIMES,
    DraftedColumn,
    ProfiledColumn,
    changes,
    counts_rows,
    hints,
    nested,
    profiled_column,
    rises,
    sorts,
)
from distributed_privrl.data.sources import open_columns, separator_of
from distributed_privrl.data.values import NO_COMMAS, has_decimal_commas

if TYPE_CHECKING:
    import pandas as pd

PROFILED_ROWS = 2**20
"""Rows that are looked at; an import looks at all of them."""


_COUNTERS = ("whole number", "identifier")


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
        fixed: in words how columns that do not change stay, by name.

    Privacy: names, kinds and roles are what the table's owner declares once the draft is confirmed.
    ``found`` and ``fixed`` depend on single rows and are for the owner alone.
    """

    columns: tuple[DraftedColumn, ...]
    units: tuple[str, ...]
    trajectory: str | None
    order: str | None
    one_each: str | None
    separator: Separator
    found: Sensitive[tuple[str, ...]]
    fixed: Sensitive[dict[str, str]]

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
    columns = {str(name): profiled_column(str(name), frame[name]) for name in frame.columns}
    ids = [name for name, one in columns.items() if one.repeats and _is_id(one)]
    ids.sort(key=lambda name: (not hints(name, PEOPLE), -columns[name].values))
    counted = _counted(columns, ids, roles)
    ids = [name for name in ids if name not in counted]
    trajectory, order = _trajectory(columns, ids, roles)
    units = tuple(name for name in ids if trajectory is None or nested(columns, trajectory, name))
    if trajectory is not None and trajectory not in units:
        units = (*units, trajectory)
    whole = [name for name, one in columns.items() if one.values == len(frame) and _is_id(one)]
    alone = trajectory or (roles.unit if roles.unit in columns else next(iter(units), None))
    notes = owner_notes(
        columns, ids, trajectory, order, more=more, on_their_own=roles.trajectory == "none"
    )
    return Profile(
        columns=tuple(
            replace(
                one.drafted,
                changes=alone is None or changes(columns[alone], one),
                counted=_rows_numbered(one, counted.get(name)),
            )
            for name, one in columns.items()
        ),
        units=units,
        trajectory=trajectory,
        order=order,
        one_each=next((name for name in whole if hints(name, PEOPLE | PLAIN_IDS)), None),
        separator=separator,
        found=Sensitive(tuple(notes)),
        fixed=Sensitive(_fixed(columns, alone)),
    )


def _fixed(columns: dict[str, ProfiledColumn], alone: str | None) -> dict[str, str]:
    """Return in words how columns that do not change stay, by name.

    Args:
        columns: of the table.
        alone: the column whose values have rows of their own; None: each row stands for itself.
    """
    words = {}
    for name, one in columns.items():
        if one.values == 1:
            words[name] = "is the same in every row"
        elif alone is not None and name != alone and not changes(columns[alone], one):
            words[name] = f"never changes within one {alone}"
    return words


def _is_id(column: ProfiledColumn) -> bool:
    return column.drafted.kind == "identifier" and not column.missing.any()


def _rows_numbered(column: ProfiledColumn, of: str | None) -> str | None:
    """Return which rows a column numbers, in words: those of each value of ``of``, or all."""
    if of is not None:
        return f"the rows of each {of}"
    every = _is_id(column) and column.numbers is not None and not column.repeats
    return "the rows" if every and column.values > 1 else None


def _counted(columns: dict[str, ProfiledColumn], ids: list[str], roles: Roles) -> dict[str, str]:
    """Return the ids that only number the rows of another column, and of which.

    Args:
        columns: of the table.
        ids: columns that may say whose a row is, the likeliest first.
        roles: that its owner names: what has one numbers nothing.
    """
    found: dict[str, str] = {}
    for place, name in enumerate(ids):
        people = (one for one in ids[:place] if one not in found)
        whose = (one for one in people if counts_rows(columns[one], columns[name]))
        if name not in (roles.unit, roles.trajectory) and (one := next(whose, None)):
            found[name] = one
    return found


def _trajectory(
    columns: dict[str, ProfiledColumn], ids: list[str], roles: Roles
) -> tuple[str | None, str | None]:
    """Return which column tells trajectories apart, and which sorts their rows."""
    if roles.trajectory == "none":
        return None, None
    if roles.trajectory is not None:
        return roles.trajectory, roles.order or _order(columns, roles.trajectory, strict=False)
    may_be = [*ids]
    if roles.unit is not None and roles.unit in columns:
        may_be = [one for one in ids if nested(columns, one, roles.unit)]
        may_be += [roles.unit] * (roles.unit not in may_be)
    else:
        grids = ("category", "text", "whole number")
        may_be += [
            name
            for name, one in columns.items()
            if one.drafted.kind in grids and one.repeats and not hints(name, TIMES)
        ]
    may_be.sort(key=lambda name: (not hints(name, COURSES), -columns[name].values))
    for name in may_be:
        strict = columns[name].drafted.kind != "identifier" and name != roles.unit
        order = roles.order if roles.order else _order(columns, name, strict=strict)
        if order is not None and sorts(columns[name], columns[order]):
            return name, order
    return None, None


def _order(columns: dict[str, ProfiledColumn], of: str, *, strict: bool) -> str | None:
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
        if not sorts(columns[of], one):
            continue
        grid = columns[of].values * one.values == len(one.codes)
        named = hints(name, TIMES) or one.drafted.kind == "date"
        counts = not strict and one.drafted.kind in _COUNTERS and counts_rows(columns[of], one)
        if (strict and not grid) or not (named or counts or (grid and rises(columns[of], one))):
            continue
        likely = 0 if named else 1 if counts else 2
        found.append((likely, not rises(columns[of], one), one.values, name))
    return min(found)[-1] if found else None
