"""The section of a report that lists declared values which no row of a release has."""

from collections.abc import Mapping
from operator import itemgetter

import numpy as np

from distributed_privrl.data.declared import AnyKind, LabelledKind
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.named_rows import named_rows
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.public_facts import MOST_VALUES

TITLE = "Declared, and in no row"
GAP = "missing"
"""What stands for a missing value."""
_EXPLANATION = (
    "Values that the owner declared, and that none of these rows has. People of the real table may"
    " have them or not: noise hides what few people have."
)


def unseen_sections(store: DatasetStore, source: Sourced[str]) -> list[Section]:
    """Return which declared values no row of a release has; none without such columns.

    Args:
        store: datasets.
        source: id of the release; what it is to the world, all of the section is.

    Privacy:
        Post-processing of the released rows, and of kinds of columns that are declared; no event.
    """
    info = store.info(source.content)
    declared = _declared(info)
    if not declared:
        return []
    kinds = dict(_kinds(info))
    found = source.then(lambda made: unseen_values(store, made))
    lines = [
        Metric(
            name=f"column {name}",
            value=found.then(itemgetter(name)).value(_in_words),
            explanation=f"{len(found.content[name])} of {len(declared[name])} declared values"
            if isinstance(kinds[name], LabelledKind)
            else "the gap that is declared",
        )
        for name in found.content
    ]
    count = Metric(
        name="declared values that no row has",
        value=found.value(lambda every: sum(map(len, every.values()))),
        explanation=f"of {sum(map(len, declared.values()))}, in all columns of categories, flags"
        " and gaps",
    )
    return [Section(title=TITLE, explanation=_EXPLANATION, metrics=[count, *lines])]


def unseen_values(store: DatasetStore, dataset: str) -> dict[str, list[str]]:
    """Return the declared values that no row of a dataset has, by column; without full columns.

    Args:
        store: datasets.
        dataset: id of one that came from a table.
    """
    info = store.info(dataset)
    declared = _declared(info)
    seen = {name: np.zeros(len(values), np.bool_) for name, values in declared.items()}
    for chunk in store.iter_transitions(dataset, unit=TRANSITION):
        rows = named_rows(chunk, np.ones(len(chunk), np.bool_), info)
        columns = iter((*rows.state, *rows.action))
        for name, kind in _kinds(info):
            column = rows.frame[next(columns)]
            if isinstance(kind, LabelledKind):
                codes = column.cat.codes
                seen[name][codes[codes >= 0].unique()] = True
            elif name in seen:
                seen[name] |= bool((rows.frame[next(columns)].cat.codes == 1).any())
    return {
        name: [value for value, is_seen in zip(values, seen[name], strict=True) if not is_seen]
        for name, values in declared.items()
        if not seen[name].all()
    }


def _kinds(info: DatasetInfo) -> list[tuple[str, AnyKind]]:
    """Return the columns of the observation and the action, and what they hold."""
    assert info.declared is not None
    return [*info.declared.part("observation"), *info.declared.part("action")]


def _declared(info: DatasetInfo) -> Mapping[str, list[str]]:
    """Return the values of categories and flags, and the gaps of numbers, that are declared."""
    found: dict[str, list[str]] = {}
    for name, kind in _kinds(info) if info.declared is not None else ():
        if isinstance(kind, LabelledKind):
            found[name] = [GAP if label is None else str(label) for label in kind.labels]
        elif kind.missing == "indicator":
            found[name] = [GAP]
    return found


def _in_words(values: list[str]) -> str:
    more = len(values) - MOST_VALUES
    return ", ".join([*values[:MOST_VALUES], *([f"and {more} more"] if more > 0 else [])])
