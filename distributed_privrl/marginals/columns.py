"""The columns of a table of steps: what of a transition is counted, in which public cells."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.spaces import Space, box_bounds, components, group_values, groups_of
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.cells import NumberCells
from distributed_privrl.marginals.unit_sizes import UnitSizes

Part = Literal[
    "observation", "action", "reward", "next_observation", "end", "previous", "time", "unit"
]
NextObservation = Literal["absolute", "difference", "counted"]
"""Numbers after a step as they are, as changes, or both, of which released counts leave one."""
ENDS = ("goes on", "terminates", "is cut")
"""What the categories of an end mean."""
LATER = 8
"""So many steps from the start of a trajectory are told apart; later ones in ever wider groups."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of the table.

    Args:
        name: e.g. ``observation_0``, ``next_observation_0``, ``action``, ``end``.
        part: of a step that it belongs to.
        place: of a number or category within its part, from 0; of several columns, the first.
        categories: how many there are; 0: a number.
        start: the category that is counted first.
        width: columns of 0 and 1 in its part that hold the category together, one alone for a flag;
            0: the part holds it, or the number, as it is.
        cells: of a number.
        like: the column whose cells and counts stand for this one's: those of an observation for
            the same number after the step; None: it has its own.
        difference: the number is the change from the observation.
    """

    name: str
    part: Part
    place: int = 0
    categories: int = 0
    start: int = 0
    width: int = 0
    cells: NumberCells | None = None
    like: int | None = None
    difference: bool = False

    @property
    def size(self) -> int:
        """Number of cells or categories."""
        return self.categories if self.cells is None else self.cells.size

    @property
    def counted(self) -> int:
        """Integers that are counted for the column alone: cells, and values beside them."""
        if self.like is not None:
            return 0
        return self.size + (0 if self.cells is None else self.cells.counted_values)

    def values(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return the column's numbers or categories, ``(N,)``, in rows of its part.

        A category that is none of the column's is outside ``start .. start + categories - 1``.
        """
        if self.width:
            return group_values(part[:, self.place : self.place + self.width])
        return part if part.ndim == 1 else part[:, self.place]

    def held(self, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return drawn numbers, or categories from 0, ``(N,)`` as a Box holds them, ``(N, C)``."""
        if self.width > 1:
            return np.asarray(drawn[:, None] == np.arange(self.width), np.float64)
        return drawn[:, None]


@dataclass(frozen=True, eq=False)
class CodedRows:
    """Rows of a table as cells.

    Args:
        cells: ``(N, V)`` int32, the cell or category of each column.
        values: ``(N, W)`` int32, the value in each of `TableColumns.valued`.
        valid: ``(N,)``: rows that count; others have a number that is not finite, or a category
            outside its space.
    """

    cells: NDArray[np.int32]
    values: NDArray[np.int32]
    valid: NDArray[np.bool_]

    def of_units(self, columns: "TableColumns", counts: NDArray[np.int64]) -> "CodedRows":
        """Return the rows with what the table tells of their units.

        Args:
            columns: of the table.
            counts: ``(N,)``, how many rows the unit of each row has.
        """
        if columns.unit_sizes is None:
            return self
        cells = self.cells.copy()
        cells[:, columns.of("unit")[0]] = columns.unit_sizes.classes(counts)
        return replace(self, cells=cells)


@dataclass(frozen=True)
class TableColumns:
    """All columns of a table of steps, in the order in which a step is drawn.

    Args:
        columns: of the table.
        observation_space: of the dataset.
        action_space: of the dataset.
        lengths: groups of lengths of trajectories that are counted, each trajectory once, beside
            the columns; 0: none are.
        unused: places of columns that are counted and that nothing is drawn from.
        unit_sizes: classes of the last column, which tells how many rows a row's unit has; None:
            there is no such column.
    """

    columns: tuple[Column, ...]
    observation_space: Space
    action_space: Space
    lengths: int = 0
    unused: frozenset[int] = frozenset()
    unit_sizes: UnitSizes | None = None

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, place: int) -> Column:
        return self.columns[place]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Cells or categories of each column."""
        return tuple(one.size for one in self.columns)

    @property
    def counted(self) -> tuple[int, ...]:
        """Integers that are counted for each column alone, and at last for lengths."""
        return (*(one.counted for one in self.columns), self.lengths)

    @cached_property
    def valued(self) -> tuple[int, ...]:
        """Places of the columns whose values are counted by themselves, beside their cells."""
        return tuple(i for i, one in enumerate(self.columns) if one.counted > one.size)

    @property
    def histograms(self) -> int:
        """Histograms that are counted first: of columns, of values beside them, of lengths."""
        own = sum(one.counted > 0 for one in self.columns)
        return own + len(self.valued) + (self.lengths > 0)

    def of(self, *parts: Part) -> tuple[int, ...]:
        """Return the places of the columns of some parts, in order; unused ones are left out."""
        return tuple(
            i for i, one in enumerate(self.columns) if one.part in parts and i not in self.unused
        )

    @property
    def codings(self) -> tuple[tuple[int, int], ...]:
        """Places of each number after a step that is there as it is, and as a change."""
        after = [i for i, one in enumerate(self.columns) if one.part == "next_observation"]
        change = {self.columns[i].place: i for i in after if self.columns[i].difference}
        return tuple(
            (i, change[self.columns[i].place])
            for i in after
            if not self.columns[i].difference and self.columns[i].place in change
        )

    @property
    def drawn(self) -> int:
        """Columns of a row that is drawn: of two codings of a number, one."""
        return len(self) - len(self.codings)

    def without_successors(self) -> "TableColumns":
        """Return the columns of rows that nothing follows: (s, a, r).

        What is drawn of them is terminated, and repeats its observation as the next one.
        """
        kept = self.of("observation", "action", "reward", "unit")
        return replace(self, columns=tuple(self.columns[place] for place in kept))

    def with_unit_sizes(self, sizes: UnitSizes) -> "TableColumns":
        """Return the columns with one that tells how many rows a row's unit has, if they differ.

        Args:
            sizes: its classes.
        """
        if sizes.count == 1:
            return self
        column = Column(name="rows_of_unit", part="unit", categories=sizes.count)
        return replace(self, columns=(*self.columns, column), unit_sizes=sizes)

    def coded(self, steps: "Steps") -> CodedRows:
        """Return rows as cells; never fails, warns or logs because of what a row holds.

        How many rows their units have is not known yet: see `CodedRows.of_units`.

        Privacy: row i of the result depends on row i alone, and where nobody saw what follows it
        on the row before it in its trajectory: on rows of one unit.
        """
        count = len(steps.transitions)
        cells = np.zeros((count, len(self)), np.int32)
        values = np.zeros((count, len(self.valued)), np.int32)
        valid = np.ones(count, np.bool_)
        for place, column in enumerate(self.columns):
            raw = steps.column(column)
            if column.cells is None:
                chosen = raw.astype(np.int64) - column.start
                proper = (chosen >= 0) & (chosen < column.categories)
                cells[:, place] = np.where(proper, chosen, 0)
            else:
                with np.errstate(all="ignore"):
                    numbers = raw.astype(np.float64)
                proper = np.isfinite(numbers)
                numbers[~proper] = column.cells.low
                cells[:, place] = column.cells.cells_of(numbers)
                if place in self.valued:
                    values[:, self.valued.index(place)] = column.cells.values_of(numbers)
            valid &= proper
        return CodedRows(cells=cells, values=values, valid=valid)

    def recoded(self, place: int, numbers: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the cells of drawn numbers of a column, or their categories as they are."""
        cells = self.columns[place].cells
        return numbers.astype(np.int64) if cells is None else cells.cells_of(numbers)

    def transitions(self, numbers: Sequence[NDArray[np.float64]]) -> Transitions:
        """Return drawn columns, ``(N,)`` each, as transitions; a row is a unit of its own.

        Numbers after a step that are differences are added to those before it.
        """
        observations = self._part("observation", self.observation_space, numbers)
        actions = self._part("action", self.action_space, numbers)
        (reward,), ends = self.of("reward"), self.of("end")
        ended = numbers[ends[0]] if ends else np.zeros(len(numbers[reward]))
        reached = observations
        if self.of("next_observation"):
            reached = self._reached(observations, numbers)
        else:
            ended = np.ones(len(ended))
        return Transitions(
            observations=_clipped(observations, self.observation_space),
            actions=_clipped(actions, self.action_space),
            rewards=numbers[reward].astype(np.float32),
            next_observations=_clipped(reached, self.observation_space),
            terminated=ended == 1,
            truncated=ended == 2,
            unit_ids=np.arange(len(numbers[reward]), dtype=np.uint64),
        )

    def _reached(
        self, observations: NDArray[Any], numbers: Sequence[NDArray[np.float64]]
    ) -> NDArray[Any]:
        """Return next observations; what no column tells of is as it was."""
        drawn = self.of("next_observation")
        if observations.ndim == 1:
            return self._part("next_observation", self.observation_space, numbers)
        reached = observations.copy()
        for place in drawn:
            column = self.columns[place]
            if isinstance(self.observation_space, Box):
                held = column.held(numbers[place])
                where = slice(column.place, column.place + held.shape[1])
                if column.difference:
                    held = self._within(column, observations[:, where] + held)
                reached[:, where] = held
            else:
                reached[:, column.place] = numbers[place].astype(np.int64) + column.start
        return reached

    def _within(self, column: Column, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what changes have led to, cut to the bounds of the observation's number."""
        before = next(
            one for one in self.columns if one.part == "observation" and one.place == column.place
        )
        assert before.cells is not None
        return np.clip(numbers, before.cells.low, before.cells.high)

    def _part(
        self, part: Part, space: Space, numbers: Sequence[NDArray[np.float64]]
    ) -> NDArray[Any]:
        places = self.of(part)
        if isinstance(space, Box):
            held = [self.columns[i].held(numbers[i]) for i in places]
            return np.concatenate(held, axis=1)
        chosen = [numbers[i].astype(np.int64) + self.columns[i].start for i in places]
        return np.stack(chosen, axis=1) if space.shape else chosen[0]


@dataclass(frozen=True, eq=False)
class Steps:
    """Transitions, and what a step knows of the trajectory around it.

    Args:
        transitions: N of them.
        times: ``(N,)``, steps before this one in its trajectory; None: nobody asks.
        previous: ``(N,)`` or ``(N, A)``, the actions before these; None: nobody asks.
        begins: ``(N,)``: the first of its trajectory; needed with ``previous``.
        earlier: ``(N, ...)``, the observations one step before; needed with ``unseen``.
        unseen: ``(N,)``: nobody saw what follows the row, and its next observation is a copy of its
            own. What happened in the step before happens again: a number moves as it did, a
            category that had changed changes back, and one that had not stays. None: all was seen.
    """

    transitions: Transitions
    times: NDArray[np.int64] | None = None
    previous: NDArray[Any] | None = None
    begins: NDArray[np.bool_] | None = None
    earlier: NDArray[Any] | None = None
    unseen: NDArray[np.bool_] | None = None

    def column(self, column: Column) -> NDArray[Any]:
        """Return the raw numbers or categories of a column, ``(N,)``."""
        rows = self.transitions
        if column.part == "end":
            cut = 2 if column.categories > 2 else 0
            return np.where(rows.terminated, 1, np.where(rows.truncated, cut, 0))
        if column.part == "reward":
            return rows.rewards
        if column.part == "unit":
            return np.zeros(len(rows), np.int64)
        if column.part == "time":
            assert self.times is not None
            return np.searchsorted(time_starts(column.categories), self.times, side="right") - 1
        if column.part == "previous":
            assert self.previous is not None
            assert self.begins is not None
            before = column.values(self.previous)
            return np.where(self.begins, _nothing_before(column), before)
        if column.part == "action":
            return column.values(rows.actions)
        before = column.values(rows.observations)
        if column.part == "observation":
            return before
        after = self._continued(column, before, column.values(rows.next_observations))
        if not column.difference:
            return after
        with np.errstate(all="ignore"):
            return after.astype(np.float64) - before.astype(np.float64)

    def _continued(self, column: Column, before: NDArray[Any], after: NDArray[Any]) -> NDArray[Any]:
        """Return what follows, with what nobody saw told from the step before."""
        if self.unseen is None:
            return after
        assert self.earlier is not None
        earlier = column.values(self.earlier)
        if column.cells is None:
            return np.where(self.unseen, earlier, after)
        with np.errstate(all="ignore"):
            moved = 2 * before.astype(np.float64) - earlier.astype(np.float64)
        return np.where(self.unseen, moved, after)


def steps_in_time(rows: Transitions, times: NDArray[np.int64], *, last_rows_copied: bool) -> Steps:
    """Return transitions of whole trajectories as steps that know what came before.

    Args:
        rows: trajectory after trajectory, each of them whole.
        times: ``(N,)``, steps before each in its trajectory.
        last_rows_copied: what follows a terminating row is a copy of its observation.
    """
    begins = times == 0
    before = np.roll(rows.actions, 1, axis=0)
    steps = Steps(rows, times=times, previous=before, begins=begins)
    if not last_rows_copied:
        return steps
    earlier = np.roll(rows.observations, 1, axis=0)  # of another trajectory where one begins
    return replace(steps, earlier=earlier, unseen=rows.terminated & ~begins)


def time_starts(groups: int) -> NDArray[np.int64]:
    """Return the first step of each group of steps, ``(groups,)``, counted from 0.

    Two groups: the first step, and all later ones.

    Example:
        >>> time_starts(12).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15]
    """
    starts = list(range(min(groups, LATER + 1)))
    while len(starts) < groups:
        starts.append(starts[-1] + max(2, starts[-1] // 4))
    return np.array(starts, np.int64)


def time_groups(longest: int) -> int:
    """Return how many groups tell the steps of a trajectory of ``longest`` steps apart."""
    groups = 2
    while groups < longest and time_starts(groups + 1)[-1] < longest:
        groups += 1
    return groups


def _nothing_before(column: Column) -> float:
    """Return what stands for the action before the first one: the last category, or the least."""
    if column.cells is None:
        return column.start + column.categories - 1
    return column.cells.low


def _clipped(part: NDArray[Any], space: Space) -> NDArray[Any]:
    if not isinstance(space, Box):
        return part
    low, high = box_bounds(space)
    clipped: NDArray[np.float32] = np.clip(part, low, high).astype(np.float32)
    return clipped


def step_columns(
    observation_space: Space,
    action_space: Space,
    bounds: Bounds,
    *,
    next_observation: NextObservation,
    ends: int = 2,
    lasting: Sequence[int] = (),
) -> TableColumns:
    """Return the columns of a transition: (s, a, r, s', end).

    Args:
        observation_space: of the dataset.
        action_space: of the dataset.
        bounds: public, or paid for, of every numeric column.
        next_observation: numbers after a step as they are, as changes, or both; categories are as
            they are.
        ends: of `ENDS` that are told apart; 1: nothing ends.
        lasting: places of the observation's numbers that stay: nothing is counted of them after a
            step.

    Raises:
        ConfigError: a number has an empty range.
    """
    cells = {
        name: _cells(name, low, high, step)
        for name, low, high, step in zip(
            bounds.columns, bounds.low, bounds.high, bounds.step, strict=True
        )
    }
    before = _part_columns("observation", observation_space, cells)
    actions = _part_columns("action", action_space, cells)
    reward = Column(name="reward", part="reward", cells=cells["reward"])
    moving = [(place, one) for place, one in enumerate(before) if one.place not in lasting]
    after = [
        _after(column, place, difference=next_observation == "difference")
        for place, column in moving
    ]
    if next_observation == "counted":
        after += [
            replace(_after(column, place, difference=True), name=f"change_{column.name}")
            for place, column in moving
            if column.cells is not None
        ]
    end = [Column(name="end", part="end", categories=ends)] if ends > 1 else []
    return TableColumns((*before, *actions, reward, *after, *end), observation_space, action_space)


def trajectory_columns(steps: TableColumns, *, groups: int, previous: bool) -> TableColumns:
    """Return the columns of a step of a trajectory: those of a transition, and what came before.

    Args:
        steps: of transitions, whose ends tell three cases apart.
        groups: of steps by their time, see `time_starts`; 2: the first, and all others.
        previous: with the action of the step before.
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
    time = Column(name="time", part="time", categories=groups)
    return TableColumns(
        (*steps.columns, *before, time),
        steps.observation_space,
        steps.action_space,
        lengths=groups if groups > 2 else 0,
    )


def _cells(name: str, low: float, high: float, step: float) -> NumberCells:
    if not low < high:
        raise ConfigError(
            f"data.bounds: {name} has the one value {low:g}; leave the column out, or give a range"
        )
    return NumberCells(float(low), float(high), float(step))


def _part_columns(part: Part, space: Space, cells: dict[str, NumberCells]) -> list[Column]:
    if isinstance(space, Box):
        return _box_columns(part, space, cells)
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


def _box_columns(part: Part, space: Box, cells: dict[str, NumberCells]) -> list[Column]:
    """Return a column for each number of a Box, and for each category or flag among them."""
    stops, columns = dict(groups_of(space)), list[Column]()
    place = 0
    while place < int(np.prod(space.shape)):
        name, width = f"{part}_{place}", stops.get(place, place) - place
        if width:
            size = max(width, 2)
            columns.append(Column(name=name, part=part, place=place, categories=size, width=width))
        else:
            columns.append(Column(name=name, part=part, place=place, cells=cells[name]))
        place += max(width, 1)
    return columns


def _after(column: Column, place: int, *, difference: bool) -> Column:
    """Return the column of the next observation that belongs to one of the observation."""
    after = replace(column, name=f"next_{column.name}", part="next_observation")
    if column.cells is None or not difference:
        return replace(after, like=place)
    width = column.cells.high - column.cells.low
    return replace(after, difference=True, cells=NumberCells(-width, width, column.cells.step))
