"""The server's part of marginals: counts of columns, choices of joint counts, their release.

A step of AIM, with a public schedule: candidates are scored by how wrong the model is about them,
the exponential mechanism chooses one, its count is released with Gaussian noise, and the rows that
stand for the model are weighted until they agree with it. So each choice knows the ones before it.
After some choices, private-PGM estimates the model anew.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM), algorithm 2.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.cleaning import Released, cleaned
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StepSource
from distributed_privrl.marginals.drawing import TableModel, couplings
from distributed_privrl.marginals.model import Drawer, Field, Measured, elimination, estimated
from distributed_privrl.marginals.plan import MarginalsPlan, StepRelease, integer_sensitivity
from distributed_privrl.marginals.prior import PublicRows, public_cells
from distributed_privrl.marginals.scores import score
from distributed_privrl.marginals.shapes import ColumnShape, column_shape
from distributed_privrl.marginals.tables import Clique, Margin, counts_of, raked
from distributed_privrl.marginals.workload import fitting, in_turn, workload
from distributed_privrl.privacy.choosing import Chooser
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.rounds.releases import Program

_COLUMNS, _TABLE, _CLEANED, _DEVIATION = "columns", "table", "cleaned", "deviation"
_DIGEST = "digest"
_EXACT = 0.02 * UNIT_WEIGHT
"""Without privacy, counts are taken to be as exact as this."""
_SHARED = 3.0
"""How much less a shared column's counts say of the one that shares them."""
_HIDDEN = 1.5
"""A cell that counts fewer deviations than this is lost in its noise."""
_SEEN = 2.0
"""Deviations of its noise that a bin must weigh to be seen."""
_TRUST = 3.0
"""Deviations of a released count's noise that a public one is taken to be off."""
_FEWEST_BINS = 6
_TAGS = 10_000


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """What a program is built from: public facts, and who chooses.

    Args:
        columns: of the table.
        plan: what each step draws.
        chooser: draws the choices.
        seed: of public randomness.
        most_bins: of a number.
        most_cells: of a joint count.
        model_cells: of the model's tables together.
        rows: that stand for the model while counts are chosen.
        given: columns that others are drawn given; see `elimination`.
        public: where public rows come from; none: nothing is known before.
    """

    columns: TableColumns
    plan: MarginalsPlan
    chooser: Chooser
    seed: int
    most_bins: int = 48
    most_cells: int = 20_000
    model_cells: int = 300_000
    rows: int = 200_000
    given: tuple[int, ...] = ()
    public: tuple[StepSource, ...] = ()

    def __call__(self) -> "MarginalsProgram":
        """Return a fresh program."""
        return MarginalsProgram(self)


@dataclass(frozen=True, eq=False)
class _Table:
    """A released joint count: noisy integers, and the deviation of their noise."""

    clique: Clique
    noisy: NDArray[np.int64]
    deviation: float


