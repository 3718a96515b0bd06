"""Rules that real rows may keep to: what they say, and which rows keep to them.

Each is built from what a sample of real rows taught (`search`), and asks other rows. None of
this is a private release.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.evaluation.exact_rules.columns import CodedTable, Floats

Mask = NDArray[np.bool_]


class Asked(NamedTuple):
    """What rows say to a rule."""

    concerned: Mask
    """(N,) the rows that the rule says something of."""
    kept: Mask
    """(N,) the rows that keep to it, among those."""

    @property
    def share(self) -> float:
        """Share of the rows concerned that keep to it; NaN where there are none."""
        rows = int(self.concerned.sum())
        return float((self.kept & self.concerned).sum()) / rows if rows else float("nan")


class Rule(Protocol):
    """What a column has to do with others."""

    @property
    def target(self) -> str:
        """The column that it tells something of."""
        ...

    @property
    def given(self) -> str:
        """The column that it tells it by."""
        ...

    @property
    def says(self) -> str:
        """The rule in words."""
        ...

    def asked(self, rows: CodedTable) -> Asked:
        """Return what rows say to it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Line:
    """A number is a multiple of another one, and a constant.

    Args:
        target: column.
        given: column.
        slope: the multiple; 1 and -1 where that is all.
        offset: the constant.
    """

    target: str
    given: str
    slope: float
    offset: float

    @property
    def says(self) -> str:
        """See `Rule.says`."""
        signs = {1.0: "", -1.0: "-"}
        multiple = signs.get(self.slope, f"{self.slope:.4g} x ") + self.given
        more = f" {'-' if self.offset < 0 else '+'} {abs(self.offset):.4g}" if self.offset else ""
        return f"{self.target} = {multiple}{more}"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        expected = self.slope * rows.numbers[self.given] + self.offset
        return _near(rows, self.target, expected, rows.known(self.target, self.given))


@dataclass(frozen=True, kw_only=True, eq=False)
class Function:
    """A column follows from the level of another one.

    Args:
        target: column.
        given: column.
        values: (L,) what the target is at each level; NaN where too few rows told it.
    """

    target: str
    given: str
    values: Floats

    @property
    def says(self) -> str:
        """See `Rule.says`."""
        return f"{self.given} tells {self.target}"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        expected = self.values[rows.levels[self.given]]
        return _near(rows, self.target, expected, rows.known(self.target, self.given))


@dataclass(frozen=True, kw_only=True)
class Sum:
    """A number is the sum of several others, such as a total of its parts.

    Args:
        target: column.
        columns: of the others.
        signs: of each of them: 1, or -1 where it is taken off.
    """

    target: str
    columns: tuple[str, ...]
    signs: tuple[float, ...]

    @property
    def given(self) -> str:
        """See `Rule.given`."""
        return ", ".join(self.columns)

    @property
    def says(self) -> str:
        """See `Rule.says`."""
        terms = [
            f"{'-' if sign < 0 else '+'} {name}"
            for name, sign in zip(self.columns, self.signs, strict=True)
        ]
        return f"{self.target} = {' '.join(terms).removeprefix('+ ')}"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        parts = np.stack([rows.numbers[name] for name in self.columns], axis=1)
        told = rows.known(self.target, *self.columns)
        return _near(rows, self.target, parts @ np.array(self.signs), told)


@dataclass(frozen=True, kw_only=True)
class NotAbove:
    """A number is never larger than another one.

    Args:
        target: column of the smaller one.
        given: column of the larger one.
    """

    target: str
    given: str

    @property
    def says(self) -> str:
        """See `Rule.says`."""
        return f"{self.target} is never above {self.given}"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        above = rows.numbers[self.target] - rows.numbers[self.given]
        return Asked(rows.known(self.target, self.given), above <= rows.codings[self.target].near)


@dataclass(frozen=True, kw_only=True, eq=False)
class Picked:
    """A number is that of several others which a category picks, such as the price of a brand.

    Args:
        target: column.
        given: the category.
        columns: of the numbers.
        column: (L,) place of the picked one at each level; -1 where too few rows told it.
        sign: (L,) 1, or -1 where the target is less than nothing of it.
    """

    target: str
    given: str
    columns: tuple[str, ...]
    column: NDArray[np.int64]
    sign: Floats

    @property
    def says(self) -> str:
        """See `Rule.says`."""
        used = [self.columns[place] for place in np.unique(self.column[self.column >= 0])]
        some = ", ".join(used[:3]) + (", ..." if len(used) > 3 else "")
        minus = "less " if (self.sign[self.column >= 0] < 0).all() else ""
        return f"{self.target} is {minus}the one of {some} that {self.given} picks"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        level = rows.levels[self.given]
        numbers = np.stack([rows.numbers[name] for name in self.columns], axis=1)
        expected = self.sign[level] * numbers[np.arange(len(level)), self.column[level]]
        told = rows.known(self.target, self.given) & (self.column[level] >= 0)
        return _near(rows, self.target, expected, told)


@dataclass(frozen=True, kw_only=True, eq=False)
class NeverTogether:
    """Levels of two columns never meet.

    Args:
        target: column, of whose levels the rule speaks: the rarer ones.
        given: column.
        never: (L of the target, L of the given one) which of them never meet.
        example: the two that would meet most often.
    """

    target: str
    given: str
    never: Mask
    example: tuple[str, str]

    @property
    def says(self) -> str:
        """See `Rule.says`; a share is of the rows that come after 'where'."""
        more = int(self.never.sum()) - 1
        others = f" (and {more} more such pairs)" if more else ""
        mine, theirs = self.example
        return f"{self.given} is never {theirs} where {self.target} is {mine}{others}"

    def asked(self, rows: CodedTable) -> Asked:
        """See `Rule.asked`."""
        mine, theirs = rows.levels[self.target], rows.levels[self.given]
        speaks: Mask = np.any(self.never, axis=1)
        told = rows.known(self.target, self.given) & speaks[mine]
        return Asked(told, ~self.never[mine, theirs])


def _near(rows: CodedTable, target: str, expected: Floats, told: Mask) -> Asked:
    far = np.abs(rows.numbers[target] - expected) > rows.codings[target].near
    return Asked(told & ~np.isnan(expected), ~far)
