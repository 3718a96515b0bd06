"""A table's columns as ``privrl init`` sees them: their kinds, and how the rows of two agree."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.values import times

if TYPE_CHECKING:
    import pandas as pd

FEW_VALUES = 50
"""Texts of more values than these are ids or free text, not categories."""
FEW_LEVELS = 32
"""Whole numbers of more values than these are no levels of an action."""

ColumnKind = Literal[
    "number",
    "whole number",
    "flag",
    "category",
    "date",
    "unclear date",
    "identifier",
    "text",
    "empty",
]
USABLE: tuple[ColumnKind, ...] = ("number", "whole number", "flag", "category", "date")
"""Kinds of columns that a schema can take as observation or action."""

PEOPLE = {"patient", "subject", "person", "user", "customer", "client", "member", "participant"}
PEOPLE |= {"pupil", "student", "employee", "unit", "household", "plane", "tailnum", "vehicle"}
COURSES = {"stay", "episode", "trajectory", "session", "trip", "encounter", "admission"}
TIMES = {"time", "hour", "day", "date", "week", "month", "year", "step", "visit", "wave", "period"}
TIMES |= {"minute", "second", "t", "timestamp", "order", "round", "seq", "sequence"}
PLAIN_IDS = {"id", "hid", "pid", "uid"}
_IDS = {*PLAIN_IDS, *PEOPLE, *COURSES}
_NO_IDS = {"acid", "aid", "amid", "avid", "bid", "covid", "fluid", "grid", "humid", "hybrid", "kid"}
_NO_IDS |= {"lipid", "liquid", "mid", "overpaid", "paid", "prepaid", "rapid", "rigid", "solid"}
_NO_IDS |= {"antacid", "underpaid", "unpaid", "valid", "invalid", "plasmid", "timid", "vivid"}
"""English words that end as names of ids do, beside those in -oid, such as opioid."""
_NUMBERED = 0.5
"""Of those with several rows, whose rows a column numbers without a gap."""
_YEAR_LAST = r"\s*\d{1,2}([./-])\d{1,2}\1(\d{2}|\d{4})\s*"
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
        counted: which rows it numbers, in words: all, or those of each value of another column;
            None: it numbers none.
    """

    name: str
    kind: ColumnKind
    plain: bool = False
    changes: bool = True
    counted: str | None = None


@dataclass(frozen=True, eq=False)
class ProfiledColumn:
    """A column's values, and what they seem to be.

    Args:
        drafted: its name and kind.
        codes: which of its values each row has, ``(N,)``; -1: none.
        numbers: the values, ``(N,)``, NaN where there is none; None: they are no numbers.
        values: how many there are.
    """

    drafted: DraftedColumn
    codes: NDArray[np.int64]
    numbers: NDArray[np.float64] | None
    values: int

    @property
    def missing(self) -> NDArray[np.bool_]:
        """Which rows have no value, ``(N,)``."""
        return self.codes < 0

    @property
    def repeats(self) -> bool:
        """Whether it has several values, and one of them in several rows."""
        return 1 < self.values < len(self.codes)


def profiled_column(name: str, series: "pd.Series[Any]") -> ProfiledColumn:
    """Return a column ``(N,)`` with what its values seem to be."""
    import pandas as pd

    codes, values = pd.factorize(series)
    there = series.dropna()
    kind, plain, numbers = _kind(name, there, len(values))
    if numbers is not None:
        placed = np.full(len(series), np.nan)
        placed[np.flatnonzero(codes >= 0)] = numbers
        numbers = placed
    drafted = DraftedColumn(name=name, kind=kind, plain=plain)
    return ProfiledColumn(drafted, codes, numbers, len(values))


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
    if _year_is_last(there):
        return "unclear date", False, None
    if values == 2:
        return "flag", False, None
    if values <= FEW_VALUES and values <= len(there) / 2 and not called_as_an_id(name):
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
    if counted or called_as_an_id(name):
        return "identifier", False
    return "whole number", values <= FEW_LEVELS


def _year_is_last(there: "pd.Series[Any]") -> bool:
    """Say whether texts are dates of which nobody can tell the day from the month for certain."""
    return all(one.astype(str).str.fullmatch(_YEAR_LAST).all() for one in (there.head(99), there))


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
    return hints(name, PEOPLE)


def called_as_an_id(name: str) -> bool:
    """Say whether a column's name is that of an id, a person, or a course of events.

    Example:
        >>> [called_as_an_id(name) for name in ("childid", "stay_id", "amount_paid", "opioid")]
        [True, True, False, False]
    """
    last = re.split(r"[^a-z]+", name.lower())[-1]
    glued = len(last) > 3 and last.endswith("id") and not last.endswith("oid")
    glued = glued and last not in _NO_IDS
    return glued or hints(name, _IDS)


def hints(name: str, words: set[str]) -> bool:
    """Say whether a name has one of some words in it: ``patient_id``, ``stayId``, ``Subject 2``."""
    apart = re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
    return apart in words or bool(set(re.split(r"[^a-z]+", apart)) & words)


def sorts(trajectory: ProfiledColumn, order: ProfiledColumn) -> bool:
    """Say whether rows of a trajectory never share a value of a column, and differ in it."""
    if order.numbers is None or order.missing.any() or trajectory.missing.any():
        return False
    return not tied(trajectory, order).any() and trajectory.values * 2 <= len(order.codes)


def tied(trajectory: ProfiledColumn, order: ProfiledColumn) -> NDArray[np.bool_]:
    """Return which rows share both values with another row, ``(N,)``."""
    pairs = trajectory.codes * (order.values + 1) + order.codes
    _, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    tied: NDArray[np.bool_] = (counts > 1)[place]
    return tied


def rises(trajectory: ProfiledColumn, order: ProfiledColumn) -> bool:
    """Say whether a column rises within each trajectory, as the rows stand."""
    assert order.numbers is not None
    place = np.argsort(trajectory.codes, kind="stable")
    inner = trajectory.codes[place][1:] == trajectory.codes[place][:-1]
    return bool((np.diff(order.numbers[place])[inner] > 0).all())


def counts_rows(within: ProfiledColumn, column: ProfiledColumn) -> bool:
    """Say whether a column numbers the rows of each value of another one, as 1, 2, 3 and anew.

    It never repeats within a value, rises as the rows stand, and has its least number and those
    that follow without a gap in at least half of the values that have several rows. Identifiers
    whose rows are in no order have no gap in any value.
    """
    if column.numbers is None or column.missing.any() or within.missing.any():
        return False
    rows = np.bincount(within.codes, minlength=within.values)
    several = rows > 1
    if not several.any() or tied(within, column).any():
        return False
    least, greatest = np.full(within.values, np.inf), np.full(within.values, -np.inf)
    np.minimum.at(least, within.codes, column.numbers)
    np.maximum.at(greatest, within.codes, column.numbers)
    whole = (least == column.numbers.min()) & (greatest - least + 1 == rows)
    if rises(within, column):
        return bool(whole[several].mean() >= _NUMBERED)
    return column.drafted.kind == "identifier" and bool(whole.all())


def nested(columns: dict[str, ProfiledColumn], inner: str, outer: str) -> bool:
    """Say whether all rows of a value of one column have the same value of another."""
    other = columns[outer]
    return not other.missing.any() and not changes(columns[inner], other)


def changes(within: ProfiledColumn, column: ProfiledColumn) -> bool:
    """Say whether some rows of one value of a column differ in another one; a gap is a value."""
    pairs = within.codes * (column.values + 1) + column.codes
    return len(np.unique(pairs)) > len(np.unique(within.codes))
