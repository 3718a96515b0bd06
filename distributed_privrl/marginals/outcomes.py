"""What steps of drawn trajectories lead to: next observations and rewards that can be.

All that the model knows of a number that is known before a step is its bin. What follows is drawn
by where the number lies in its bin, within bounds, and together where the model holds next columns
apart; see `couplings`, `headroom` and `laterals`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.headroom import Headroom, headrooms
from distributed_privrl.marginals.laterals import Laterals, given_all, laterals_of
from distributed_privrl.marginals.memory import remembered
from distributed_privrl.marginals.shapes import falling


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Draws what steps lead to, after the model has drawn all bins of a step.

    Args:
        model: of a step.
    """

    model: TableModel

    def first(self, bins: NDArray[np.int32]) -> dict[int, NDArray[np.float64]]:
        """Return how much likelier bins of what follows a first step are, by place ``(N, L)``.

        Args:
            bins: of the steps, ``(N, V)``.
        """
        found = self._possible(bins)
        for place in self._reminded:
            found.setdefault(place, np.ones((len(bins), self.model.field.sizes[place])))
        return found

    def later(
        self,
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        before: Sequence[NDArray[np.float64]],
    ) -> dict[int, NDArray[np.float64]]:
        """Return how much likelier bins of what follows known numbers are by where these lie.

        Args:
            bins: of the steps, ``(N, V)``.
            scores: where numbers lie in their bins, ``(N, V)``.
            before: numbers that are known before a step, by column.
        """
        found = self._possible(bins) | {
            room.after: room.likelihoods(bins[:, room.before], before[room.before])
            for room in self.headrooms
        }
        for place in self._following:
            one = self.model.couplings.of[place]
            told = one.leads.likelihoods(bins[:, one.leader], scores[:, one.leader])
            found[place] = found.get(place, 1.0) * told
        return found

    def follow_on(
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

    def lead_on(
        self,
        bins: NDArray[np.int32],
        likelier: Mapping[int, NDArray[np.float64]],
        random: np.random.Generator,
    ) -> None:
        """Draw what steps lead to anew, where the model does not tell all of it, in place."""
        if self._laterals is not None:
            after = {i: one for i, one in likelier.items() if i in self._laterals.places}
            self._laterals.sweep(bins, random, after)

    def within(
        self,
        numbers: list[NDArray[np.float64]],
        bins: NDArray[np.int32],
        scores: NDArray[np.float64],
        random: np.random.Generator,
    ) -> list[NDArray[np.float64]]:
        """Return the numbers of a step, with changes that lead to within bounds."""
        for room in self.headrooms:

            def again(rows: NDArray[np.int64], place: int = room.after) -> NDArray[np.float64]:
                found = self.model.numbers(
                    bins[rows], random, places=[place], scores=scores[rows].copy()
                )
                return found[place]

            numbers[room.after] = room.kept(numbers[room.before], numbers[room.after], again)
        return numbers

    @cached_property
    def headrooms(self) -> list[Headroom]:
        """How far numbers that change may still rise."""
        return headrooms(self.model)

    @cached_property
    def remembered(self) -> list[int]:
        """Numbers of a state that have a level."""
        columns = self.model.columns
        return [remembered(columns, place) for place in columns.of("memory")]

    @cached_property
    def _reminded(self) -> list[int]:
        """What these become, which depends on the level."""
        columns = self.model.columns
        own = {columns[place].place for place in self.remembered}
        return [z for z in columns.of("next_observation") if columns[z].place in own]

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

    @cached_property
    def _laterals(self) -> Laterals | None:
        return laterals_of(self.model)
