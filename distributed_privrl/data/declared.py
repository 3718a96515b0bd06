"""What the owner of a table declares of its columns: roles, kinds, values; nothing is measured.

All of it is public: it is stored beside the spaces, and releases inherit it.
"""

import datetime
import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from distributed_privrl.core.config import StrictModel
from distributed_privrl.data.kept import Order
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, offsets_of

Columns = tuple[str, ...]
NEVER = "never"
"""In place of a column ``terminated``: nobody terminates."""
LAST = "last"
"""In place of a column ``terminated``: a trajectory's last row ends it."""
NONE = "none"
"""In place of columns: the table has none; of ``next_observation``: nothing follows a row."""
PARTS = ("observation", "action", "next_observation")
"""Roles that several columns may have together."""

Value = bool | int | float | str
Missing = Literal["null_row", "refuse"]
"""A missing value makes a null row, which methods leave out, or is an error."""


def column_names(columns: str | Sequence[str] | None) -> list[str]:
    """Return one name, several or none as a list."""
    if columns is None:
        return []
    return [columns] if isinstance(columns, str) else list(columns)


class ColumnsSchema(StrictModel):
    """Which column of a table, or which array of a file of arrays, holds what."""

    observation: str | Columns
    action: str | Columns = Field(description="none: nobody decides anything in the table")
    next_observation: str | Columns | None = Field(
        default=None, description="none: nothing follows a row, each stands for itself"
    )
    reward: str = Field(description="none: nothing in the table is a reward")
    terminated: str | None = Field(
        default=None,
        description="never (as by default), or last: a trajectory's last row ends it; or a column",
    )
    truncated: str | None = None
    order: str | None = Field(default=None, description="time within a trajectory; default: file")
    trajectory: str | None = Field(default=None, description="trajectory id")
    unit: str | None = Field(default=None, description="what one person contributes")

    @field_validator("unit")
    @classmethod
    def _unit_name(cls, unit: str | None) -> str | None:
        if unit in (TRANSITION, TRAJECTORY):
            raise ValueError(f"a unit column cannot be called {unit}: rename it")
        return unit

    @property
    def has_action(self) -> bool:
        """Whether the table has columns of an action."""
        return self.action != NONE

    @property
    def has_reward(self) -> bool:
        """Whether the table has a column of a reward."""
        return self.reward != NONE

    @property
    def has_successors(self) -> bool:
        """Whether something follows a row."""
        return self.next_observation != NONE

    @property
    def following(self) -> list[str]:
        """The columns of next observations; empty where none are named."""
        return self.of("next_observation")

    def of(self, role: str) -> list[str]:
        """Return the columns that have a role, by its key in the schema; empty where none have."""
        named = getattr(self, role)
        return [] if named == NONE else column_names(named)

    @property
    def termination(self) -> str | None:
        """The column that says which rows terminate; None: no column does."""
        return None if self.terminated in (NEVER, LAST) else self.terminated

    @property
    def named(self) -> list[str]:
        """All columns of the table that have a role, each once."""
        last = ("next_observation", "terminated")
        roles = (role for role in type(self).model_fields if role not in last)
        names = [name for role in roles for name in self.of(role)]
        names += [*self.following, *column_names(self.termination)]
        return list(dict.fromkeys(names))


class ColumnKind(StrictModel):
    """What every kind may say."""

    lasting: bool = Field(
        default=False, description="of an observation: it stays for a whole trajectory"
    )


AT_MOST: Any = Field(
    default=None, description="of an observation: another column of it, which it is never above"
)
RISING: Any = Field(
    default=False, description="of an observation: it never falls within a trajectory"
)


class NumberKind(ColumnKind):
    """A number."""

    type: Literal["number"] = "number"
    missing: Literal["null_row", "refuse", "indicator"] = Field(
        default="null_row", description="indicator: a second column says that there is none"
    )
    whole: bool = Field(
        default=False, description="exports round it to a whole number, and write it as one"
    )
    at_most: str | None = AT_MOST
    rising: bool = RISING


