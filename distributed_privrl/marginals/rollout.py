"""Whole trajectories drawn from the model of a step, one step after the other."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import SAMPLING, Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, Transitions, offsets_of
from distributed_privrl.marginals.balancing import FirstStates, Odds
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawer import Drawer, drawing_order
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.drift import Drift
from distributed_privrl.marginals.endings import Endings
from distributed_privrl.marginals.memory import Memory
from distributed_privrl.marginals.outcomes import Outcomes
from distributed_privrl.marginals.steps import time_starts
from distributed_privrl.marginals.tilting import Tilt, block_sizes, fitted_tilt

_BEGINNERS = 50_000
_CANDIDATES = 8
"""States of which each trajectory's first one is chosen."""
_MOST_CELLS = 1_000_000
"""Of the tables by which actions are drawn before all else; 8 bytes each."""
_PILOTS, _PILOT = 4, 500
"""Times that trajectories are drawn to see how often actions are taken, and how many each time."""
_TRIALS, _TRIAL, _ROWS_ON_TRIAL = 10, 2_000, 400_000
"""Times that trajectories are drawn to find how others are chosen, how many, and rows at most."""
_BLOCK = 16_384
"""Trajectories that some are chosen from at once."""

_Steps = list[tuple[NDArray[np.int64], NDArray[np.int32]]]


def known_before(columns: TableColumns) -> tuple[int, ...]:
    """Return the columns that are known before a step: time, what came before, state, unit."""
    return columns.of("observation", "previous", "memory", "time", "unit")


