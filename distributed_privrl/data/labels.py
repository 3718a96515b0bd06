"""What the columns of a row are called where people read them: as in the table that they came from.

Names and values are declared, and as public as the spaces.
"""

from collections.abc import Iterator

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.data.declared import DeclaredTable, LabelledKind, width
from distributed_privrl.data.layout import LABEL, RowLayout
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, components

MISSING = ": missing"
"""After a number's name: the indicator that says that there is none."""


def column_labels(info: DatasetInfo) -> tuple[str, ...]:
    """Return the name of each column of a dataset's rows, ``(D,)``; see `RowLayout`.

    An action or reward that the table has not is called ``action`` or ``reward``. A column of a
    category is called e.g. ``ward is ICU``, or ``ward is missing``, a flag by its
    value for yes, ``sex: male``, and an indicator ``age: missing``. Rows that came from no table
    have the names of their layout.
    """
    layout = RowLayout(info.observation_space, info.action_space)
    if info.declared is None:
        return layout.column_names
    table = info.declared
    observation = list(_of_part(table, "observation", info.observation_space))
    action = list(_of_part(table, "action", info.action_space))
    after = [f"next {name}" for name in observation]
    (reward,) = table.columns.of("reward") or ("reward",)
    end = table.columns.termination or "terminal"
    return (*observation, *(action or ("action",)), reward, *after, end)


def shown_columns(info: DatasetInfo) -> NDArray[np.intp]:
    """Return the places of a row's columns, rising, without an action or reward that it has not."""
    layout = RowLayout(info.observation_space, info.action_space)
    shown = np.ones(layout.width, np.bool_)
    shown[layout.blocks["action"]], shown[layout.blocks["reward"]] = (
        info.has_action,
        info.has_reward,
    )
    return np.flatnonzero(shown)


def shown_labels(info: DatasetInfo) -> tuple[str, ...]:
    """Return the names of `shown_columns`."""
    labels = column_labels(info)
    return tuple(labels[place] for place in shown_columns(info))


def part_names(info: DatasetInfo, part: str) -> tuple[str, ...]:
    """Return which column of its table each number of an observation or action is of, ``(D,)``.

    All columns of 0 and 1 of a category have its name. Without a table, names are the layout's.

    Args:
        info: of the dataset.
        part: ``observation`` or ``action``.
    """
    space: Space = info.observation_space if part == "observation" else info.action_space
    categories = components(space)
    count = len(categories) or int(np.prod(space.shape or (1,)))
    if info.declared is None:
        return tuple(f"{part}_{i}" if space.shape else part for i in range(count))
    found: list[str] = []
    for name, kind in info.declared.part(part):
        if categories or isinstance(kind, LabelledKind):
            found += [name] * (1 if categories else width(kind))
        else:
            found += [name, f"{name}{MISSING}"][: width(kind)]
    return tuple(found)


def _of_part(table: DeclaredTable, part: str, space: Space) -> Iterator[str]:
    categories = components(space)
    for place, (name, kind) in enumerate(table.part(part)):
        if isinstance(kind, LabelledKind):
            yield from _of_labels(name, kind, flag=isinstance(space, Box) and width(kind) == 1)
        elif isinstance(space, Box):
            yield name
            if kind.missing == "indicator":
                yield f"{name}{MISSING}"
        else:
            start = int(categories[place].start)
            yield from (f"{name}{LABEL}{start + i}" for i in range(int(categories[place].n)))


def _of_labels(name: str, kind: LabelledKind, *, flag: bool) -> Iterator[str]:
    if flag:
        yield f"{name}: {kind.labels[1]}"
        return
    for label in kind.labels:
        yield f"{name}{LABEL}{'missing' if label is None else label}"
