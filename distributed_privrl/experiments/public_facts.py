"""The sections of a report that say what was public before, and which bounds were paid for."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from gymnasium.spaces import Box

from distributed_privrl.core.config import (
    DataConfig,
    NoisyBounds,
    NoisyCount,
    OutputConfig,
    RunConfig,
)
from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.core.places import Place
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.labels import column_labels
from distributed_privrl.data.layout import RowLayout, category_of
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, components, groups_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import PublicValue, Shown, settled_answer
from distributed_privrl.privacy.units import TRANSITION, Relation
from distributed_privrl.stages.bounding import BOUNDS, found_bounds, searched_columns
from distributed_privrl.stages.encoders import bounds_of, bounds_source, search_ranges

MOST_VALUES = 12
"""Of a category, that are named."""
ROLES = ("observation", "action", "reward")
"""Of a column, as the explanation of its kind names them."""


def facts_sections(
    config: RunConfig, ranges: Bounds | None, ledger: Ledger, run_id: str, info: DatasetInfo
) -> list[Section]:
    """Return what was public before the run and, where bounds were found with noise, which.

    Args:
        config: of a run that released a dataset.
        ranges: see `public_ranges`.
        ledger: that the run was charged to; one that does not know it has no bounds to tell.
        run_id: of the run.
        info: of the release, which has the spaces and columns that were declared.

    Privacy:
        Public facts, and post-processing of the stage ``bounds``; no event.
    """
    assert isinstance(config.output, OutputConfig)
    sections = [facts_section(config.data, config.output, info, ranges)]
    if isinstance(config.data.bounds, NoisyBounds) and ranges is not None:
        sections += _found_sections(config.data.bounds, ranges, ledger, run_id, info)
    return sections


def public_ranges(config: RunConfig, store: DatasetStore) -> Bounds | None:
    """Return the bounds of the run's columns, or the ranges that they were searched in.

    None: the run did without, as a simulator may have none, or their file is not here any more.

    Args:
        config: of the run.
        store: of its datasets, whose declared spaces and public rows are read.
    """
    try:
        ranges = search_ranges(config.data, store, relation=Relation(config.privacy.relation))
        return bounds_of(config.data, store) if ranges is None else ranges
    except PrivRLError:
        return None


def _found_sections(
    asked: NoisyBounds, ranges: Bounds, ledger: Ledger, run_id: str, info: DatasetInfo
) -> list[Section]:
    """Return the section on bounds that were paid for; none, if the ledger does not hold them."""
    name = f"{run_id}/{BOUNDS}"
    entry, stored = ledger.reserved(name), ledger.answer(name)
    if entry is None or stored is None:
        return []
    found = settled_answer(entry, stored["answer"]).then(partial(found_bounds, asked, ranges))
    names = dict(zip(_keys(info), column_labels(info), strict=True))

    def words(bounds: Bounds, place: int) -> str:
        return f"{bounds.low[place]:g} to {bounds.high[place]:g}"

    return [
        Section(
            title="Bounds that were found with noise",
            explanation="Quantiles of the sensitive rows, released once with noise (stage"
            f" {BOUNDS}), were the bounds of these columns. They are no least and greatest value.",
            metrics=[
                Metric(
                    name=f"column {names[ranges.columns[place]]}",
                    value=found.map(partial(words, place=place)),
                )
                for place in searched_columns(asked, ranges).tolist()
            ],
        )
    ]


def _keys(info: DatasetInfo) -> tuple[str, ...]:
    """Return the name of each column of a row as bounds have it."""
    return RowLayout(info.observation_space, info.action_space).column_names


def facts_section(
    data: DataConfig, output: OutputConfig, info: DatasetInfo, ranges: Bounds | None
) -> Section:
    """Return what the owner declared, and the configuration chose: it was not found in the rows.

    Args:
        data: of the run's configuration.
        output: of the same.
        info: of the release, which has the spaces and columns that were declared.
        ranges: public; bounds of the columns, or where they were searched; None: as the spaces.

    Privacy:
        Public facts alone; no event.
    """
    counted = output.COUNTED or "rows"
    facts: list[tuple[str, Shown, str]] = [
        ("unit", data.unit, "what the guarantee protects, whole"),
        ("units", *_units(data)),
        (counted, output.size, _size_in_words(counted, data.unit)),
        ("bounds of the columns", *_bounds(data)),
    ]
    if data.max_length is not None:
        facts.append(("rows of a unit", data.max_length, "at most; further ones are left out"))
    if data.public:
        facts.append(("public datasets", ", ".join(data.public), "declared public by their owner"))
    facts += [(f"column {name}", kind, role) for name, kind, role in _columns(data, info, ranges)]
    return Section(
        title="What was public before",
        explanation="Names and values of columns, their ranges and the sizes below were declared by"
        " the owner of the data, or chosen in the configuration, without a look at single rows."
        " Whoever reads this report may know them; the guarantee is about everything else.",
        metrics=[
            Metric(name=name, value=PublicValue(value), explanation=note)
            for name, value, note in facts
        ],
    )


def _size_in_words(counted: str, unit: str) -> str:
    """Return what the size of a release says, and what rows on their own do not."""
    words = "synthetic ones: a choice, not the number of real ones"
    if counted == "rows" and unit != TRANSITION:
        return f"{words}; each on its own: none tells which belong to the same {unit}"
    return words


def _units(data: DataConfig) -> tuple[Shown, str]:
    if isinstance(data.units, NoisyCount):
        return "counted with noise", "see the stages above"
    if data.units is None:
        return "not declared", "the run did not need their number"
    return data.units, "declared public"


def _bounds(data: DataConfig) -> tuple[Shown, str]:
    source = bounds_source(data)
    if isinstance(source, NoisyBounds):
        return "found with noise", "see the stages above"
    if isinstance(source, Place):
        return "declared", "in a file, written from public knowledge"
    return source, "taken from public data" if source == "public" else "of the simulator"


def _columns(
    data: DataConfig, info: DatasetInfo, ranges: Bounds | None
) -> list[tuple[str, str, str]]:
    """Return the name, the kind and the role of each column of a row."""
    layout, labels = RowLayout(info.observation_space, info.action_space), column_labels(info)
    numbers = [_number(*sides) for sides in zip(*layout.limits, strict=True)]
    if ranges is not None:
        for key, words in _ranges_in_words(data, ranges):
            numbers[layout.column_names.index(key)] = words
    found = []
    parts: list[tuple[str, Space]] = [("observation", info.observation_space)]
    if info.has_action:
        parts.append(("action", info.action_space))
    for role, space in parts:
        block = layout.blocks[role]
        found += [
            (name, kind, role) for name, kind in _of_part(space, labels[block], numbers[block])
        ]
    if not info.has_reward:
        return found
    (reward,) = range(*layout.blocks["reward"].indices(layout.width))
    return [*found, (labels[reward], numbers[reward], "reward")]


def _ranges_in_words(data: DataConfig, ranges: Bounds) -> Iterator[tuple[str, str]]:
    """Yield the name of each bounded column, and what its bounds say of it."""
    searched: Sequence[int] = ()
    if isinstance(data.bounds, NoisyBounds):
        searched = searched_columns(data.bounds, ranges).tolist()
    where = " in the public datasets" if bounds_source(data) == "public" else ""
    for place, key in enumerate(ranges.columns):
        words = f"{_number(ranges.low[place], ranges.high[place])}{where}"
        yield key, f"{words}, in which bounds were searched" if place in searched else words


def _number(low: float, high: float) -> str:
    """Return what a column of numbers can hold, in words; a side without a bound has none."""
    sides = [f"from {low:g}"] * bool(np.isfinite(low)) + [f"to {high:g}"] * bool(np.isfinite(high))
    return " ".join(["number", *sides])


def _of_part(space: Space, names: tuple[str, ...], numbers: Sequence[str]) -> list[tuple[str, str]]:
    found, place = [], 0
    if not isinstance(space, Box):
        for component in components(space):
            found.append(_category(names[place : place + int(component.n)]))
            place += int(component.n)
        return found
    groups = dict(groups_of(space))
    while place < len(names):
        stop = groups.get(place, place + 1)
        if stop - place > 1:
            found.append(_category(names[place:stop]))
        elif place in groups:
            found.append((names[place], "yes or no"))
        else:
            found.append((names[place], numbers[place]))
        place = stop
    return found


def _category(names: tuple[str, ...]) -> tuple[str, str]:
    values = [category_of(name)[1] for name in names]
    more = [] if len(values) <= MOST_VALUES else ["..."]
    listed = ", ".join([*values[:MOST_VALUES], *more])
    return category_of(names[0])[0], f"one of {len(values)}: {listed}"