class CategoryKind(ColumnKind):
    """One of some values: texts, numbers or truth values, as the table has them."""

    type: Literal["category"]
    values: Annotated[tuple[Value, ...], Field(min_length=2)]
    missing: Literal["null_row", "refuse", "own"] = Field(
        default="null_row", description="own: a category of its own"
    )

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Value, ...]) -> tuple[Value, ...]:
        texts = [value_text(value) for value in values]
        if twice := sorted({text for text in texts if texts.count(text) > 1}):
            raise ValueError(f"{', '.join(twice)} stands there twice")
        return values

    @property
    def labels(self) -> tuple[Value | None, ...]:
        """The value of each category; None: there is none, as the last one may say."""
        return (*self.values, None) if self.missing == "own" else self.values


class FlagKind(ColumnKind):
    """Yes or no, as 1 or 0, or as two values of the table: the one for no first."""

    type: Literal["flag"]
    values: tuple[Value, Value] = (0, 1)
    missing: Literal["null_row", "refuse", "own"] = "null_row"

    @property
    def labels(self) -> tuple[Value | None, ...]:
        """As `CategoryKind.labels`."""
        return (*self.values, None) if self.missing == "own" else self.values


class DateKind(ColumnKind):
    """A date or a time, as the whole units that passed since the origin; UTC, if it has a zone."""

    type: Literal["date"]
    unit: Literal["days", "hours", "minutes", "seconds"] = "days"
    origin: datetime.date | datetime.datetime = datetime.date(1970, 1, 1)
    missing: Literal["null_row", "refuse", "indicator"] = "null_row"
    at_most: str | None = AT_MOST
    rising: bool = RISING

    @property
    def origin_time(self) -> datetime.datetime:
        """The origin as a time, UTC without saying so."""
        if not isinstance(self.origin, datetime.datetime):
            return datetime.datetime.combine(self.origin, datetime.time())
        if self.origin.tzinfo is not None:
            return self.origin.astimezone(datetime.UTC).replace(tzinfo=None)
        return self.origin


LabelledKind = CategoryKind | FlagKind
AnyKind = NumberKind | CategoryKind | FlagKind | DateKind
Kind = Annotated[AnyKind, Field(discriminator="type")]
NUMBER = NumberKind()


class Gaps(NamedTuple):
    """Places of numbers that may be missing, each with an indicator beside it that says so."""

    observation: tuple[int, ...] = ()
    action: tuple[int, ...] = ()


NO_GAPS = Gaps()


