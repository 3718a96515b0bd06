"""Which columns the table of a dataset has, by its spaces and public bounds."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box, Discrete

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import NO_GAPS, Gaps
from distributed_privrl.data.spaces import Space, components, groups_of
from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.column import Column, NextObservation, Part
from distributed_privrl.marginals.columns import TableColumns

_MANY = 8
"""Values of a category whose pair with what it becomes would drown in noise."""


def step_columns(
    observation_space: Space,
    action_space: Space,
    bounds: Bounds,
    *,
    next_observation: NextObservation,
    ends: int = 2,
    lasting: Sequence[int] = (),
    rising: Sequence[int] = (),
    has_reward: bool = True,
    gaps: Gaps = NO_GAPS,
) -> TableColumns:
    """Return the columns of a transition: (s, a, r, s', end).

    An action that has one category tells nothing, and is no column.

    Args:
        observation_space: of the dataset.
        action_space: of the dataset.
        bounds: public, or paid for, of every numeric column.
        next_observation: numbers after a step as they are, as changes, or both; categories as they
            are, and where both are counted those of many values as changes, too. Where both are,
            numbers that may be missing are counted as they are: after a gap nobody knows from
            where they change.
        ends: of `ENDS` that are told apart; 1: nothing ends.
        lasting: places of the observation's numbers that stay: nothing is counted of them after a
            step.
        rising: places of those that never fall, such as the time that orders the rows.
        has_reward: False: each reward is 0, and no column.
        gaps: which numbers of the observation and of the action have an indicator beside them. It
            is no column: a row without a number is in a cell of the number's own.

    Raises:
        ConfigError: a number has an empty range.
    """
    cells = {
        name: _cells(name, low, high, step)
        for name, low, high, step in zip(
            bounds.columns, bounds.low, bounds.high, bounds.step, strict=True
        )
        if name != "reward" or has_reward
    }
    before = _part_columns("observation", observation_space, cells, gaps.observation)
    decided = not (isinstance(action_space, Discrete) and action_space.n == 1)
    actions = _part_columns("action", action_space, cells, gaps.action) if decided else []
    rewards = [Column(name="reward", part="reward", cells=cells["reward"])] if has_reward else []
    moving = [(place, one) for place, one in enumerate(before) if one.place not in lasting]
    after = [
        _after(
            column,
            place,
            difference=next_observation == "difference" and column.cells is not None,
            rising=column.place in rising,
        )
        for place, column in moving
    ]
    if next_observation == "counted":
        after += [
            replace(
                _after(column, place, difference=True, rising=column.place in rising),
                name=f"change_{column.name}",
            )
            for place, column in moving
            if not column.gaps
            if column.cells is not None or (column.width and column.categories >= _MANY)
        ]
    end = [Column(name="end", part="end", categories=ends)] if ends > 1 else []
    return TableColumns(
        (*before, *actions, *rewards, *after, *end), observation_space, action_space
    )


def trajectory_columns(
    steps: TableColumns,
    *,
    groups: int,
    previous: bool,
    longest: int = 0,
    alike: float = 1.0,
    memory: Sequence[int] = (),
) -> TableColumns:
    """Return the columns of a step of a trajectory: those of a transition, and what came before.

    Args:
        steps: of transitions, whose ends tell three cases apart.
        groups: of steps by their time, see `time_starts`; 2: the first, and all others.
        previous: with the action of the step before.
        longest: steps of a trajectory at most, whose lengths are counted; 0: they are not.
        alike: see `TableColumns`.
        memory: places of the observation's numbers and categories whose level so far a step knows;
            of those that never fall, the level of their changes.
    """
    before: list[Column] = []
    for place in steps.of("action") if previous else ():
        column = steps[place]
        none = 0 if column.cells is not None else 1
        before.append(
            replace(
                column,
                name=f"previous_{column.name}",
                part="previous",
                categories=column.categories + none,
                like=None if none else place,
            )
        )
    rising = {steps[i].place for i in steps.of("next_observation") if steps[i].rises}
    levels = [
        _level(steps[i], rising=steps[i].place in rising)
        for i in steps.of("observation")
        if steps[i].place in memory
    ]
    time = Column(name="time", part="time", categories=groups)
    return TableColumns(
        (*steps.columns, *before, *levels, time),
        steps.observation_space,
        steps.action_space,
        longest=longest,
        alike=alike,
    )


def _level(column: Column, *, rising: bool) -> Column:
    """Return the column of a number's level, or of that of its changes; see `levels`.

    Of a category it is that of the usual one, which is sure or not.
    """
    level = replace(column, name=f"memory_{column.name}", part="memory")
    if column.cells is None:
        return replace(level, categories=2 * column.categories)
    low, high = column.cells.low, column.cells.high
    if rising:  # which a first row has none of
        cells = NumberCells(0.0, high - low, gaps=True)
        return replace(level, cells=cells, difference=True, within=(low, high))
    return replace(level, cells=NumberCells(low, high, gaps=column.gaps))


def _cells(name: str, low: float, high: float, step: float) -> NumberCells:
    if not low < high:
        raise ConfigError(
            f"data.bounds: {name} has the one value {low:g}; leave the column out, or give a range"
        )
    return NumberCells(float(low), float(high), float(step))


def _part_columns(
    part: Part, space: Space, cells: dict[str, NumberCells], gaps: Sequence[int]
) -> list[Column]:
    if isinstance(space, Box):
        return _box_columns(part, space, cells, gaps)
    several = bool(space.shape)
    return [
        Column(
            name=f"{part}_{i}" if several else part,
            part=part,
            place=i,
            categories=int(one.n),
            start=int(one.start),
        )
        for i, one in enumerate(components(space))
    ]


def _box_columns(
    part: Part, space: Box, cells: dict[str, NumberCells], gaps: Sequence[int]
) -> list[Column]:
    """Return a column for each number of a Box, and for each category or flag among them.

    The flag that says of a number that there is none belongs to the number.
    """
    stops, columns = dict(groups_of(space)), list[Column]()
    place = 0
    while place < int(np.prod(space.shape)):
        name, width = f"{part}_{place}", stops.get(place, place) - place
        if width:
            size = max(width, 2)
            columns.append(Column(name=name, part=part, place=place, categories=size, width=width))
        else:
            own = replace(cells[name], gaps=place in gaps)
            columns.append(Column(name=name, part=part, place=place, cells=own))
            width = 1 + own.gaps
        place += width
    return columns


def _after(column: Column, place: int, *, difference: bool, rising: bool) -> Column:
    """Return the column of the next observation that belongs to one of the observation."""
    name = f"next_{column.name}"
    after = replace(column, name=name, part="next_observation", rises=rising)
    if not difference:
        return replace(after, like=place)
    if column.cells is None:
        return replace(after, difference=True, categories=column.categories + 1)
    low, high = column.cells.low, column.cells.high
    least = 0.0 if rising else low - high
    cells = NumberCells(least, high - low, column.cells.step, gaps=column.gaps)
    return replace(after, difference=True, cells=cells, within=(low, high))
