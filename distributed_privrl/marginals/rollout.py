"""Whole trajectories drawn from the model of a step, one step after the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from distributed_privrl.core.progress import SAMPLING, Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, Transitions, offsets_of
from distributed_privrl.marginals.balancing import FirstStates, Odds
from distributed_privrl.marginals.bins import is_panel
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.crowd import Crowd
from distributed_privrl.marginals.drawer import Drawer, drawing_order
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.drift import Drift
from distributed_privrl.marginals.flow import stuck
from distributed_privrl.marginals.headroom import Headroom, headrooms
from distributed_privrl.marginals.laterals import Laterals, given_all, laterals_of
from distributed_privrl.marginals.memory import Memory, remembered
from distributed_privrl.marginals.shapes import falling
from distributed_privrl.marginals.steps import length_starts, time_starts
from distributed_privrl.marginals.tilting import Tilt, block_sizes, fitted_tilt

_LEAST = 1e-6
_ROUNDING = 1e-9
_WIDEST = 30.0
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
        columns = self.model.columns
        (place,) = columns.of("time")
        starts = time_starts(columns[place].categories)
        bins[:, place] = np.searchsorted(starts, time, side="right") - 1
        if time == 0:
            self._nothing_before(bins)
            for _ in columns.of("unit"):
                self.model.draw_units(bins, self._beginners, random)
            self._begin(bins, random, firsts)
            first = self.model.numbers(bins, random, places=self._remembered, scores=scores)
            memory.see(first, bins)
            likelier = self._possible(bins)
            for place in self._reminded:
                likelier.setdefault(place, np.ones((len(bins), self.model.field.sizes[place])))
            self._follow_on(bins, likelier, random)
            self._end(time, bins, random)
            self._lead_on(bins, likelier, random)
            asked = [i for i in range(len(columns)) if i not in self._remembered]
            numbers = self.model.numbers(bins, random, places=asked, scores=scores)
            numbers = [first[i] if i in self._remembered else one for i, one in enumerate(numbers)]
            return self._within(numbers, bins, scores, random)
        self._act(bins, random, odds)
        self._drawers[1].fill(bins, random)
        likelier = self._likelier(bins, scores, before)
        self._follow_on(bins, likelier, random)
        self._end(time, bins, random, before)
        self._lead_on(bins, likelier, random)
        known = set(known_before(columns))
        asked = [i for i in range(len(columns)) if i not in known]
        numbers = self.model.numbers(bins, random, places=asked, scores=scores)
        numbers = [before[i] if i in known else one for i, one in enumerate(numbers)]
        return self._within(numbers, bins, scores, random)

    def _within(
        self,
        numbers: list[NDArray[np.float64]],
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        random: np.random.Generator,
    ) -> list[NDArray[np.float64]]:
        """Return the numbers of a step, with changes that lead to within bounds."""
        for room in self._headrooms:

            def again(rows: NDArray[np.int64], place: int = room.after) -> NDArray[np.float64]:
                found = self.model.numbers(
                    bins[rows], random, places=[place], scores=scores[rows].copy()
                )
                return found[place]

            numbers[room.after] = room.kept(numbers[room.before], numbers[room.after], again)
        return numbers

    @cached_property
    def _remembered(self) -> list[int]:
        """Numbers of a state that have a level."""
        columns = self.model.columns
        return [remembered(columns, place) for place in columns.of("memory")]

    @cached_property
    def _reminded(self) -> list[int]:
        """What these become, which depends on the level."""
        columns = self.model.columns
        own = {columns[place].place for place in self._remembered}
        return [z for z in columns.of("next_observation") if columns[z].place in own]

    @cached_property
    def _headrooms(self) -> list[Headroom]:
        return headrooms(self.model)

    def _likelier(
        self,
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        before: Sequence[NDArray[np.float64]],
    ) -> dict[int, NDArray[np.float64]]:
        """Return how much likelier bins of what follows known numbers are by where these lie."""
        found = self._possible(bins) | {
            room.after: room.likelihoods(bins[:, room.before], before[room.before])
            for room in self._headrooms
        }
        for place in self._following:
            one = self.model.couplings.of[place]
            told = one.leads.likelihoods(bins[:, one.leader], scores[:, one.leader])
            found[place] = found.get(place, 1.0) * told
        return found

    def _possible(self, bins: NDArray[np.int32]) -> dict[int, NDArray[np.float64]]:
        """Return 0 for bins in which a number would fall that never does, else 1, by its place."""
        columns, shapes = self.model.columns, self.model.shapes
        found = {}
        for after in columns.of("next_observation"):
            before, cells = columns[after].like, columns[after].cells
            if columns[after].rises and before is not None and cells is not None:
                never = falling(shapes[after], cells)
                found[after] = (~never)[bins[:, before]].astype(np.float64)
        return found

    def _follow_on(
        self,
        bins: NDArray[np.int32],
        likelier: Mapping[int, NDArray[np.float64]],
        random: np.random.Generator,
    ) -> None:
        """Draw anew the bins that follow from where known numbers lie in theirs, in place.

        All that the model knows of a number that is known before a step is its bin. Given all
        others of the step, a bin of what follows it is as likely as the model has it, times how
        much likelier it is by where the number lies in its own.
        """
        for place, likelihoods in likelier.items():
            shares = given_all(self.model.field, place, bins) * likelihoods
            cumulated = shares.cumsum(axis=1)
            aim = random.random(len(bins)) * cumulated[:, -1]
            above = (cumulated <= aim[:, None]).sum(axis=1)
            found = np.minimum(above, shares.shape[1] - 1)
            bins[:, place] = np.where(cumulated[:, -1] > 0, found, bins[:, place])

    @cached_property
    def _following(self) -> list[int]:
        """Numbers that follow one whose place in its bin is known before a step."""
        columns = self.model.columns
        changes = {
            columns[z].place for z in columns.of("next_observation") if columns[z].difference
        }
        known = {i for i in columns.of("observation") if columns[i].place not in changes}
        after = columns.of("reward", "next_observation")
        return [
            place
            for place, one in self.model.couplings.of.items()
            if place in after and not columns[place].difference and one.leader in known
        ]

    def _lead_on(
        self,
        bins: NDArray[np.int32],
        likelier: Mapping[int, NDArray[np.float64]],
        random: np.random.Generator,
    ) -> None:
        """Draw what steps lead to anew, where the model does not tell all of it, in place."""
        if self._laterals is not None:
            after = {i: one for i, one in likelier.items() if i in self._laterals.places}
            self._laterals.sweep(bins, random, after)

    @cached_property
    def _laterals(self) -> Laterals | None:
        return laterals_of(self.model)

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

    def _end(
        self,
        time: int,
        bins: NDArray[np.int32],
        random: np.random.Generator,
        before: Sequence[NDArray[np.float64]] = (),
    ) -> None:
        """Draw anew which trajectories end, so that as many do as lengths say, in place.

        Odds of ending, which depend on the step, are raised or lowered alike. Steps from where no
        change leads anywhere are the last, but at times when none is, and in a panel.

        Args:
            time: of the step.
            bins: ``(N, V)``.
            random: of the draws.
            before: numbers that are known before the step, by column; (): none is.
        """
        hazard = self._hazards[time] if time < len(self._hazards) else None
        if hazard is None:
            return
        (place,) = self.model.columns.of("end")
        if hazard == 0:
            bins[:, place] = 0
            return
        shares = given_all(self.model.field, place, bins)
        kinds = (shares[:, 1:] + _LEAST * self._kinds) * (self._kinds > 0)
        goes_on = np.maximum(shares[:, 0], _LEAST)
        odds, stuck = kinds.sum(axis=1) / goes_on, self._are_stuck(bins, before)

        def likely(log_factor: float) -> NDArray[np.float64]:
            scaled = odds * np.exp(log_factor)
            return np.where(stuck, 1.0, scaled / (1 + scaled))

        def missing(log_factor: float) -> float:
            return float(likely(log_factor).mean()) - hazard

        factor = 0.0
        if missing(-_WIDEST) >= 0:  # more are stuck than should end
            factor = -_WIDEST
        elif missing(_WIDEST) > 0:
            factor = brentq(missing, -_WIDEST, _WIDEST)
        ends = random.random(len(bins)) < (1.0 if hazard == 1 else likely(factor))
        cut = random.random(len(bins)) < kinds[:, -1] / kinds.sum(axis=1)
        bins[:, place] = np.where(ends, np.where(cut, kinds.shape[1], 1), 0)

    def _are_stuck(
        self, bins: NDArray[np.int32], before: Sequence[NDArray[np.float64]]
    ) -> NDArray[np.bool_]:
        """Say which steps, ``(N,)``, lead nowhere within the bounds."""
        found = np.zeros(len(bins), np.bool_)
        for place, own in self._stuck.items():
            found |= own[bins[:, place]]
        if before and not is_panel(self.model.lengths):
            for room in self._headrooms:
                found |= room.stuck(before[room.before])
        return found

    @cached_property
    def _stuck(self) -> dict[int, NDArray[np.bool_]]:
        return {} if is_panel(self.model.lengths) else stuck(self.model)

    @cached_property
    def _kinds(self) -> NDArray[np.float64]:
        """How ends are divided among their kinds, ``(2,)``, where the model expects none.

        A kind that was not seen is 0 everywhere: what the model has of it is its floor.
        """
        (place,) = self.model.columns.of("end")
        masses = self.model.shapes[place].bin_masses[1:]
        even = np.full(len(masses), 1 / len(masses))
        return np.asarray(masses / masses.sum() if masses.sum() > 0 else even)

    @cached_property
    def _hazards(self) -> list[float | None]:
        """How likely a trajectory ends at each step if it came so far; None: nothing says."""
        lengths = self.model.lengths
        if not len(lengths) or lengths.sum() <= 0:
            return []
        starts = np.append(length_starts(self.model.columns.longest), self.longest + 1)
        left = np.cumsum(lengths[::-1])[::-1]
        hazards: list[float | None] = []
        for group, (start, stop) in enumerate(pairwise(starts.tolist())):
            if left[group] <= 0:
                break
            each = float(lengths[group] / left[group]) / max(stop - start, 1)  # as many of each
            found = [each / (1 - place * each) for place in range(stop - start)]
            hazards += [1.0 if one > 1 - _ROUNDING else one for one in found]
        return hazards

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