class DeclaredTable(StrictModel):
    """Roles and kinds of a table's columns.

    Example:
        >>> DeclaredTable(
        ...     columns={"observation": ["age", "ward"], "action": "dose", "reward": "gain"},
        ...     kinds={"ward": {"type": "category", "values": ["A", "B"]}},
        ... ).widths("observation")
        [1, 2]
    """

    columns: ColumnsSchema
    kinds: dict[str, Kind] = Field(
        default_factory=dict, description="what columns hold that are no plain numbers"
    )

    @field_validator("kinds")
    @classmethod
    def _fitting(cls, kinds: dict[str, AnyKind], info: ValidationInfo) -> dict[str, AnyKind]:
        columns: ColumnsSchema | None = info.data.get("columns")
        for name, kind in kinds.items():
            if columns is not None and (problem := _misfit(name, kind, columns)):
                raise ValueError(f"{name} {problem}")
            if columns is not None and (problem := _disorder(name, kinds, columns)):
                raise ValueError(f"{name} {problem}")
        if columns is not None:
            observed = column_names(columns.observation)
            if observed and all(one in kinds and kinds[one].lasting for one in observed):
                raise ValueError(
                    "all columns of the observation are lasting: nothing would ever change; name"
                    " there what changes, too, such as an outcome, and as lasting only what"
                    " a person keeps, such as a year of birth"
                )
        return kinds

    def kind(self, column: str) -> AnyKind:
        """Return what a column holds; a plain number, if nothing is declared."""
        return self.kinds.get(column, NUMBER)

    def part(self, name: str) -> list[tuple[str, AnyKind]]:
        """Return the columns of an observation or action, and what they hold."""
        return [(one, self.kind(one)) for one in self.columns.of(name)]

    def same_labels(self, other: "DeclaredTable") -> bool:
        """Say whether numbers of both mean the same categories, flags and dates, by position."""
        return all(
            [_meaning(kind) for _, kind in self.part(name)]
            == [_meaning(kind) for _, kind in other.part(name)]
            for name in ("observation", "action")
        )

    def lasting(self, *, held: bool) -> tuple[int, ...]:
        """Return the places of the observation that stay for a whole trajectory.

        Args:
            held: they are numbers of a Box, which takes several for a category; else columns.
        """
        return tuple(chain(*self.lasting_by_name(held=held).values()))

    def lasting_by_name(self, *, held: bool) -> dict[str, range]:
        """Return the same by the name of each column."""
        places = self._places(held=held)
        return {name: found for name, found in places.items() if self.kind(name).lasting}

    def rising(self, *, held: bool) -> tuple[int, ...]:
        """Return the places of the observation's numbers that never fall within a trajectory.

        They are those that are declared to rise, and the one by which rows are ordered. Where the
        table names next observations, the latter may be anything after a step.

        Args:
            held: as in `lasting`.
        """
        ordered = None if self.columns.following else self.columns.order
        return tuple(
            found.start
            for name, found in self._places(held=held).items()
            if rises(self.kind(name)) or (name == ordered and _may_rise(self.kind(name)))
        )

    @property
    def gaps(self) -> Gaps:
        """Which numbers of a Box have an indicator beside them."""
        return Gaps(*(self._gaps_in(part) for part in Gaps._fields))

    def _gaps_in(self, name: str) -> tuple[int, ...]:
        starts = offsets_of(np.array(self.widths(name), np.int64)).tolist()
        return tuple(
            start
            for start, (_, kind) in zip(starts, self.part(name), strict=False)
            if kind.missing == "indicator"
        )

    def rising_by_name(self, *, held: bool) -> dict[str, range]:
        """Return the places of those that are declared to rise, by the name of each column."""
        places = self._places(held=held)
        return {name: found for name, found in places.items() if rises(self.kind(name))}

    def _places(self, *, held: bool) -> dict[str, range]:
        """Return where each column of the observation is in it, by its name."""
        part = self.part("observation")
        widths = [width(kind) if held else 1 for _, kind in part]
        starts = offsets_of(np.array(widths)).tolist()
        return {
            name: range(start, stop)
            for (name, _), (start, stop) in zip(part, pairwise(starts), strict=True)
        }

    def orders(self, *, held: bool) -> dict[str, Order]:
        """Return which number of the observation is never above another one, by its column.

        A column's limit comes before the column.

        Args:
            held: as in `lasting`.
        """
        starts = {name: places.start for name, places in self._places(held=held).items()}
        found: dict[str, Order] = {}

        def add(name: str) -> None:
            limit = limit_of(self.kind(name))
            if limit is None or name in found:
                return
            add(limit)
            gaps = [one for one in (name, limit) if held and self.kind(one).missing == "indicator"]
            found[name] = Order(starts[name], starts[limit], tuple(starts[one] + 1 for one in gaps))

        for name in starts:
            add(name)
        return found

    def widths(self, name: str) -> list[int]:
        """Return how many numbers of a Box each column of an observation or action takes."""
        return [width(kind) for _, kind in self.part(name)]


def _misfit(name: str, kind: AnyKind, columns: ColumnsSchema) -> str | None:
    """Return what is wrong with the kind of a column; None: nothing."""
    if kind.lasting and name not in columns.of("observation"):
        return (
            "is lasting, which only a column of the observation can be: name it under observation"
            " (action: none and reward: none are allowed), or leave lasting out"
        )
    if kind.lasting and not columns.has_successors:
        return "is lasting, and nothing follows a row: leave it out"
    if rises(kind) and (problem := _no_rise(name, kind, columns)):
        return f"is rising, {problem}"
    if name in (*columns.of("observation"), *columns.of("action")):
        return None
    if name in columns.of("reward"):
        beside = kind.missing in ("own", "indicator")
        if beside or isinstance(kind, CategoryKind):
            return (
                "is the reward, which must be a number, flag or date, without missing: own or"
                " indicator: declare it so, or name it under observation, with reward: none"
            )
    elif name in (columns.termination, columns.truncated):
        if not isinstance(kind, FlagKind) or kind.missing == "own":
            return "ends trajectories: it must be a flag that is there in every row"
    elif name in columns.following:
        return "is a next observation, of the kind of its observation: declare that"
    else:
        return "is no observation, action, reward or end: remove it"
    return None


def rises(kind: AnyKind) -> bool:
    """Say whether a column of a kind is declared never to fall within a trajectory."""
    return isinstance(kind, NumberKind | DateKind) and kind.rising


def _may_rise(kind: AnyKind) -> bool:
    return isinstance(kind, NumberKind | DateKind) and kind.missing != "indicator"


