"""Bugs in marginals: what a unit weighs, what is drawn beyond what is charged, what is read raw."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.marginals import candidates, counting, plan, program, stage
from distributed_privrl.marginals.belief import Belief
from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.marginals.tables import blocks
from distributed_privrl.privacy.selection import ExponentialSelection

Plant = Callable[[pytest.MonkeyPatch], None]


def rows_are_units(patch: pytest.MonkeyPatch) -> None:
    """Every row has the weight of a unit that has no more rows than the cap."""
    right = counting._weighted_rows

    def weighted(spec: Any) -> Any:
        rows, weights, *others = right(spec)
        each = float(counting.UNIT_WEIGHT // spec.rows_per_unit)
        return rows, np.where(weights > 0, each, 0.0), *others

    patch.setattr(counting, "_weighted_rows", weighted)


def weights_rounded_up(patch: pytest.MonkeyPatch) -> None:
    """A row's weight is rounded up, so that three thirds are more than a unit."""
    right = counting._weighted_rows

    def weighted(spec: Any) -> Any:
        rows, weights, *others = right(spec)
        return rows, np.where(weights > 0, weights + 1, 0.0), *others

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

    def choose(self: Any, workers: Any, noise: Any, release: Any, step: int, *, tag: int) -> None:
        right(self, workers, noise, release, step, tag=tag)
        clique = self._belief.tables[-1].clique
        flat = self._exact(workers, [clique])[clique].reshape(-1)
        release.tables.release(flat, noise, tag=tag + self._spec.plan.counts[step - 1])

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

    def choose(self: Any, workers: Any, noise: Any, release: Any, step: int, *, tag: int) -> None:
        spec = self._spec
        more = SimpleNamespace(counts=tuple(count + 1 for count in spec.plan.counts))
        self._spec = replace(spec, plan=more)  # a plan itself refuses that
        right(self, workers, noise, release, step, tag=tag)
        self._spec = spec

    patch.setattr(MarginalsProgram, "_choose", choose)


def bins_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Bins are found from what workers answered, and not from what was released."""
    right = MarginalsProgram._count_columns

    def count(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        right(self, workers, noise, release, tag=tag)
        exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        self._belief.shape(exact, self._noisy_columns[1])

    patch.setattr(MarginalsProgram, "_count_columns", count)


def _columns_are_known(patch: pytest.MonkeyPatch) -> None:
    """Tell a belief, and its bins, the exact counts of all columns, as ``exact``."""
    count, shape = MarginalsProgram._count_columns, Belief.shape

    def counted(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        count(self, workers, noise, release, tag=tag)
        self._belief.exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))

    def shaped(self: Any, counts: Any, deviation: float) -> None:
        shape(self, counts, deviation)
        self.bins.exact = self.exact

    patch.setattr(MarginalsProgram, "_count_columns", counted)
    patch.setattr(Belief, "shape", shaped)


def _exact_masses(known: Any, place: int) -> Any:
    """Return the exact weight of each bin of a column, of bins that were told."""
    columns, shape = known.columns, known.shapes[place]
    like = columns[place].like
    own = place if like is None else like
    start = sum(columns.counted[:own])
    cells = known.exact[start : start + columns[own].size]
    return np.bincount(shape.bins, weights=cells, minlength=shape.size)


def exact_total(patch: pytest.MonkeyPatch) -> None:
    """The weight of all rows is read, and not estimated from what was released."""
    _columns_are_known(patch)
    shape = Belief.shape

    def shaped(self: Any, counts: Any, deviation: float) -> None:
        shape(self, counts, deviation)
        self.bins.total = float(self.exact[: self.bins.columns[0].size].sum())

    patch.setattr(Belief, "shape", shaped)


def parts_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Numbers are cut into parts by what workers answered, in bins that were released."""
    maps, margin = Bins.maps, Bins.margin

    def exact(self: Any, place: int) -> Any:
        return replace(margin(self, place), masses=_exact_masses(self, place))

    def cut(self: Any, count: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Bins, "margin", exact)
            return maps(self, count)

    _columns_are_known(patch)
    patch.setattr(Bins, "maps", cut)


