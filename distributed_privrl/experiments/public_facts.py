"""The section of a report that says what of a release was public before it was made."""

from pathlib import Path

from gymnasium.spaces import Box

from distributed_privrl.core.config import DataConfig, NoisyBounds, NoisyCount, OutputConfig
from distributed_privrl.data.labels import column_labels
from distributed_privrl.data.layout import RowLayout, category_of
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, box_bounds, components, groups_of
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.privacy.metrics import PublicValue, Shown
from distributed_privrl.stages.encoders import bounds_source

_MOST_VALUES = 12
"""Of a category, that are named."""


def facts_section(data: DataConfig, output: OutputConfig, info: DatasetInfo) -> Section:
    """Return what the owner declared, and the configuration chose: it was not found in the rows.

    Args:
        data: of the run's configuration.
        output: of the same.
        info: of the release, which has the spaces and columns that were declared.

    Privacy:
        Public facts alone; no event.
    """
    counted = output.COUNTED or "rows"
    facts: list[tuple[str, Shown, str]] = [
        ("unit", data.unit, "what the guarantee protects, whole"),
        ("units", *_units(data)),
        (counted, output.size, "synthetic ones: a choice, not the number of real ones"),
        ("bounds of the columns", *_bounds(data)),
    ]
    if data.max_length is not None:
        facts.append(("rows of a unit", data.max_length, "at most; further ones are left out"))
    if data.public:
        facts.append(("public datasets", ", ".join(data.public), "declared public by their owner"))
    facts += [(f"column {name}", kind, role) for name, kind, role in _columns(info)]
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
    if isinstance(source, Path):
        return "declared", "in a file, written from public knowledge"
    return source, "taken from public data" if source == "public" else "of the simulator"


def _columns(info: DatasetInfo) -> list[tuple[str, str, str]]:
    """Return the name, the kind and the role of each column of a row."""
    blocks, labels = (
        RowLayout(info.observation_space, info.action_space).blocks,
        column_labels(info),
    )
    found = [
        (name, kind, role)
        for role, space in (
            ("observation", info.observation_space),
            ("action", info.action_space),
        )
        for name, kind in _of_part(space, labels[blocks[role]])
    ]
    return [*found, (labels[blocks["reward"]][0], "number", "reward")]


def _of_part(space: Space, names: tuple[str, ...]) -> list[tuple[str, str]]:
    found, place = [], 0
    if not isinstance(space, Box):
        for component in components(space):
            found.append(_category(names[place : place + int(component.n)]))
            place += int(component.n)
        return found
    low, high = box_bounds(space)
    groups = dict(groups_of(space))
    while place < len(names):
        stop = groups.get(place, place + 1)
        if stop - place > 1:
            found.append(_category(names[place:stop]))
        elif place in groups:
            found.append((names[place], "yes or no"))
        else:
            found.append((names[place], f"number from {low[place]:g} to {high[place]:g}"))
        place = stop
    return found


def _category(names: tuple[str, ...]) -> tuple[str, str]:
    values = [category_of(name)[1] for name in names]
    more = [] if len(values) <= _MOST_VALUES else ["..."]
    listed = ", ".join([*values[:_MOST_VALUES], *more])
    return category_of(names[0])[0], f"one of {len(values)}: {listed}"
