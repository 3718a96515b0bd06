"""When drawn trajectories end, so that as many do after each step as lengths say."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from distributed_privrl.marginals.bins import is_panel
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.flow import stuck
from distributed_privrl.marginals.headroom import Headroom
from distributed_privrl.marginals.laterals import given_all
from distributed_privrl.marginals.steps import length_starts

_LEAST = 1e-6
_ROUNDING = 1e-9
_WIDEST = 30.0


@dataclass(frozen=True, eq=False)
class Endings:
    """Draws which trajectories end.

    Args:
        model: of a step.
        longest: steps at most.
        headrooms: how far numbers may still rise.
    """

    model: TableModel
    longest: int
    headrooms: Sequence[Headroom]

    def draw(
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
            for room in self.headrooms:
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
