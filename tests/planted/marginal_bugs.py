"""Bugs in marginals: what a unit weighs, what is drawn beyond what is charged, what is read raw."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.marginals import counting, plan, program
from distributed_privrl.marginals.belief import Belief
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.privacy.selection import ExponentialSelection

Plant = Callable[[pytest.MonkeyPatch], None]


def rows_are_units(patch: pytest.MonkeyPatch) -> None:
    """Every row has the weight of a unit that has no more rows than the cap."""
    right = counting._weighted_rows

    def weighted(spec: Any) -> Any:
        rows, weights, once = right(spec)
        each = float(counting.UNIT_WEIGHT // spec.rows_per_unit)
        return rows, np.where(weights > 0, each, 0.0), once

    patch.setattr(counting, "_weighted_rows", weighted)


def weights_rounded_up(patch: pytest.MonkeyPatch) -> None:
    """A row's weight is rounded up, so that three thirds are more than a unit."""
    right = counting._weighted_rows

    def weighted(spec: Any) -> Any:
        rows, weights, once = right(spec)
        return rows, np.where(weights > 0, weights + 1, 0.0), once

    patch.setattr(counting, "_weighted_rows", weighted)


def columns_as_one_histogram(patch: pytest.MonkeyPatch) -> None:
    """All columns together have the noise of one of them."""
    right = plan._releases

    def releases(*arguments: Any) -> Any:
        first, *rest = right(*arguments)
        assert first.columns is not None
        alone = first.columns.sensitivity / math.sqrt(arguments[3])
        return (replace(first, columns=replace(first.columns, sensitivity=alone)), *rest)

    patch.setattr(plan, "_releases", releases)


def scores_twice_as_steep(patch: pytest.MonkeyPatch) -> None:
    """A score moves twice as far as it is charged for."""
    right = program.score
    patch.setattr(program, "score", lambda *a, **k: 2 * right(*a, **k))


def a_count_measured_twice(patch: pytest.MonkeyPatch) -> None:
    """The count that was chosen last is measured again, for nothing."""
    right = MarginalsProgram._choose

    def choose(self: Any, workers: Any, noise: Any, release: Any, count: int, *, tag: int) -> None:
        right(self, workers, noise, release, count, tag=tag)
        clique = self._belief.tables[-1].clique
        flat = self._exact(workers, [clique])[clique].reshape(-1)
        release.tables.release(flat, noise, tag=tag + count)

    patch.setattr(MarginalsProgram, "_choose", choose)


def a_choice_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Of two draws the better one is taken, and one is charged."""
    choose = ExponentialSelection.choose

    def better(self: Any, scores: Any, chooser: Any, *, tag: int = 0) -> int:
        two = [choose(self, scores, chooser, tag=tag + extra) for extra in (0, 5000)]
        return max(two, key=lambda place: scores[place])

    patch.setattr(ExponentialSelection, "choose", better)


def one_more_step(patch: pytest.MonkeyPatch) -> None:
    """Each step chooses one count more than its entry states."""
    right = MarginalsProgram._choose

    def choose(self: Any, workers: Any, noise: Any, release: Any, count: int, *, tag: int) -> None:
        right(self, workers, noise, release, count + 1, tag=tag)

    patch.setattr(MarginalsProgram, "_choose", choose)


def bins_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Bins are found from what workers answered, and not from what was released."""
    right = MarginalsProgram._count_columns

    def count(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        right(self, workers, noise, release, tag=tag)
        exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        self._belief.shape(exact, self._noisy_columns[1])

    patch.setattr(MarginalsProgram, "_count_columns", count)


def exact_total(patch: pytest.MonkeyPatch) -> None:
    """The weight of all rows is read, and not estimated from what was released."""
    count, shape = MarginalsProgram._count_columns, Belief.shape

    def counted(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        count(self, workers, noise, release, tag=tag)
        exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        self._belief.exact_total = float(exact[: self._spec.columns[0].size].sum())

    def shaped(self: Any, counts: Any, deviation: float) -> None:
        shape(self, counts, deviation)
        self.total = self.exact_total

    patch.setattr(MarginalsProgram, "_count_columns", counted)
    patch.setattr(Belief, "shape", shaped)


def checkpoint_of_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint keeps what workers answered, beside what was released."""
    count, tensors = MarginalsProgram._count_columns, MarginalsProgram.tensors

    def counted(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        count(self, workers, noise, release, tag=tag)
        self._raw = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))

    def kept(self: Any) -> Any:
        return tensors(self) | {"exact": torch.from_numpy(self._raw)}

    patch.setattr(MarginalsProgram, "_count_columns", counted)
    patch.setattr(MarginalsProgram, "tensors", kept)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    """Joint counts are released with half of the noise that is charged."""
    right = plan.IntegerGaussianRelease.release

    def release(self: Any, values: Any, source: Any, *, tag: int = 0) -> Any:
        if self.count > 1:
            self = replace(self, noise_multiplier=self.noise_multiplier / 2)
        return right(self, values, source, tag=tag)

    patch.setattr(plan.IntegerGaussianRelease, "release", release)
