"""Rows that stand in for a sensitive dataset: invented from its declared spaces and bounds.

Columns go together in a known way: each with its neighbour, strongly, middling and weakly in turn
(`STRENGTHS`), actions with observations, the reward with both, and a next observation with what led
to it. Within a trajectory, an action is the one before it with probability `KEEPS`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from distributed_privrl.data.packing import join_rows
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.marginals.column import ENDS, Column
from distributed_privrl.marginals.columns import TableColumns

STRENGTHS = (0.8, 0.5, 0.2)
"""Correlation of the numbers behind neighbouring columns, in turn."""
KEEPS = 0.7
"""Probability that the next action of a trajectory is the same."""
_ACTION, _REWARD, _STAYS = 0.5, 0.6, 0.8
_REWARD_NOISE = 1.0
_ZIPF = 1.5
_ENDS_ABOVE = {2: 1.0, 3: 0.0}
"""Above it lies the hidden number of the first column where steps terminate, by kinds of ends."""
_CHUNK = 50_000


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """How much an invented unit has: so many trajectories, each number of rows as likely.

    Args:
        trajectories: of a unit; of independent rows 1.
        least: rows of a trajectory, at least.
        most: rows of a trajectory, at most.
    """

    trajectories: int = 1
    least: int
    most: int

    @classmethod
    def about(cls, rows: float, *, trajectories: int = 1, longest: int | None = None) -> Self:
        """Return lengths of so many rows a trajectory in the mean, ``longest`` at most."""
        twice = max(2, round(2 * rows))
        most = twice - max(1, twice // 4)
        if longest is not None:
            most = min(most, longest)
        least = min(most, max(1, twice - most))
        return cls(trajectories=trajectories, least=least, most=most)

    @classmethod
    def up_to(cls, rows: int, *, trajectories: int = 1) -> Self:
        """Return lengths between half of so many rows a trajectory and all of them."""
        return cls(trajectories=trajectories, least=-(-rows // 2), most=rows)


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Invented rows.

    Args:
        columns: of a step; of a trajectory, with three ends.
        units: how many there are.
        lengths: of a unit.
        wide: bounds are ranges to search in, of which values fill a part.
    """

    columns: TableColumns
    units: int
    lengths: Lengths
    wide: bool

    def transitions(self, random: np.random.Generator) -> Iterator[Transitions]:
        """Yield independent rows, unit after unit."""
        for rows, _ in self._units(random, keeps=0.0):
            yield rows

    def trajectories(self, random: np.random.Generator) -> Iterator[Trajectories]:
        """Yield trajectories, unit after unit."""
        for rows, lengths in self._units(random, keeps=KEEPS):
            yield join_rows(rows, lengths)

    def _units(
        self, random: np.random.Generator, *, keeps: float
    ) -> Iterator[tuple[Transitions, NDArray[np.int64]]]:
        """Yield the rows of some units, and how many each of their trajectories has."""
        each, most = self.lengths.trajectories, self.lengths.most
        at_once = max(1, _CHUNK // (each * most))
        for start in range(0, self.units, at_once):
            units = np.arange(start, min(start + at_once, self.units), dtype=np.uint64)
            units = np.repeat(units, each)
            lengths = random.integers(self.lengths.least, most, len(units), endpoint=True)
            yield self._steps(units, lengths, random, keeps=keeps), lengths

    def _steps(
        self,
        units: NDArray[np.uint64],
        lengths: NDArray[np.int64],
        random: np.random.Generator,
        *,
        keeps: float,
    ) -> Transitions:
        """Return the rows of trajectories, each one's after each other.

        Args:
            units: that each trajectory is of, ``(K,)``.
            lengths: rows of each, ``(K,)``.
            random: a public stream.
            keeps: probability that a step has the action of the one before.
        """
        table = self.columns
        places = {part: table.of(part) for part in ("observation", "action", "next_observation")}
        state = _chained(len(units), len(places["observation"]), random)
        hidden = np.zeros((int(lengths.max()), len(units), len(table)))
        rewards, ends = list(table.of("reward")), table.of("end")
        action = np.zeros((len(units), len(places["action"])))
        for place, step in enumerate(hidden):
            led = np.arange(len(places["action"])) % state.shape[1]
            chosen = _ACTION * state[:, led]
            chosen = chosen + np.sqrt(1 - _ACTION**2) * random.standard_normal(chosen.shape)
            again = (random.random(len(units)) < keeps) & (place > 0)
            action = np.where(again[:, None], action, chosen)
            both = _REWARD * (state[:, 0] + action[:, :1].sum(axis=1))
            noise = random.standard_normal(len(units))
            step[:, list(places["observation"])] = state
            step[:, list(places["action"])] = action
            wide = np.sqrt(2 * _REWARD**2 * (1 + _ACTION) + _REWARD_NOISE**2)
            step[:, rewards] = ((both + _REWARD_NOISE * noise) / wide)[:, None]
            fresh = _chained(len(units), state.shape[1], random)
            state = _STAYS * state + np.sqrt(1 - _STAYS**2) * fresh
            if places["next_observation"]:
                step[:, list(places["next_observation"])] = state
        last = np.arange(len(hidden))[:, None] == lengths - 1
        there = (np.arange(len(hidden))[:, None] < lengths).T.reshape(-1)
        flat = hidden.transpose(1, 0, 2).reshape(-1, len(table))[there]
        numbers = [self._values(place, flat[:, place]) for place in range(len(table))]
        if ends:
            over = last.T.reshape(-1)[there]
            high = flat[:, 0] > _ENDS_ABOVE[table[ends[0]].categories]
            if table[ends[0]].categories == len(ENDS):  # the last row of a trajectory, and no other
                high = np.where(over, np.where(high, 1.0, 2.0), 0.0)
            numbers[ends[0]] = high.astype(np.float64)
        rows = table.transitions(numbers)
        return Transitions(**{**vars(rows), "unit_ids": np.repeat(units, lengths)})

    def _values(self, place: int, hidden: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return numbers, or categories from 0, that lie where hidden normal numbers say."""
        column, uniform = self.columns[place], ndtr(hidden)
        if column.cells is None:
            limits = np.cumsum(_shares(column))[:-1]
            return np.asarray(np.searchsorted(limits, uniform), np.float64)
        low, high, step = column.cells.low, column.cells.high, column.cells.step
        if self.wide:
            uniform = 0.2 + 0.4 * uniform
        inside = (high - low) * uniform
        return np.asarray(low + (np.round(inside / step) * step if step else inside), np.float64)


def _chained(rows: int, columns: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Return normal numbers ``(rows, columns)``, each column correlated with the one before it."""
    made = random.standard_normal((rows, columns))
    for place in range(1, columns):
        strength = STRENGTHS[(place - 1) % len(STRENGTHS)]
        made[:, place] *= np.sqrt(1 - strength**2)
        made[:, place] += strength * made[:, place - 1]
    return made


def _shares(column: Column) -> NDArray[np.float64]:
    """Return the share of each category: the first one is frequent, the last ones are rare."""
    shares = np.arange(1, column.categories + 1, dtype=np.float64) ** -_ZIPF
    return np.asarray(shares / shares.sum(), np.float64)
