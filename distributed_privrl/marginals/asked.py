"""Joint counts that a configuration asks for, by the names of a table's columns."""

from collections.abc import Sequence
from typing import Any

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.labels import part_names
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.tables import Clique

KEY = "training.together"
NEXT, LEVEL, END = "next ", "level ", "end"
"""How a configuration names what a step leads to, a level so far, and whether a step is the last.
"""
_LISTED = 20
"""Names that a message has at most, before it says how others are called."""


def cliques_asked(
    columns: TableColumns, info: DatasetInfo, asked: Sequence[Sequence[str]]
) -> tuple[Clique, ...]:
    """Return the columns that are to be counted together in any case, in their order.

    Args:
        columns: of the table.
        info: of the dataset, whose columns have the names that their owner gave them.
        asked: names of two or three columns of a row each: those of the table, ``next`` and such
            a name for what a step leads to, ``level`` and one for its level so far, and ``end``.
            Of a column that is counted as it is and as a change, what is released of it decides
            which is meant. A number that may be missing and its gaps are one column.

    Raises:
        ConfigError: no such column, or one that is named twice.
    """
    if not asked:
        return ()
    places: dict[str, int] = {}
    for place, column in enumerate(columns.columns):
        for name in _names(column, info):
            places.setdefault(name, place)
    found = []
    for names in asked:
        if unknown := [name for name in names if name not in places]:
            raise ConfigError(
                f"{KEY} names {', '.join(unknown)}, which is no column of a row: there are"
                f" {_listed(list(places))}"
            )
        clique = tuple(sorted({places[name] for name in names}))
        if len(set(names)) < len(names) or len(clique) < 2:
            raise ConfigError(f"{KEY} names {', '.join(names)}: each column once")
        found.append(clique)
    return tuple(dict.fromkeys(found))


def levels_asked(columns: TableColumns) -> tuple[Clique, ...]:
    """Return each level so far with what its number becomes, which are counted in any case.

    Args:
        columns: of the table. Of a number that is told in two ways either one is meant.
    """
    after = {columns[i].place: i for i in columns.of("next_observation")[::-1]}
    return tuple((after[columns[i].place], i) for i in columns.of("memory"))


def names_asked(config: Any) -> list[tuple[str, ...]]:
    """Return the names of all that a run's configuration asks for, as a report calls them.

    Args:
        config: of any method.
    """
    levels = getattr(getattr(config, "model", None), "memory", ())
    together = getattr(getattr(config, "training", None), "together", ())
    return [*((f"{LEVEL}{name}", f"{NEXT}{name}") for name in dict.fromkeys(levels)), *together]


def _listed(names: Sequence[str]) -> str:
    """Return names for a message: all, or some of the table and how the others are called."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    own = [name for name in names if not name.startswith((NEXT, LEVEL)) and name != END]
    some = ", ".join(own[:_LISTED])
    more = "" if len(own) <= _LISTED else f" and {len(own) - _LISTED} more"
    others = [f"{NEXT}NAME of what moves"] * any(name.startswith(NEXT) for name in names)
    others += [END] * (END in names)
    return ", ".join([some + more, *others])


def _names(column: Column, info: DatasetInfo) -> list[str]:
    """Return what the owner of the table calls a column; nothing for what is no column of it.

    A number that may be missing has two names: its own, and that of its gaps.
    """
    table = info.declared
    if column.part == "reward":
        named = () if table is None else table.columns.of("reward")
        return [named[0] if named else "reward"]
    if column.part == "end":
        return [END]
    before = {"observation": "", "action": "", "next_observation": NEXT, "memory": LEVEL}
    if column.part not in before:
        return []
    part = "action" if column.part == "action" else "observation"
    missing = column.place in getattr(info.gaps, part)
    own = part_names(info, part)[column.place : column.place + 1 + missing]
    return [f"{before[column.part]}{name}" for name in own]