class MarginalsProgram(Program):
    """Counts columns once, then chooses and counts columns together.

    Privacy: unit: what owns rows that weigh `UNIT_WEIGHT` together at most (`CountWorker`).
    Relation: the plan's. Sensitivities: `plan.integer_sensitivity` of each count,
    `plan.score_span` of all scores. Events: those of the entry of the plan's schedule that was
    reserved: ``discrete_gaussian`` for all columns, then ``bounded_range`` and
    ``discrete_gaussian`` for each choice. Bins, scores' expectations and models follow from
    released counts. Where crashes lost a step, its choices are not made, and the rest is as it was.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        self._streams = Streams(spec.seed).child("marginals")
        self._noisy_columns: tuple[NDArray[np.int64], float] | None = None
        self._tables: list[_Table] = []
        self._shapes: tuple[ColumnShape, ...] = ()
        self._total = 0.0
        self._field: Field | None = None
        self._fitted = -1
        self._rows = np.empty((0, 0), np.int32)
        self._weights = np.empty(0)
        self._cleaned: dict[Clique, NDArray[np.float64]] = {}
        self._prior: PublicRows | None = None
        self._in_model: tuple[Clique, ...] = ()

    def prepare(self, index: int) -> None:
        """Estimate the model of all that was released before step ``index``."""
        if self._noisy_columns is not None:
            self._fit()

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Count the columns, or choose joint counts and count them: see `Program.step`."""
        plan = self._spec.plan
        place = index if reserved is None else reserved
        release = plan.releases[place] if noise is not None else None
        if self._noisy_columns is None:
            self._count_columns(workers, noise, release, tag=place * _TAGS)
            return
        self._fit()
        count = plan.counts[place - 1]
        self._choose(workers, noise, release, count, tag=place * _TAGS)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, their deviations, cleaned counts."""
        tensors: dict[str, Tensor] = {_DIGEST: self._digest}
        if self._noisy_columns is not None:
            counts, deviation = self._noisy_columns
            tensors[_COLUMNS] = torch.from_numpy(counts.copy())
            tensors[f"{_COLUMNS}.{_DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
        for place, table in enumerate(self._tables):
            name = f"{_TABLE}.{place}." + ".".join(map(str, table.clique))
            tensors[name] = torch.from_numpy(table.noisy.copy())
            tensors[f"{_CLEANED}.{place}"] = torch.from_numpy(self._cleaned[table.clique].copy())
            tensors[f"{_DEVIATION}.{place}"] = torch.tensor(table.deviation, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        if not torch.equal(tensors[_DIGEST], self._digest):
            raise UnsafeError(
                "bounds, spaces or settings are not those that the counts were made with: bring"
                " them back, or start a new run"
            )
        if _COLUMNS in tensors:
            deviation = float(tensors[f"{_COLUMNS}.{_DEVIATION}"])
            self._noisy_columns = tensors[_COLUMNS].numpy().copy(), deviation
        found = {}
        for name, tensor in tensors.items():
            kind, *numbers = name.split(".")
            if kind == _TABLE:
                place, *clique = map(int, numbers)
                deviation = float(tensors[f"{_DEVIATION}.{place}"])
                found[place] = _Table(tuple(clique), tensor.numpy().copy(), deviation)
        self._tables = [found[place] for place in sorted(found)]
        self._cleaned = {
            table.clique: tensors[f"{_CLEANED}.{place}"].numpy().copy()
            for place, table in enumerate(self._tables)
        }

    @cached_property
    def _digest(self) -> Tensor:
        """Says what the counts mean: columns, cells, settings of bins, public rows."""
        spec = self._spec
        facts = repr((spec.columns, spec.most_bins, spec.seed, spec.rows)).encode()
        digest = hashlib.sha256(facts)
        digest.update(self._public_cells.tobytes())
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    @cached_property
    def _public_cells(self) -> NDArray[np.int32]:
        spec = self._spec
        random = self._streams.numpy("public rows")
        return public_cells(spec.columns, spec.public, most=spec.rows, random=random)

    def model(self) -> TableModel:
        """Return the model of all that was released.

        Raises:
            BudgetError: crashes used up the step that counts the columns, and all others.
        """
        if self._noisy_columns is None:
            raise BudgetError(
                "crashes used up all steps before anything was released: start a new run"
            )
        self._fit()
        assert self._field is not None
        cliques = [*(table.clique for table in self._tables), *self._in_model]
        return TableModel(
            columns=self._spec.columns,
            shapes=self._shapes,
            field=self._field,
            couplings=couplings(self._spec.columns, self._field, cliques, self._rows),
            lengths=self._lengths(),
        )

    def _lengths(self) -> NDArray[np.float64]:
        """Return the weight of trajectories by the group of their last step, at least zero."""
        assert self._noisy_columns is not None
        counts, _ = self._noisy_columns
        return np.maximum(counts[len(counts) - self._spec.columns.lengths :], 0).astype(np.float64)

    def _count_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        tag: int,
    ) -> None:
        first = self._spec.plan.releases[0].columns if self._spec.plan.releases else None
        if first is not None:
            self._check_paid(first)
        total = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        if noise is None or release is None:
            self._noisy_columns = total, _EXACT
            return
        drawn = release.columns
        if drawn is None:  # the first step was lost in a crash: this one's noise counts columns
            assert release.tables is not None
            assert first is not None
            drawn = IntegerGaussianRelease(
                sensitivity=first.sensitivity, noise_multiplier=release.tables.noise_multiplier
            )
        noisy = drawn.release(total, noise, tag=tag)
        self._noisy_columns = noisy, drawn.standard_deviation

    def _check_paid(self, release: IntegerGaussianRelease) -> None:
        """Refuse a plan that was drawn up for fewer histograms than are counted."""
        budget, columns = self._spec.plan.budget, self._spec.columns
        assert budget is not None
        needed = integer_sensitivity(budget.relation) * columns.histograms**0.5
        if release.sensitivity < needed * (1 - 1e-12):
            raise UnsafeError(
                f"the plan pays for a sensitivity of {release.sensitivity:.6g}, the columns have"
                f" {needed:.6g}: they are not those that it was drawn up for"
            )

    def _choose(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        count: int,
        *,
        tag: int,
    ) -> None:
        """Choose joint counts one after the other, each with what the ones before it said."""
        sizes, spec = self._sizes, self._spec
        weights = fitting(sizes, workload(spec.columns), most_cells=spec.most_cells)
        cliques = [one for one in weights if not self._covered(one) and self._varies(one)]
        exact = self._exact(workers, cliques)
        deviation = _EXACT if release is None else _deviation(release)
        for number in range(count):
            open_ = [
                one for one in cliques if not self._covered(one) and self._fits(*self._cliques, one)
            ]
            if not open_:
                return
            open_ = in_turn(spec.columns, open_, len(self._tables))
            scores = [
                score(
                    exact[one],
                    np.rint(self._expected(one)).astype(np.int64),
                    noise=round(_HIDDEN * deviation),
                    weight=weights[one],
                    ordered=self._ordered(one),
                )
                for one in open_
            ]
            if noise is None or release is None:
                chosen = open_[int(np.argmax(scores))]
                noisy = exact[chosen]
            else:
                assert release.choices is not None
                assert release.tables is not None
                place = release.choices.choose(scores, spec.chooser, tag=tag + number)
                chosen = open_[place]
                flat = exact[chosen].reshape(-1)
                noisy = release.tables.release(flat, noise, tag=tag + number)
                noisy = noisy.reshape(exact[chosen].shape)
            self._add(_Table(chosen, noisy, deviation))

    def _exact(
        self, workers: WorkerGroup, cliques: Sequence[Clique]
    ) -> dict[Clique, NDArray[np.int64]]:
        """Return the exact joint counts over all workers: raw private data."""
        bins = [shape.bins for shape in self._shapes]
        answers = workers.call("tables", {"bins": bins, "cliques": list(cliques)})
        return {
            clique: np.sum([answer[i] for answer in answers], axis=0, dtype=np.int64)
            for i, clique in enumerate(cliques)
        }

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(shape.size for shape in self._shapes)

    @property
    def _cliques(self) -> set[Clique]:
        return {table.clique for table in self._tables}

    def _varies(self, clique: Clique) -> bool:
        """Say whether each column has two bins at least that stand out from its noise."""
        return all(
            int((margin.masses > _SEEN * margin.deviations).sum()) > 1
            for margin in map(self._margin, clique)
        )

    def _covered(self, clique: Clique) -> bool:
        """Say whether a clique is part of one that was measured."""
        return any(set(clique) <= set(table.clique) for table in self._tables)

    def _fits(self, *cliques: Clique) -> bool:
        """Say whether a model of these cliques stays small enough."""
        _, cells = elimination(self._sizes, cliques, self._spec.given)
        return cells <= self._spec.model_cells

    def _expected(self, clique: Clique) -> NDArray[np.float64]:
        """Return what the weighted rows expect of a clique's cells."""
        return self._total * counts_of(self._rows, clique, self._sizes, self._weights)

    def _add(self, table: _Table) -> None:
        """Take up a released count, and weight the rows that stand for the model by it."""
        cleaned_counts = self._clean(table, self._expected(table.clique))
        self._cleaned[table.clique] = cleaned_counts  # before: an interrupt may save what is here
        self._tables.append(table)
        self._weights = raked(self._rows, self._weights, self._cleaned, self._sizes)

    def _clean(self, table: _Table, expected: NDArray[np.float64]) -> NDArray[np.float64]:
        released = Released(
            noisy=table.noisy.astype(np.float64),
            deviation=table.deviation,
            total=self._total,
            expected=expected,
            margins=[self._margin(i) for i in table.clique],
            ordered=self._ordered(table.clique),
        )
        return cleaned(released, self._streams.numpy(f"cleaning/{len(self._tables)}"))

    def _ordered(self, clique: Clique) -> list[bool]:
        return [self._spec.columns[i].cells is not None for i in clique]

    def _margin(self, place: int) -> Margin:
        shape = self._shapes[place]
        masses = shape.bin_masses
        masses = masses * (self._total / max(masses.sum(), 1e-300))
        _, cells = shape.bin_counts
        shared = self._spec.columns[place].like is not None
        deviations = shape.deviation * np.sqrt(cells) * (_SHARED if shared else 1.0)
        return Margin(masses, deviations)

    def _fit(self) -> None:
        """Estimate the field of all that was released, and draw the rows that stand for it."""
        if not self._shapes:
            self._shape_columns()
        if self._fitted == len(self._tables) and len(self._rows):
            return
        sizes = self._sizes
        margins = [self._margin(i) for i in range(len(sizes))]
        prior = self._public_tables(margins)
        self._in_model = tuple(prior)
        if not self._tables and not prior:
            potentials: dict[Clique, NDArray[np.float64]] = {
                (i,): np.log(np.maximum(margin.masses, 1e-9 * self._total))
                for i, margin in enumerate(margins)
            }
            self._field = Field(sizes, potentials)
        else:
            counted = {i for clique in (*self._cleaned, *prior) for i in clique}
            measured = [
                Measured((i,), margin.masses, margin.deviations)
                for i, margin in enumerate(margins)
                if i not in counted
            ]
            measured += [
                Measured(table.clique, self._cleaned[table.clique], table.deviation)
                for table in self._tables
            ]
            public = _TRUST * self._joint_deviation()
            measured += [
                Measured(clique, self._total * shares, public) for clique, shares in prior.items()
            ]
            self._field = estimated(sizes, measured, total=self._total)
        self._rows = np.zeros((self._spec.rows, len(sizes)), np.int32)
        Drawer(self._field).fill(self._rows, self._streams.numpy(f"rows/{len(self._tables)}"))
        self._weights = np.full(len(self._rows), 1 / len(self._rows))
        self._fitted = len(self._tables)

    def _public_tables(self, margins: Sequence[Margin]) -> dict[Clique, NDArray[np.float64]]:
        """Return what public rows say of columns that were not counted together, if they fit."""
        if not len(self._public_cells):
            return {}
        sizes, spec = self._sizes, self._spec
        if self._prior is None:
            bins = [shape.bins[self._public_cells[:, i]] for i, shape in enumerate(self._shapes)]
            self._prior = PublicRows(
                np.stack(bins, axis=1).astype(np.int32),
                sizes,
                fitting(sizes, workload(spec.columns), most_cells=spec.most_cells),
                {(i,): margin.masses for i, margin in enumerate(margins)},
            )
        cliques = [table.clique for table in self._tables]
        chosen: list[Clique] = []
        for clique in self._prior.cliques:
            if not self._covered(clique) and self._fits(*cliques, *chosen, clique):
                chosen.append(clique)
        return self._prior.tables(chosen, self._cleaned)

    def _shape_columns(self) -> None:
        """Find bins, and shapes inside them, from the released counts of columns."""
        assert self._noisy_columns is not None
        counts, deviation = self._noisy_columns
        columns = self._spec.columns
        ends = np.cumsum(columns.counted)
        sums, cells = [], []
        shapes: list[ColumnShape] = []
        joint = self._joint_deviation()
        own = [counts[end - size : end] for end, size in zip(ends, columns.counted, strict=True)]
        for place, column in enumerate(columns.columns):
            if column.counted:
                sums.append(float(own[place][: column.size].sum()))
                cells.append(column.size)
        inverse = 1 / np.asarray(cells)
        self._total = max(float(np.sum(np.asarray(sums) * inverse) / inverse.sum()), UNIT_WEIGHT)
        most = int(np.clip((self._total / joint) ** 0.5, _FEWEST_BINS, self._spec.most_bins))
        for place, column in enumerate(columns.columns):
            if column.like is not None:
                shapes.append(shapes[column.like])
                continue
            noisy = own[place].astype(np.float64)
            shapes.append(column_shape(column, noisy, deviation=deviation, most_bins=most))
        self._shapes = tuple(shapes)

    def _joint_deviation(self) -> float:
        """Return the deviation of a joint count's noise, of the least noisy step."""
        releases = [one for one in self._spec.plan.releases if one.tables is not None]
        return min((_deviation(one) for one in releases), default=_EXACT)


def _deviation(release: StepRelease) -> float:
    assert release.tables is not None
    return release.tables.standard_deviation
