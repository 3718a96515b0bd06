"""Bugs in noisy statistics: sensitivity, cells without noise, draws that nobody charged."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.methods.value_iteration import counts, statistics
from distributed_privrl.methods.value_iteration.counts import CountWorker
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.integer_sums import Lattice
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.releases import ReleaseServer
from tests.worlds.matrices import symmetric_to_vector

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

    def all_steps(self: CountWorker, step: int, reward_unit: float) -> Any:
        found = right(self, step, reward_unit)
        return replace(found, counts=found.counts * self._blocks)

    patch.setattr(CountWorker, "counts", all_steps)


def empty_cells_stay_empty(patch: pytest.MonkeyPatch) -> None:
    """Only visited cells get noise: who was where shows in what is zero."""
    right = SecureNoise.add_discrete_gaussian

    def sparse(self: SecureNoise, values: Any, **arguments: Any) -> Any:
        noisy = right(self, values, **arguments)
        return np.where(values == 0, 0, noisy)

    patch.setattr(SecureNoise, "add_discrete_gaussian", sparse)


def wrong_scale(patch: pytest.MonkeyPatch) -> None:
    """The noise has half the deviation that is stated."""
    right = SecureNoise.add_discrete_gaussian

    def quiet(self: SecureNoise, values: Any, *, standard_deviation: float, **rest: Any) -> Any:
        return right(self, values, standard_deviation=standard_deviation / 2, **rest)

    patch.setattr(SecureNoise, "add_discrete_gaussian", quiet)


def sums_rounded_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """Rows are added as floats, and their sum is rounded: exact noise on sums that are not."""

    def rounded_at_the_end(
        features: FeatureMap, pairs: Any, values: Any, lattice: Lattice
    ) -> NDArray[np.int64]:
        total = np.zeros((features.blocks, features.width))
        np.add.at(total, features.block_of(pairs), features.vectors(pairs) * values[:, None])
        return np.rint(total / lattice.lattice).astype(np.int64).reshape(-1)

    patch.setattr(statistics, "row_steps", rounded_at_the_end)


def pairs_rounded_together(patch: pytest.MonkeyPatch) -> None:
    """The rows of a pair are counted and their product is rounded, not each row's."""

    def rounded_together(
        features: FeatureMap, counts: Any, weights: Any, lattice: Lattice
    ) -> NDArray[np.int64]:
        gram = features.gram(counts * weights)
        return np.rint(symmetric_to_vector(gram) / lattice.lattice).astype(np.int64)

    patch.setattr(statistics, "gram_steps", rounded_together)


def released_twice(patch: pytest.MonkeyPatch) -> None:
    """The mean of two draws is used, and one is charged."""
    right = DiscreteGaussianRelease.release

    def twice(self: DiscreteGaussianRelease, values: Any, source: Any, *, tag: int = 0) -> Any:
        first = right(self, values, source, tag=tag)
        return (first + right(self, values, source, tag=tag)) / 2

    patch.setattr(DiscreteGaussianRelease, "release", twice)


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
