"""A step of a trajectory as raw numbers, and what is known of the steps around it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.cleaning import norm_sub
from distributed_privrl.marginals.column import STAYS, Column
from distributed_privrl.marginals.levels import changes_so_far, levels_so_far, usual_so_far

EXACT = 24
"""Lengths that are told apart; longer ones in ever wider groups, and the longest one by itself."""
_HEAVY = 3.0
"""Deviations by which the weight of a length and all longer ones together stands out."""
LATER = 8
"""So many steps from the start of a trajectory are told apart; later ones in ever wider groups."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Transitions, and what a step knows of the trajectory around it.

    Args:
        transitions: N of them.
        times: ``(N,)``, steps before this one in its trajectory; None: nobody asks. For levels so
            far, trajectories must begin with their first row, and lie one after the other.
        previous: ``(N,)`` or ``(N, A)``, the actions before these; None: nobody asks.
        begins: ``(N,)``: the first of its trajectory; needed with ``previous``.
    """

    transitions: Transitions
    times: NDArray[np.int64] | None = None
    previous: NDArray[Any] | None = None
    begins: NDArray[np.bool_] | None = None

    def followed(self) -> "Steps":
        """Return those that do not terminate."""
        kept = ~self.transitions.terminated
        return Steps(
            self.transitions.select(kept),
            times=None if self.times is None else self.times[kept],
            previous=None if self.previous is None else self.previous[kept],
            begins=None if self.begins is None else self.begins[kept],
        )

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
        if column.part == "memory":
            return self._levels(column)
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
        after = column.values(rows.next_observations)
        if not column.difference:
            return after
        if column.cells is None:
            return np.where(after == before, STAYS, after + 1)
        one, other = (_bounded(numbers, column) for numbers in (before, after))
        if not column.gaps:
            return other - one
        one = np.where(np.isnan(one), column.filler, one)
        none = np.isinf(one) | np.isinf(other)
        return np.where(none, np.inf, np.where(none, 0.0, other) - np.where(none, 0.0, one))

    def _levels(self, column: Column) -> NDArray[Any]:
        """Return the levels so far of a number or its changes, or usual categories, ``(N,)``."""
        assert self.times is not None
        part = self.transitions.observations
        if column.cells is None:
            codes = column.values(part).astype(np.int64) - column.start
            return usual_so_far(codes, self.times, column.categories // 2) + column.start
        if column.difference:
            numbers = changes_so_far(_bounded(part[:, column.place], column), self.times)
        else:
            with np.errstate(all="ignore"):  # some kinds of nan complain of a cast
                numbers = column.values(part).astype(np.float64)
        return levels_so_far(numbers, self.times, column.cells.low, column.cells.high)


def _bounded(numbers: NDArray[Any], column: Column) -> NDArray[np.float64]:
    """Return numbers, ``(N,)``, cut to the bounds that the released ones keep.

    What is no number stays inf or nan, a gap, where there may be gaps; else it is nan.
    """
    with np.errstate(all="ignore"):
        found = numbers.astype(np.float64)
        low, high = column.within or (-np.inf, np.inf)
        none = found if column.gaps and column.part != "memory" else np.full(len(found), np.nan)
        return np.where(np.isfinite(found), np.clip(found, low, high), none)


def steps_in_time(rows: Transitions, times: NDArray[np.int64]) -> Steps:
    """Return transitions of whole trajectories as steps that know what came before.

    Args:
        rows: trajectory after trajectory, each of them whole.
        times: ``(N,)``, steps before each in its trajectory.
    """
    before = np.roll(rows.actions, 1, axis=0)  # of another trajectory where one begins
    return Steps(rows, times=times, previous=before, begins=times == 0)


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


def length_starts(longest: int) -> NDArray[np.int64]:
    """Return the shortest length of each group of lengths that are counted together, ``(G,)``.

    Panels have one length, and what is cut has the longest: both are counted by themselves.

    Args:
        longest: steps of a trajectory at most.

    Example:
        >>> length_starts(40).tolist()[-5:]
        [23, 24, 30, 37, 40]
    """
    starts = list(range(1, min(longest, EXACT) + 1))
    while (following := starts[-1] + max(2, starts[-1] // 4)) < longest:
        starts.append(following)
    return np.array(starts + [longest] * (starts[-1] < longest), np.int64)


def steps_and_last_ones(
    lengths: NDArray[np.float64], longest: int, groups: int, *, alike: float = math.inf
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what steps at each time weigh, and what those weigh that are the last.

    Lengths of a group are taken to be as frequent as each other.

    Args:
        lengths: ``(G,)`` trajectories of each of `length_starts`.
        longest: steps of a trajectory at most.
        groups: of steps by their time.
        alike: steps of a trajectory up to which each weighs the same; those of a longer one weigh
            as much together.

    Returns:
        ``(groups,)`` each, in steps of a short trajectory, by `time_starts`.

    Example:
        >>> lasting, last = steps_and_last_ones(np.array([1.0, 0.0, 3.0]), longest=3, groups=2)
        >>> lasting.tolist(), last.tolist()
        ([4.0, 6.0], [1.0, 3.0])
    """
    starts = np.append(length_starts(longest), longest + 1)
    each = np.repeat(lengths / np.diff(starts), np.diff(starts))  # of lengths 1, 2, ...
    each /= np.maximum(np.arange(1, longest + 1) / max(alike, 1.0), 1.0)
    there = np.cumsum(each[::-1])[::-1]
    time = np.searchsorted(time_starts(groups), np.arange(longest), side="right") - 1
    steps, last = (np.bincount(time, of, groups).astype(np.float64) for of in (there, each))
    return steps, last


