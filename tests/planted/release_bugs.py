"""Bugs in noisy statistics: sensitivity, cells without noise, draws that nobody charged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.methods.value_iteration import counts
from distributed_privrl.methods.value_iteration.counts import CountWorker
from distributed_privrl.privacy.mechanisms import GaussianRelease
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.releases import ReleaseServer

Plant = Callable[[pytest.MonkeyPatch], None]


def wrong_sensitivity(factor: float) -> Plant:
    """The sensitivity is not what one unit can change."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = counts.tabular_sensitivities

        def wrong(*arguments: Any, **named: Any) -> Any:
            found = right(*arguments, **named)
            return replace(found, l1=found.l1 * factor, l2=found.l2 * factor)

        patch.setattr(counts, "tabular_sensitivities", wrong)

    return plant


def repeated_cells(patch: pytest.MonkeyPatch) -> None:
    """Time steps are not told apart: a trajectory counts in each of them as often as it is long."""
    right = CountWorker.counts

    def all_steps(self: CountWorker, step: int) -> Any:
        found = right(self, step)
        return replace(found, counts=found.counts * self._blocks)

    patch.setattr(CountWorker, "counts", all_steps)


def empty_cells_stay_empty(patch: pytest.MonkeyPatch) -> None:
    """Only visited cells get noise: who was where shows in what is zero."""
    right = SecureNoise.add_gaussian

    def sparse(self: SecureNoise, values: Any, **arguments: Any) -> Any:
        noisy = right(self, values, **arguments)
        return np.where(values == 0, 0.0, noisy)

    patch.setattr(SecureNoise, "add_gaussian", sparse)


def wrong_scale(patch: pytest.MonkeyPatch) -> None:
    """The noise has half the deviation that is stated."""
    right = SecureNoise.add_gaussian

    def quiet(self: SecureNoise, values: Any, *, standard_deviation: float, **rest: Any) -> Any:
        return right(self, values, standard_deviation=standard_deviation / 2, **rest)

    patch.setattr(SecureNoise, "add_gaussian", quiet)


def released_twice(patch: pytest.MonkeyPatch) -> None:
    """The mean of two draws is used, and one is charged."""
    right = GaussianRelease.release

    def twice(self: GaussianRelease, values: Any, source: Any, *, tag: int = 0) -> Any:
        first = right(self, values, source, tag=tag)
        return (first + right(self, values, source, tag=tag)) / 2

    patch.setattr(GaussianRelease, "release", twice)


def reserved_too_late(patch: pytest.MonkeyPatch) -> None:
    """A step is reserved once it has been drawn."""
    reserve, run = ReleaseServer._reserve_block, ReleaseServer._run_round

    def later(self: ReleaseServer) -> None:
        self._block_left, self._block_drawn = 1, 0

    def run_first(self: ReleaseServer) -> None:
        run(self)
        self._round -= 1
        reserve(self)
        self._round += 1
        self._block_left, self._block_drawn = 0, 1

    patch.setattr(ReleaseServer, "_reserve_block", later)
    patch.setattr(ReleaseServer, "_run_round", run_first)