@dataclass(frozen=True, eq=False)
class Rollout:
    """Draws trajectories.

    The first step is drawn given its time alone; each later one given its time, the action before
    and the observation that the step before has led to: the very numbers, so that steps join. What
    the model knows little of makes actions as likely as others, and each step leads to more of it;
    so odds of an action are raised or lowered, in all states and at all times alike, until actions
    after the first are as frequent as the model has them. Odds of first states are, too, where the
    model does not tell them from later ones; see `FirstStates`.

    Args:
        model: of a step.
        longest: steps at most; what has not ended by then is cut.
    """

    model: TableModel
    longest: int

    @cached_property
    def _drawers(self) -> tuple[Drawer, Drawer]:
        columns, field = self.model.columns, self.model.field
        begin = Drawer(field, columns.of("previous", "time", "unit"))
        decided = () if self._deciding is None else columns.of("action")
        return begin, Drawer(field, (*known_before(columns), *decided))

    @cached_property
    def _deciding(self) -> Drawer | None:
        """What draws the actions of a later step; None: tables of all of them are too large."""
        columns, field = self.model.columns, self.model.field
        known, actions = known_before(columns), columns.of("action")
        _, cells = drawing_order(field.sizes, field.potentials, known, first=actions)
        return Drawer(field, known, first=actions) if cells <= _MOST_CELLS else None

    def draw(
        self,
        count: int,
        random: np.random.Generator,
        *,
        told: Callable[[int], None] = lambda _: None,
    ) -> Trajectories:
        """Return ``count`` trajectories, which `drift` counts.

        Args:
            count: of trajectories.
            random: public.
            told: how many of the longest ones' steps are drawn.
        """
        balance, tilt = self._balance, self._tilt
        self.drift.begin(count)
        if tilt is None:
            return self._walk(count, random, *balance, self._drifts, told)
        blocks = block_sizes(count, max(_BLOCK // tilt.times, 1))
        parts = [self._chosen(tilt, one, random, told) for one in blocks]
        return replace(Trajectories.concatenate(parts), unit_ids=np.arange(count, dtype=np.uint64))

    def _drifts(self, _: NDArray[np.int64], bins: NDArray[np.int32]) -> None:
        self.drift.see(bins)

    def _chosen(
        self,
        tilt: Tilt,
        count: int,
        random: np.random.Generator,
        told: Callable[[int], None],
    ) -> Trajectories:
        """Return trajectories in which columns go together as released correlations say."""
        drawn, steps = self._walk_with_steps(tilt.times * count, random, told)
        taken = tilt.chosen(self._traits(len(drawn), steps), count, random)
        kept = np.isin(np.arange(len(drawn)), taken)
        for places, bins in steps:
            self.drift.see(bins[kept[places]])
        return drawn.select(taken)

    def _walk_with_steps(
        self,
        count: int,
        random: np.random.Generator,
        told: Callable[[int], None] = lambda _: None,
    ) -> tuple[Trajectories, _Steps]:
        """Return trajectories, and of each time which of them have a step, and its bins."""
        steps: _Steps = []

        def see(places: NDArray[np.int64], bins: NDArray[np.int32]) -> None:
            steps.append((places, bins.copy()))

        return self._walk(count, random, *self._balance, see, told), steps

    def _traits(self, count: int, steps: _Steps) -> NDArray[np.float32]:
        """Return the traits of trajectories ``(N, size)`` from the bins of their steps."""
        traits = self.model.traits
        assert traits is not None
        found = np.zeros((count, traits.size), np.float32)
        for places, bins in steps:
            found[places] += traits.of(bins)
        return found

    @cached_property
    def _tilt(self) -> Tilt | None:
        """How trajectories are chosen; None: they are taken as they come."""
        traits = self.model.traits
        if traits is None:
            return None
        random, rows = np.random.default_rng(_PILOTS), 0
        found: list[NDArray[np.float32]] = []
        while len(found) < _TRIALS and rows < _ROWS_ON_TRIAL:
            _, steps = self._walk_with_steps(_TRIAL, random)
            found.append(self._traits(_TRIAL, steps))
            rows += sum(len(places) for places, _ in steps)
        return fitted_tilt(traits, np.concatenate(found))

    def _walk(
        self,
        count: int,
        random: np.random.Generator,
        odds: Odds,
        firsts: FirstStates,
        see: Callable[[NDArray[np.int64], NDArray[np.int32]], None],
        told: Callable[[int], None] = lambda _: None,
    ) -> Trajectories:
        """Return trajectories.

        Args:
            count: of them.
            random: public.
            odds: of actions.
            firsts: chooses first states.
            see: is shown which trajectories have a step at each time, and its bins ``(N, V)``.
            told: how many of the longest ones' steps are drawn.
        """
        columns = self.model.columns
        drawn: list[tuple[NDArray[np.int64], Transitions]] = []
        bins = np.zeros((count, len(self.model.field.sizes)), np.int32)
        scores = np.zeros(bins.shape)
        places, before = np.arange(count), [np.empty(0)] * len(columns)
        memory = Memory.begin(self.model, count)
        for time in range(self.longest):
            told(time)
            numbers = self._step(time, bins, scores, before, random, odds, firsts, memory)
            see(places, bins)
            steps = columns.transitions(numbers)
            last = time == self.longest - 1
            truncated = (steps.truncated | last) & ~steps.terminated
            steps = replace(steps, truncated=truncated)
            drawn.append((places, steps))
            goes_on = ~(steps.terminated | truncated)
            if not goes_on.any():
                break
            places = places[goes_on]
            bins, scores = bins[goes_on], scores[goes_on]
            before = self._state_after(steps.select(goes_on), numbers, goes_on)
            self._take_over(bins, scores, before)
            memory.select(goes_on)
            memory.see(before, bins)
        return _joined(count, drawn)

    def chunks(
        self, count: int, *, at_once: int, streams: Streams, progress: Progress = silent
    ) -> Iterator[Trajectories]:
        """Yield ``count`` trajectories, ``at_once`` or the rest at a time; twice the same.

        Args:
            count: of all chunks together.
            at_once: trajectories of a chunk.
            streams: of the draws, public.
            progress: told how many steps are drawn, as if all trajectories were the longest.
        """
        total = count * self.longest
        for index, start in enumerate(range(0, count, at_once)):
            size, before = min(at_once, count - start), start * self.longest

            def told(time: int, size: int = size, before: int = before) -> None:
                progress(SAMPLING, before + size * time, total)

            yield self.draw(size, streams.numpy(f"chunk/{index}"), told=told)
        progress(SAMPLING, total, total)

    def _step(
        self,
        time: int,
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        before: Sequence[NDArray[np.float64]],
        random: np.random.Generator,
        odds: Odds,
        firsts: FirstStates,
        memory: Memory,
    ) -> list[NDArray[np.float64]]:
        """Draw a step in place, and return its numbers; those of the observation are given."""
        columns, outcomes = self.model.columns, self._outcomes
        (place,) = columns.of("time")
        starts = time_starts(columns[place].categories)
        bins[:, place] = np.searchsorted(starts, time, side="right") - 1
        if time == 0:
            self._nothing_before(bins)
            for _ in columns.of("unit"):
                self.model.draw_units(bins, self._beginners, random)
            self._begin(bins, random, firsts)
            first = self.model.numbers(bins, random, places=outcomes.remembered, scores=scores)
            memory.see(first, bins)
            likelier = outcomes.first(bins)
            outcomes.follow_on(bins, likelier, random)
            self._endings.draw(time, bins, random)
            outcomes.lead_on(bins, likelier, random)
            asked = [i for i in range(len(columns)) if i not in outcomes.remembered]
            numbers = self.model.numbers(bins, random, places=asked, scores=scores)
            for place in outcomes.remembered:
                numbers[place] = first[place]
            return outcomes.within(numbers, bins, scores, random)
        self._act(bins, random, odds)
        self._drawers[1].fill(bins, random)
        likelier = outcomes.later(bins, scores, before)
        outcomes.follow_on(bins, likelier, random)
        self._endings.draw(time, bins, random, before)
        outcomes.lead_on(bins, likelier, random)
        known = set(known_before(columns))
        asked = [i for i in range(len(columns)) if i not in known]
        numbers = self.model.numbers(bins, random, places=asked, scores=scores)
        numbers = [before[i] if i in known else one for i, one in enumerate(numbers)]
        return outcomes.within(numbers, bins, scores, random)

    @cached_property
    def _outcomes(self) -> Outcomes:
        return Outcomes(self.model)

    @cached_property
    def _endings(self) -> Endings:
        return Endings(self.model, self.longest, self._outcomes.headrooms)

    def _act(self, bins: NDArray[np.int32], random: np.random.Generator, odds: Odds) -> None:
        """Draw the actions of a step by odds, in place."""
        if self._deciding is None:
            return
        columns = self.model.columns
        units = np.zeros(len(bins), np.int64)
        for unit in columns.of("unit"):
            units = bins[:, unit].astype(np.int64)
        for place in self._deciding.in_order(columns.of("action")):
            shares = odds.raised(place, self._deciding.shares(place, bins))
            above = (shares.cumsum(axis=1) <= random.random(len(bins))[:, None]).sum(axis=1)
            bins[:, place] = np.minimum(above, shares.shape[1] - 1)
            odds.count(place, units, bins[:, place])

    def _begin(
        self, bins: NDArray[np.int32], random: np.random.Generator, firsts: FirstStates
    ) -> None:
        """Draw first steps, whose units are known, in place."""
        if not firsts.wanted:
            self._drawers[0].fill(bins, random)
            return
        candidates = np.repeat(bins, _CANDIDATES, axis=0)
        self._drawers[0].fill(candidates, random)
        bins[:] = firsts.chosen(candidates.reshape(len(bins), _CANDIDATES, -1), random)

    @cached_property
    def _crowd(self) -> Crowd:
        return Crowd(self.model)

    @cached_property
    def drift(self) -> Drift:
        """How all steps that were drawn differ from the model's rows."""
        return Drift(self._crowd)

    @cached_property
    def _balance(self) -> tuple[Odds, FirstStates]:
        """How odds of actions and of first states are raised, found by trajectories on trial."""
        usual = {} if self._deciding is None else self._crowd.later_actions()
        untold = self._untold
        odds = Odds({place: np.ones_like(one) for place, one in usual.items()})
        firsts = FirstStates(self._crowd.shares(untold), self._crowd.kind_shares)

        def see(places: NDArray[np.int64], bins: NDArray[np.int32]) -> None:
            firsts.see(self._crowd.kinds(bins), places, bins)

        for turn in range(_PILOTS if usual or untold else 0):
            self._walk(_PILOT, np.random.default_rng(turn), odds, firsts, see)
            odds.correct(usual)
            firsts.correct()
        return odds, firsts

    @property
    def _untold(self) -> list[int]:
        """Columns that move, of which no joint count tells first states from later ones."""
        columns = self.model.columns
        moving = {columns[z].place for z in columns.of("next_observation")}
        nothing = [z for z in columns.of("previous") if columns[z].cells is None]
        tell = {*columns.of("time"), *nothing}
        told = [set(clique) for clique in self.model.field.potentials if tell & set(clique)]
        return [
            place
            for place in columns.of("observation")
            if columns[place].place in moving and not any(place in one for one in told)
        ]

    def _nothing_before(self, bins: NDArray[np.int32]) -> None:
        """Write that nothing was done before the first step, in place."""
        columns = self.model.columns
        for previous in columns.of("previous"):
            column = columns[previous]
            none = column.categories - 1 if column.cells is None else 0
            bins[:, previous] = self.model.shapes[previous].bins[none]

    @cached_property
    def _beginners(self) -> NDArray[np.float64]:
        """How first steps are divided among the classes of their units, as they are counted."""
        columns, field = self.model.columns, self.model.field
        bins = np.zeros((_BEGINNERS, len(field.sizes)), np.int32)  # all at the first time
        self._nothing_before(bins)
        drawer = Drawer(field, columns.of("previous", "time"))
        drawer.fill(bins, np.random.default_rng(0))
        (place,) = columns.of("unit")
        return np.bincount(bins[:, place], minlength=columns[place].size).astype(np.float64)

    def _state_after(
        self,
        steps: Transitions,
        numbers: Sequence[NDArray[np.float64]],
        goes_on: NDArray[np.bool_],
    ) -> list[NDArray[np.float64]]:
        """Return what is known before the next step: observation and previous action, by column."""
        columns = self.model.columns
        known: list[NDArray[np.float64]] = [np.empty(0)] * len(columns)
        reached = steps.next_observations
        for place in columns.of("observation"):
            column = columns[place]
            start = column.start if column.cells is None else 0
            known[place] = column.values(reached).astype(np.float64) - start
        for previous, action in zip(columns.of("previous"), columns.of("action"), strict=False):
            known[previous] = numbers[action][goes_on]
        return known

    def _take_over(
        self,
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        before: Sequence[NDArray[np.float64]],
    ) -> None:
        """Write the bins of what is known before a step, and where the numbers lie in them."""
        columns = self.model.columns
        after = {columns[z].place: z for z in columns.of("next_observation")}
        for place in columns.of("observation"):
            reached = after.get(columns[place].place)
            if reached is None:  # it stays, and so does where it lies in its bin
                continue
            cells = columns.recoded(place, before[place])
            bins[:, place] = self.model.shapes[place].bins[cells]
            scores[:, place] = 0.0 if columns[reached].difference else scores[:, reached]
        for place in columns.of("previous"):
            cells = columns.recoded(place, before[place])
            bins[:, place] = self.model.shapes[place].bins[cells]


def _joined(count: int, drawn: Sequence[tuple[NDArray[np.int64], Transitions]]) -> Trajectories:
    """Return trajectories from the steps of each time, and which trajectory each is of."""
    places = np.concatenate([one for one, _ in drawn])
    steps = Transitions.concatenate([one for _, one in drawn])
    order = np.argsort(places, kind="stable")
    lengths = np.bincount(places, minlength=count)
    offsets = offsets_of(lengths)
    steps = steps.select(order)
    states = len(steps) + count
    observations = np.empty((states, *steps.observations.shape[1:]), steps.observations.dtype)
    trajectory = np.repeat(np.arange(count), lengths)
    observations[np.arange(len(steps)) + trajectory] = steps.observations
    last = offsets[1:] - 1
    observations[offsets[1:] + np.arange(count)] = steps.next_observations[last]
    return Trajectories(
        observations=observations,
        actions=steps.actions,
        rewards=steps.rewards,
        terminated=steps.terminated,
        truncated=steps.truncated,
        offsets=offsets,
        unit_ids=np.arange(count, dtype=np.uint64),
    )