def _no_rise(name: str, kind: AnyKind, columns: ColumnsSchema) -> str | None:
    """Return why a column cannot rise, with what to do; None: it can."""
    if name not in columns.of("observation"):
        return (
            "which only a column of the observation can be: name it under observation, or leave"
            " rising out"
        )
    if not columns.has_successors:
        return "and nothing follows a row: leave rising out"
    if kind.lasting:
        return "and lasting, so that it never changes: leave rising out"
    if not _may_rise(kind):
        return (
            "and may be missing: nobody knows whether it falls across a gap; leave rising or"
            " missing: indicator out"
        )
    return None


def limit_of(kind: AnyKind) -> str | None:
    """Return the column that one of a kind is never above; None: none is declared."""
    return kind.at_most if isinstance(kind, NumberKind | DateKind) else None


def _disorder(name: str, kinds: Mapping[str, AnyKind], columns: ColumnsSchema) -> str | None:
    """Return what is wrong with the limit of a column; None: nothing."""
    kind = kinds[name]
    limit = limit_of(kind)
    if limit is None:
        return None
    observed, other = columns.of("observation"), kinds.get(limit, NUMBER)
    if name not in observed or limit not in observed:
        return (
            f"has at_most: {limit}, and both must be columns of the observation: a released row is"
            " made to keep to it there"
        )
    if isinstance(kind, NumberKind) and isinstance(other, NumberKind):
        if kind.whole != other.whole:
            return (
                f"has at_most: {limit}, and only one of both is whole: rounding would break it;"
                " declare whole: true for both, or for neither"
            )
    elif not isinstance(other, DateKind) or _meaning(kind) != _meaning(other):
        return (
            f"has at_most: {limit}, which is of another kind: both must be numbers, or dates of one"
            " unit and origin"
        )
    if kind.lasting and not other.lasting:
        return f"is lasting, and has at_most: {limit}, which is not: it would change with that"
    if rises(kind) and not (rises(other) or other.lasting):
        return (
            f"is rising, and has at_most: {limit}, which may fall: it would fall with that; declare"
            f" {limit} as rising or lasting, too, or leave one of both out"
        )
    seen = [name]
    while limit is not None:
        if limit in seen:
            return f"has at_most in a circle: {', '.join([*seen, limit])}; leave one out"
        seen.append(limit)
        limit = limit_of(kinds.get(limit, NUMBER))
    return None


def _meaning(kind: AnyKind) -> Any:
    if isinstance(kind, LabelledKind):
        return kind.labels
    return (kind.unit, kind.origin) if isinstance(kind, DateKind) else width(kind)


def width(kind: AnyKind) -> int:
    """Return how many numbers of a Box a value takes."""
    if isinstance(kind, LabelledKind):
        size = len(kind.labels)
        return 1 if isinstance(kind, FlagKind) and size == 2 else size
    return 2 if kind.missing == "indicator" else 1


def groups(kinds: Sequence[AnyKind]) -> list[tuple[int, int]]:
    """Return which numbers of a Box hold a category or flag: first and last but one of each."""
    found, start = [], 0
    for kind in kinds:
        stop = start + width(kind)
        if isinstance(kind, LabelledKind):
            found.append((start, stop))
        elif kind.missing == "indicator":
            found.append((stop - 1, stop))
        start = stop
    return found


_WHOLE = re.compile(r"(-?)0*([0-9]+?)(?:[.]0*)?")
"""A whole number, however it is written."""


def value_text(value: Any) -> str:
    """Return a value as text, the same whether a number was read as 7 or 7.0."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def unit_text(value: Any) -> str:
    """Return whose name a value is: of 7, 7.0, "7", "7.0", " 7" and "007" the same.

    Letters are taken as they stand, in their canonical form (NFKC), without spaces around them and
    without characters that nobody sees.

    Privacy: what is guaranteed is guaranteed to a unit. A person in two spellings, as where a
    column with gaps was written as 7.0, would be two, with twice the influence that is charged. Two
    people who are taken for one share a guarantee that covers each of them.
    """
    text = unicodedata.normalize("NFKC", value_text(value))
    if not text.isascii():
        text = "".join(one for one in text if unicodedata.category(one) != "Cf")
    text = text.strip()
    whole = _WHOLE.fullmatch(text)
    return f"{whole[1]}{whole[2]}" if whole else text