def candidates_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Parts are candidates by the mean weight of cells that any row may lie in."""
    right = Belief.worth_counting

    def seen(self: Any, clique: Any) -> bool:
        cells = math.prod(np.count_nonzero(_exact_masses(self.bins, place)) for place in clique)
        return self.bins.total > candidates._RESOLVED * self._joint_deviation * cells

    def worth_counting(self: Any) -> Any:
        return [one for one in right(self) if not one.parts or not seen(self, one.clique)]

    _columns_are_known(patch)
    patch.setattr(Belief, "worth_counting", worth_counting)


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


def exact_counts_among_the_noisy(patch: pytest.MonkeyPatch) -> None:
    """What a checkpoint calls cleaned counts are exact ones; all names are those it always has."""
    release, tensors = plan.IntegerGaussianRelease.release, MarginalsProgram.tensors
    exact: list[Any] = []

    def released(self: Any, values: Any, source: Any, *, tag: int = 0) -> Any:
        exact.append(np.array(values, np.float64))
        return release(self, values, source, tag=tag)

    def kept(self: Any) -> Any:
        found = tensors(self)
        return found | {
            name: torch.from_numpy(np.resize(exact[1 + place], found[name].shape))
            for place, name in enumerate(one for one in found if one.startswith("cleaned"))
        }

    patch.setattr(plan.IntegerGaussianRelease, "release", released)
    patch.setattr(MarginalsProgram, "tensors", kept)


def parts_of_exact_counts_are_kept(patch: pytest.MonkeyPatch) -> None:
    """A checkpoint holds exact counts in halves of numbers that were scored and never chosen.

    It has them under a name that checkpoints of other methods have, and takes no notice of it.
    """
    exact, tensors = MarginalsProgram._exact, MarginalsProgram.tensors
    raw: dict[Any, Any] = {}

    def counted(self: Any, workers: Any, cliques: Any) -> Any:
        found = exact(self, workers, cliques)
        raw.update(found)
        return found

    def kept(self: Any) -> Any:
        open_ = self._belief.worth_counting() if raw else []
        parts = [
            blocks(raw[one.clique], self._belief.bins.maps(one)).reshape(-1)
            for one in open_
            if one.parts == 2 and one.clique in raw
        ]
        return tensors(self) | (
            {"tables": torch.from_numpy(np.concatenate(parts))} if parts else {}
        )

    patch.setattr(MarginalsProgram, "_exact", counted)
    patch.setattr(MarginalsProgram, "tensors", kept)


def bounds_of_the_rows(patch: pytest.MonkeyPatch) -> None:
    """Cells lie between the least and the largest number that any row has."""
    right = stage.bounds_of

    def bounds(data: Any, store: Any, found: Any = None) -> Any:
        public = right(data, store, found)
        rows = store.read_transitions(data.sensitive, unit="transition").observations
        low, high = public.low.copy(), public.high.copy()
        low[:2], high[:2] = rows[:, :2].min(axis=0), rows[:, :2].max(axis=0)
        return replace(public, low=low, high=high)

    patch.setattr(stage, "bounds_of", bounds)


def scores_are_logged(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log learns by how much the chosen count was wrong."""
    choose = ExponentialSelection.choose

    def told(self: Any, scores: Any, chooser: Any, *, tag: int = 0) -> int:
        place = choose(self, scores, chooser, tag=tag)
        logging.getLogger("distributed_privrl.marginals").info("score %d", scores[place])
        return place

    patch.setattr(ExponentialSelection, "choose", told)