def cleaned_lengths(
    counts: NDArray[np.float64], longest: int, deviation: float
) -> NDArray[np.float64]:
    """Return the noisy weights of trajectories by their length without negative ones.

    Noise on lengths that nobody has would be half of the trajectories if it was only cut off, and
    what it takes from each of many rare lengths would shorten them all. So lengths of the same
    group of times are cleaned together first, and then each group by itself. Beyond the lengths
    that stand out a little noise would still be many steps: what is left there falls off.

    Args:
        counts: ``(G,)`` weights by `length_starts`.
        longest: steps of a trajectory at most.
        deviation: of a weight's noise.
    """
    starts = length_starts(longest)
    groups = np.searchsorted(time_starts(time_groups(longest)) + 1, starts, side="right") - 1
    found = np.zeros(len(counts))
    if (total := float(counts.sum())) <= 0:
        return found
    together = np.bincount(groups, weights=counts).astype(np.float64)
    for group, own in enumerate(norm_sub(together, total)):
        if own > 0:
            found[groups == group] = norm_sub(counts[groups == group], float(own))
    tails = np.cumsum(counts[::-1])[::-1]
    noise = deviation * np.sqrt(np.arange(len(counts), 0, -1))
    standing_out = np.flatnonzero(tails > _HEAVY * noise)
    if len(standing_out):
        _fall_off(found, starts, groups == groups[standing_out[-1]], longest)
    return found


def _fall_off(
    weights: NDArray[np.float64], starts: NDArray[np.int64], last: NDArray[np.bool_], longest: int
) -> None:
    """Let the weights beyond the last lengths that stand out fall off as they do there.

    As an exponential of the same weight in all that begins as dense as these lengths are, and goes
    on for no more steps, in the mean, than there are before it.

    Args:
        weights: ``(G,)`` of groups of lengths, changed.
        starts: ``(G,)`` the shortest length of each.
        last: ``(G,)`` the groups that the tail comes after.
        longest: steps of a trajectory at most.
    """
    place = int(np.flatnonzero(last)[-1]) + 1
    left = float(weights[place:].sum())
    if left <= 0:
        return
    first = int(starts[place])
    density = float(weights[last].sum()) / (first - int(starts[last][0]))
    scale = min(left / density, first) if density > 0 else first
    lengths = np.arange(first, longest + 1)
    shares = np.exp(-(lengths - first) / scale)
    inside = np.searchsorted(starts[place:], lengths, side="right") - 1
    weights[place:] = np.bincount(inside, weights=left * shares / shares.sum())


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
