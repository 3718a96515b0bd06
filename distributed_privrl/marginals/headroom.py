"""How far a number that never falls may still rise, from where it is.

A day of a study, told as a change from step to step, cannot pass the last day. Counts say so of its
bins; within the last ones the number itself does. Without it, whoever has a long history would pile
up on the last day, step after step. Other numbers may stop at a bound as people do, such as a stock
that is sold out: what a change leads to beyond it is cut there.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.drawing import NumberModel
from distributed_privrl.marginals.flow import SLACK, STUCK, led_to
from distributed_privrl.marginals.shapes import drawn_numbers

_RANKS = 16
"""Places within a bin of changes from which it is told how much of it is too far."""
_TRIES = 8
"""How often a change that is too far is drawn anew, before it is cut."""


@dataclass(frozen=True, eq=False)
class Headroom:
    """Which changes of a number lead to within its bounds.

    Args:
        before: place of the number.
        after: place of its change.
        high: the largest number, and what sums of steps may be off.
        changes: ``(L, R)``, rising numbers in each bin of changes.
        masses: ``(L,)`` weights of these bins.
        usual: ``(K, L)``, which part of each of them leads to within the bounds from each bin.
    """

    before: int
    after: int
    high: float
    changes: NDArray[np.float64]
    masses: NDArray[np.float64]
    usual: NDArray[np.float64]

    def left(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return which part of each bin of changes is left, ``(N, L)``, from numbers ``(N,)``."""
        room = self.high - numbers
        found = [np.searchsorted(each, room, side="right") for each in self.changes]
        return np.asarray(np.stack(found, axis=1) / self.changes.shape[1])

    def likelihoods(
        self, bins: NDArray[np.integer], numbers: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how much likelier each bin of changes is than the number's bin says, ``(N, L)``.

        Args:
            bins: of the number, ``(N,)``.
            numbers: ``(N,)``.
        """
        left, usual = self.left(numbers), self.usual[bins]
        return np.asarray(np.divide(left, usual, out=left.copy(), where=usual > 0))

    def stuck(self, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Say from which numbers, ``(N,)``, hardly any change leads anywhere; see `flow.stuck`."""
        return np.asarray(self.left(numbers) @ self.masses < STUCK * self.masses.sum())

    def kept(
        self,
        numbers: NDArray[np.float64],
        changes: NDArray[np.float64],
        again: Callable[[NDArray[np.int64]], NDArray[np.float64]],
    ) -> NDArray[np.float64]:
        """Return changes ``(N,)`` of numbers, those drawn anew that are too far.

        Args:
            numbers: ``(N,)``.
            changes: as they were drawn.
            again: draws those of some rows anew.
        """
        changes = changes.copy()
        for _ in range(_TRIES):
            (over,) = np.nonzero(numbers + changes > self.high)
            if not len(over):
                break
            changes[over] = again(over)
        return changes


def headrooms(model: NumberModel) -> list[Headroom]:
    """Return how far each number may rise that never falls and is told as a change."""
    columns, found = model.columns, []
    after = {columns[z].place: z for z in columns.of("next_observation")}
    for place in columns.of("observation"):
        change, cells = after.get(columns[place].place), columns[place].cells
        if change is None or cells is None:
            continue
        if not (columns[change].rises and columns[change].difference):
            continue
        pair = place, change
        shapes = [model.shapes[i] for i in pair]
        size = shapes[1].size
        ranks = (np.arange(_RANKS) + 0.5) / _RANKS
        changes = drawn_numbers(
            columns[change], shapes[1], np.repeat(np.arange(size), _RANKS), np.tile(ranks, size)
        )
        usual = led_to([columns[i] for i in pair], shapes).sum(axis=2)
        found.append(
            Headroom(
                before=place,
                after=change,
                high=cells.high + SLACK * (cells.high - cells.low),
                changes=np.sort(changes.reshape(size, _RANKS), axis=1),
                masses=shapes[1].bin_masses,
                usual=usual,
            )
        )
    return found
