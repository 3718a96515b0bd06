"""Joint counts that a configuration asks for, by the names of a table's columns."""

from collections.abc import Sequence

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.labels import part_names
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.tables import Clique

KEY = "training.together"
NEXT, END = "next ", "end"
"""How a configuration names what a step leads to, and whether it is the last."""
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
            a name for what a step leads to, and ``end``. Of a column that is counted as it is and
            as a change, what is released of it decides which is meant.

    Raises:
        ConfigError: no such column, or one that is named twice.
    """
    if not asked:
        return ()
    places: dict[str, int] = {}
    for place, column in enumerate(columns.columns):
        places.setdefault(_name(column, info), place)
    places.pop("", None)
    found = []
    for names in asked:
        if unknown := [name for name in names if name not in places]:
            raise ConfigError(
                f"{KEY} names {', '.join(unknown)}, which is no column of a row: there are"
                f" {_listed(list(places))}"
            )
        clique = tuple(sorted(places[name] for name in names))
        if len(set(clique)) < len(names):
            raise ConfigError(f"{KEY} names {', '.join(names)}: each column once")
        found.append(clique)
    return tuple(dict.fromkeys(found))


def _listed(names: Sequence[str]) -> str:
    """Return names for a message: all, or some of the table and how the others are called."""
    if len(names) <= _LISTED:
        return ", ".join(names)
    own = [name for name in names if not name.startswith(NEXT) and name != END]
    some = ", ".join(own[:_LISTED])
    more = "" if len(own) <= _LISTED else f" and {len(own) - _LISTED} more"
    others = [f"{NEXT}NAME of what moves"] * any(name.startswith(NEXT) for name in names)
    others += [END] * (END in names)
    return ", ".join([some + more, *others])


def _name(column: Column, info: DatasetInfo) -> str:
    """Return what the owner of the table calls a column; nothing for what is no column of it."""
    table = info.declared
    if column.part in ("observation", "action"):
        return part_names(info, column.part)[column.place]
    if column.part == "next_observation":
        return f"{NEXT}{part_names(info, 'observation')[column.place]}"
    if column.part == "reward":
        named = () if table is None else table.columns.of("reward")
        return named[0] if named else "reward"
    return END if column.part == "end" else ""
