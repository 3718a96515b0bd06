"""The columns of a table of steps: what of a transition is counted, in which public cells."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.data.spaces import Space, box_bounds, components
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.cells import MOST_VALUES
from distributed_privrl.marginals.column import STAYS, TERMINATES, Column, Part
from distributed_privrl.marginals.steps import Steps, length_starts
from distributed_privrl.marginals.unit_sizes import UnitSizes

_IN_WORDS: dict[Part, str] = {
    "observation": "observed",
    "action": "of the action",
    "reward": "of the reward",
    "next_observation": "observed next",
    "end": "for the end",
    "previous": "of the action before",
    "memory": "for levels so far",
    "time": "for the time",
    "unit": "for the size of a unit",
}


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
        longest: steps of a trajectory at most, whose lengths are counted, each trajectory once,
            beside the columns; 0: they are not.
        alike: rows of a trajectory up to which each weighs the same; those of a longer one weigh
            as much together.
        unused: places of columns that are counted and that nothing is drawn from.
        unit_sizes: classes of the last column, which tells how many rows a row's unit has; None:
            there is no such column.
        ends_unseen: what follows a row that terminates was in no table: its next observation is a
            copy of its own, and says nothing.
    """

    columns: tuple[Column, ...]
    observation_space: Space
    action_space: Space
    longest: int = 0
    alike: float = field(default=1.0, repr=False)  # it follows from the settings of a run
    unused: frozenset[int] = frozenset()
    unit_sizes: UnitSizes | None = None
    ends_unseen: bool = False

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, place: int) -> Column:
        return self.columns[place]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Cells or categories of each column."""
        return tuple(one.size for one in self.columns)

    @property
    def lengths(self) -> int:
        """Groups of lengths that are counted; see `length_starts`."""
        return len(length_starts(self.longest)) if self.longest else 0

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

    def only_followed(self, clique: Sequence[int]) -> bool:
        """Say whether columns are counted in the rows alone of which somebody saw what follows."""
        after = any(self.columns[i].part == "next_observation" for i in clique)
        return self.ends_unseen and after

    def followed(self, cells: NDArray[np.integer]) -> NDArray[np.bool_]:
        """Say of which rows ``(N, V)`` somebody saw what follows, ``(N,)``.

        Args:
            cells: of rows, or bins of categories, which are the same.
        """
        if not self.ends_unseen:
            return np.ones(len(cells), np.bool_)
        (end,) = self.of("end")
        return np.asarray(cells[:, end] != TERMINATES)

    @property
    def codings(self) -> tuple[tuple[int, int], ...]:
        """Places of each column after a step that is there as it is, and as a change."""
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

    @property
    def in_words(self) -> str:
        """Say how many of the columns that are drawn are of which part of a row."""
        counted = Counter(one.part for one in self.columns)
        counted["next_observation"] -= len(self.codings)
        return ", ".join(
            f"{count} {_IN_WORDS[part]}" for part, count in counted.items() if count > 0
        )

    def in_ranges(self, names: Sequence[str] = ()) -> list[str]:
        """Say which numbers have more values than are counted by themselves, and how many.

        Changes are not among them: what comes back is the number that they lead to.

        Args:
            names: of the observation's numbers; (): those of columns.
        """
        return [
            f"{names[one.place] if names and one.part == 'observation' else one.name}:"
            f" {one.cells.value_count:,} values, more than {MOST_VALUES:,}"
            for one in self.columns
            if one.counted and one.cells is not None and not one.difference
            if one.cells.value_count > MOST_VALUES
        ]

    def without_successors(self) -> "TableColumns":
        """Return the columns of rows that nothing follows: (s, a, r).

        What is drawn of them is terminated, and repeats its observation as the next one.
        """
        kept = self.of("observation", "action", "reward", "unit")
        columns = tuple(self.columns[place] for place in kept)
        return replace(self, columns=columns, ends_unseen=False)

    def with_unit_sizes(self, sizes: UnitSizes) -> "TableColumns":
        """Return the columns with one that tells how many rows a row's unit has, if they differ.

        Args:
            sizes: its classes.
        """
        if sizes.count == 1:
            return self
        column = Column(name="rows_of_unit", part="unit", categories=sizes.count)
        return replace(self, columns=(*self.columns, column), unit_sizes=sizes)

    def coded(self, steps: Steps) -> CodedRows:
        """Return rows as cells; never fails, warns or logs because of what a row holds.

        How many rows their units have is not known yet: see `CodedRows.of_units`.

        Privacy: row i of the result depends on row i alone, on the action before it in its
        trajectory, and where there are levels on all rows before it in its trajectory: on rows of
        one unit.
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
                if column.gaps:
                    proper |= np.isnan(numbers)
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

        Numbers after a step that are differences are added to those before it. What has no column
        is the one action that there is, or a reward of 0. Where nobody saw what follows an end, the
        observation is repeated, as it is in the real rows.
        """
        observations = self._part("observation", self.observation_space, numbers)
        actions = self._part("action", self.action_space, numbers)
        count, rewards, ends = len(observations), self.of("reward"), self.of("end")
        ended = numbers[ends[0]] if ends else np.zeros(count)
        reached = observations
        if self.of("next_observation"):
            reached = self._reached(observations, numbers)
            if self.ends_unseen:
                last = np.expand_dims(ended == TERMINATES, tuple(range(1, reached.ndim)))
                reached = np.where(last, observations, reached)
        else:
            ended = np.full(len(ended), TERMINATES)
        return Transitions(
            observations=_clipped(observations, self.observation_space),
            actions=_clipped(actions, self.action_space),
            rewards=(numbers[rewards[0]] if rewards else np.zeros(count)).astype(np.float32),
            next_observations=_clipped(reached, self.observation_space),
            terminated=ended == TERMINATES,
            truncated=ended == 2,
            unit_ids=np.arange(count, dtype=np.uint64),
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
                drawn_numbers = numbers[place]
                if column.difference and column.cells is None:
                    stays = drawn_numbers == STAYS
                    drawn_numbers = np.where(stays, column.values(observations), drawn_numbers - 1)
                elif column.difference:
                    known = observations[:, column.place]
                    drawn_numbers = self._within(column, known + drawn_numbers)
                held = column.held(drawn_numbers)
                reached[:, column.place : column.place + held.shape[1]] = held
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
        if not places:
            return np.full(len(numbers[0]), int(components(space)[0].start), np.int64)
        if isinstance(space, Box):
            held = [self.columns[i].held(numbers[i]) for i in places]
            return np.concatenate(held, axis=1)
        chosen = [numbers[i].astype(np.int64) + self.columns[i].start for i in places]
        return np.stack(chosen, axis=1) if space.shape else chosen[0]


def _clipped(part: NDArray[Any], space: Space) -> NDArray[Any]:
    if not isinstance(space, Box):
        return part
    low, high = box_bounds(space)
    clipped: NDArray[np.float32] = np.clip(part, low, high).astype(np.float32)
    return clipped