def scores_are_sent(patch: pytest.MonkeyPatch) -> None:
    """Workers are told the last scores, with the bins."""
    choose, columns = ExponentialSelection.choose, CountWorker.columns
    exact = MarginalsProgram._exact
    last: list[Any] = []

    def noted(self: Any, scores: Any, chooser: Any, *, tag: int = 0) -> int:
        last[:] = [np.array(scores, np.int64)]
        return choose(self, scores, chooser, tag=tag)

    def asked(self: Any, workers: Any, cliques: Any) -> Any:
        if last:
            workers.call("columns", {"scores": last[0]})
        return exact(self, workers, cliques)

    patch.setattr(CountWorker, "columns", lambda self, scores=None: columns(self))
    patch.setattr(ExponentialSelection, "choose", noted)
    patch.setattr(MarginalsProgram, "_exact", asked)


def real_rows_among_the_drawn(patch: pytest.MonkeyPatch) -> None:
    """The first row of a release is the one with the largest number."""
    draw = TableModel.transitions

    def drawn(self: Any, count: int, random: Any) -> Any:
        rows = draw(self, count, random)
        rows.observations[0, :2] = rarest[0]
        return rows

    rarest: list[Any] = []
    coded = TableColumns.coded

    def seen(self: Any, steps: Any) -> Any:
        rows = steps.transitions.observations
        rarest[:] = [rows[rows[:, 0].argmax(), :2].copy()]
        return coded(self, steps)

    patch.setattr(TableColumns, "coded", seen)
    patch.setattr(TableModel, "transitions", drawn)


def correlations_as_one_pair(patch: pytest.MonkeyPatch) -> None:
    """All correlations together have the noise of one of them."""
    right = plan.correlation_sensitivity
    patch.setattr(plan, "correlation_sensitivity", lambda relation, _: right(relation, 1))


def correlations_of_null_alone(patch: pytest.MonkeyPatch) -> None:
    """That a unit which becomes another one moves products both ways is forgotten."""
    right = plan.correlation_sensitivity

    def once(relation: Any, pairs: int) -> float:
        return right(relation, pairs) / math.sqrt(relation.contributions)

    patch.setattr(plan, "correlation_sensitivity", once)


def products_of_whole_rows(patch: pytest.MonkeyPatch) -> None:
    """Every row weighs a whole unit in the products, however many its unit has."""
    right = counting.summed_answers

    def summed(rows: Any, weights: Any, *asked: Any) -> Any:
        return right(rows, np.where(weights > 0, float(counting.UNIT_WEIGHT), 0.0), *asked)

    patch.setattr(counting, "summed_answers", summed)


def halves_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Where the upper half of a number begins is found from what workers answered."""
    right = program.questions_of

    def asked(self: Any) -> Any:
        known = self._belief.bins
        masses = [_exact_masses(known, place) for place in range(len(known.columns))]
        exact = [SimpleNamespace(bin_masses=one + 0.1 * one.mean()) for one in masses]
        return right(known.columns, exact)

    _columns_are_known(patch)
    patch.setattr(MarginalsProgram, "_questions", property(asked))


def correlations_measured_twice(patch: pytest.MonkeyPatch) -> None:
    """The mean of two noisy answers is taken, and one is charged."""
    right = MarginalsProgram._released

    def released(self: Any, vector: Any, noise: Any, release: Any, *, tag: int) -> Any:
        one, deviation = right(self, vector, noise, release, tag=tag)
        other, _ = right(self, vector, noise, release, tag=tag + 1)
        return (one + other) // 2, deviation / math.sqrt(2)

    patch.setattr(MarginalsProgram, "_released", released)


def sums_of_products_are_kept(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint holds exact sums of products, under the name of another tensor."""
    released, tensors = MarginalsProgram._released, MarginalsProgram.tensors

    def noted(self: Any, vector: Any, *given: Any, tag: int) -> Any:
        self._raw = vector.copy()
        return released(self, vector, *given, tag=tag)

    def kept(self: Any) -> Any:
        raw = getattr(self, "_raw", None)
        return tensors(self) | ({} if raw is None else {"tables": torch.from_numpy(raw)})

    patch.setattr(MarginalsProgram, "_released", noted)
    patch.setattr(MarginalsProgram, "tensors", kept)
