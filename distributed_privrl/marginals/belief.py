"""What is known of a table from released counts and public rows: bins, expectations, a model.

All of it is post-processing. Between two estimations by private-PGM, rows that stand for the model
are weighted until they agree with what was released since.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.cleaning import Released, cleaned
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StepSource
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel, couplings
from distributed_privrl.marginals.growth import Growth
from distributed_privrl.marginals.model import Field, Measured, estimated
from distributed_privrl.marginals.prior import PublicRows, public_cells
from distributed_privrl.marginals.shapes import ColumnShape, column_shape, drawn_numbers
from distributed_privrl.marginals.spreading import lines_of
from distributed_privrl.marginals.successors import Successors
from distributed_privrl.marginals.tables import (
    CUTS,
    Clique,
    JointCount,
    Maps,
    Margin,
    counts_of,
    parts_of,
    raked,
)
from distributed_privrl.marginals.workload import fitting, workload
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

_SHARED = 3.0
"""How much less counts of observations say of next observations."""
_SEEN = 2.0
"""Deviations of its noise that a bin must weigh to be seen."""
_TRUST = 3.0
"""Deviations of a released count's noise that a public one is taken to be off."""
_RESOLVED = 3.0
"""Deviations of its noise that the mean cell of a joint count weighs where parts tell no more."""
_CLEAR = 8.0
"""Deviations that the mean cell weighs where coarser parts are left out: these tell the same."""
_FEWEST_BINS = 6
_SMALL, _STAYS = 0.25, 0.6
"""Share of differences of two people that are small; of the others, that of changes that are."""
_DRAWN = 20_000


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What is known of a table before anything is released, and how large its model may be.

    Args:
        columns: of the table.
        seed: of public randomness.
        most_bins: of a number.
        most_cells: of a joint count.
        model_cells: of the model's tables together.
        rows: that stand for the model while counts are chosen.
        row_cells: of the tables that one row is drawn by, where columns are given.
        given: columns that others are drawn given; see `Drawer`.
        public: where public rows come from; none: nothing is known before.
    """

    columns: TableColumns
    seed: int
    most_bins: int = 48
    most_cells: int = 20_000
    model_cells: int = 300_000
    row_cells: int = 6_000
    rows: int = 200_000
    given: tuple[int, ...] = ()
    public: tuple[StepSource, ...] = ()


@dataclass(frozen=True, eq=False)
class ReleasedTable:
    """A joint count as it was released, and without most of its noise.

    Args:
        clique: columns.
        parts: of each number that were counted; see `JointCount`.
        noisy: integers, of the shape of what was counted.
        deviation: of the noise of each.
        cleaned: of the shape of the columns' bins.
    """

    clique: Clique
    parts: int
    noisy: NDArray[np.int64]
    deviation: float
    cleaned: NDArray[np.float64]

    @property
    def count(self) -> JointCount:
        """What was counted."""
        return JointCount(self.clique, self.parts)


class Belief:
    """What is known of a table, and how it grows.

    Args:
        spec: public facts.
        joint_deviation: of the noise of a joint count's cell.
        planned: joint counts of the whole run.
    """

    def __init__(self, spec: TableFacts, *, joint_deviation: float, planned: int) -> None:
        self._spec, self._joint_deviation, self._planned = spec, joint_deviation, planned
        self.columns = spec.columns
        """Of the table; of two codings of a number, one is unused once they were released."""
        self._streams = Streams(spec.seed).child("marginals")
        self.tables: list[ReleasedTable] = []
        """Joint counts that were released, in order."""
        self.shapes: tuple[ColumnShape, ...] = ()
        """Of each column; empty until columns have been released."""
        self.total = 0.0
        """Weight of all rows."""
        self._field: Field | None = None
        self._fitted = -1
        self._rows = np.empty((0, 0), np.int32)
        self._weights = np.empty(0)
        self._prior: PublicRows | None = None
        self._of_public: tuple[Clique, ...] = ()
        self._parted: dict[tuple[int, int], NDArray[np.int64]] = {}
        self._replayed: tuple[int, dict[Clique, Measured]] = (0, {})

    @cached_property
    def public_cells(self) -> NDArray[np.int32]:
        """Cells of the public rows, ``(N, V)``."""
        spec = self._spec
        random = self._streams.numpy("public rows")
        return public_cells(spec.columns, spec.public, most=spec.rows, random=random)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bins of each column, at last of hidden ones."""
        sizes = tuple(shape.size for shape in self.shapes)
        return sizes + tuple(sizes[i] for i in self._successors.hidden)

    @property
    def _successors(self) -> Successors:
        return Successors(self.columns)

    @cached_property
    def candidates(self) -> dict[Clique, int]:
        """Joint counts that are small enough, with their weights; needs `shapes`."""
        allowed = workload(self.columns)
        return fitting(self.sizes, allowed, most_cells=self._spec.most_cells)

    def worth_counting(self) -> list[JointCount]:
        """Return what could tell anything, and leaves the model small."""
        found = []
        for clique in self.candidates:
            counts = [one for one in self._counts(clique) if not self._covered(one)]
            if counts and self._varies(clique) and self._fits(clique):
                found += counts
        return found

    def _counts(self, clique: Clique) -> list[JointCount]:
        """Return the ways of counting a clique: in bins, and maybe in parts of its numbers.

        Parts are for what noise would hide between bins: where a cell weighs little beside it on
        average. What a number becomes in a step follows from itself far more finely than from a
        part. The model holds bins even so, and must have room for all that numbers become. Parts
        that are clear by themselves stand for all coarser ones, whose sums they tell. Several
        numbers of a triple are counted in halves alone: what finer parts tell of two of them, their
        own count tells better.
        """
        cells = math.prod(self.sizes[i] for i in clique)
        seen = self.total / cells > _RESOLVED * self._joint_deviation
        numbers = [i for i in clique if self.columns[i].cells is not None]
        if not numbers or seen or self._has_own(clique) or not self._fits(clique, *self._own):
            return [JointCount(clique)]
        most = max(self.sizes[i] for i in numbers)
        if len(clique) > 2 and len(numbers) > 1:
            most = min(most, min(CUTS) + 1)
        found = {self._cells(JointCount(clique)): JointCount(clique)}
        for parts in CUTS:
            one = JointCount(clique, parts)
            if parts < most:
                found.setdefault(self._cells(one), one)
        clear = self.total / (_CLEAR * self._joint_deviation)
        finest = max((math.prod(one) for one in found if math.prod(one) <= clear), default=0)
        return [one for shape, one in found.items() if math.prod(shape) >= finest]

    def _cells(self, count: JointCount) -> tuple[int, ...]:
        """Return the shape of what is counted."""
        return tuple(int(one[-1]) + 1 for one in self.maps(count))

    @property
    def _own(self) -> list[Clique]:
        """Pairs of an observation and what it becomes."""
        return [one for one in self.candidates if len(one) == 2 and self._has_own(one)]

    def _has_own(self, clique: Clique) -> bool:
        """Say whether a clique has an observation together with what it becomes."""
        columns = [self.columns[i] for i in clique]
        after = {one.place for one in columns if one.part == "next_observation"}
        return any(one.part == "observation" and one.place in after for one in columns)

    def small_enough(self, counts: Sequence[JointCount]) -> list[JointCount]:
        """Return those of joint counts with which the model stays as small as is its turn.

        All are returned where none is; see `Growth.share`.

        Args:
            counts: `worth_counting`.
        """
        share = self._growth.share(len(self.tables) + 1)
        small = {one for one in {one.clique for one in counts} if self._fits(one, share=share)}
        return [one for one in counts if one.clique in small] or list(counts)

    def maps(self, count: JointCount) -> Maps:
        """Return the part that each bin of each column is counted in."""
        return tuple(self._parts(self._seen(i), count.parts) for i in count.clique)

    def _parts(self, place: int, parts: int) -> NDArray[np.int64]:
        """Return the part of each bin of a column; see `JointCount`."""
        if not parts or self._spec.columns[place].cells is None:
            return np.arange(self.sizes[place])
        if (place, parts) not in self._parted:
            margin = self.margin(place)
            self._parted[place, parts] = parts_of(margin.masses, parts, margin.atoms)
        return self._parted[place, parts]

    def _lines(self, count: JointCount) -> tuple[NDArray[np.float64], ...]:
        """Return how much of each bin is in each part; nothing where bins were counted."""
        if not count.parts:
            return ()
        return tuple(
            np.eye(len(parts))
            if len(np.unique(parts)) == len(parts)
            else lines_of(margin.masses, parts, margin.atoms)
            for margin, parts in zip(
                map(self.margin, map(self._seen, count.clique)), self.maps(count), strict=True
            )
        )

    def _seen(self, place: int) -> int:
        """Return the column that a hidden one is like, and others as they are."""
        over = place - len(self.shapes)
        return place if over < 0 else self._successors.hidden[over]

    def expected(self, clique: Clique) -> NDArray[np.float64]:
        """Return what is expected of a clique's cells."""
        return self.total * counts_of(self._rows, clique, self.sizes, self._weights)

    def ordered(self, clique: Clique) -> list[bool]:
        """Say of each column whether neighbouring bins belong together."""
        return [self._spec.columns[i].cells is not None for i in clique]

    def take(self, count: JointCount, noisy: NDArray[np.int64], deviation: float) -> None:
        """Take up a released count, and weight the rows that stand for the model by it."""
        clique = count.clique
        released = Released(
            noisy=noisy.astype(np.float64),
            deviation=deviation,
            total=self.total,
            expected=self.expected(clique),
            margins=[self.margin(i) for i in clique],
            ordered=self.ordered(clique),
            maps=self.maps(count),
        )
        random = self._streams.numpy(f"cleaning/{len(self.tables)}")
        found = cleaned(released, random)
        self.tables.append(ReleasedTable(clique, count.parts, noisy, deviation, found))
        told = {one: measured.counts for one, measured in self._told.items()}
        self._weights = raked(self._rows, self._weights, told | self._cleaned, self.sizes)

    def shape(self, counts: NDArray[np.int64], deviation: float) -> None:
        """Find bins, and shapes inside them, from the released counts of columns.

        Args:
            counts: as `CountWorker.columns` has them, with noise.
            deviation: of the noise.
        """
        columns = self._spec.columns
        ends = np.cumsum(columns.counted)
        own = [counts[end - size : end] for end, size in zip(ends, columns.counted, strict=True)]
        counted = [place for place, column in enumerate(columns.columns) if column.counted]
        sums = np.array([float(own[i][: columns[i].size].sum()) for i in counted])
        inverse = 1 / np.array([columns[i].size for i in counted])
        self.total = max(float((sums * inverse).sum() / inverse.sum()), UNIT_WEIGHT)
        resolved = (self.total / self._joint_deviation) ** 0.5
        most = int(np.clip(resolved, _FEWEST_BINS, self._spec.most_bins))
        shapes: list[ColumnShape] = []
        for place, column in enumerate(columns.columns):
            if column.like is not None:
                shapes.append(shapes[column.like])
                continue
            noisy = own[place].astype(np.float64)
            shapes.append(column_shape(column, noisy, deviation=deviation, most_bins=most))
        self.shapes, self._parted = tuple(shapes), {}
        unused = (self._worse(pair) for pair in columns.codings)
        self.columns = replace(columns, unused=frozenset(unused))

    def _worse(self, codings: tuple[int, int]) -> int:
        """Return the coding of a number after a step that nothing is to be drawn from.

        If a step forgot the number, its changes would be as large as differences of two people's
        numbers, of which a quarter count as small. Where most of the others are small as well, a
        change says more than the number itself: a pair of columns as fine as that would drown in
        noise. The share of small changes is that of the weights that were found in the released
        counts: noise, which hides all of them, spreads them over all changes that there may be.

        Args:
            codings: places of the number as it is, and as a change.
        """
        as_it_is, change = codings
        random = self._streams.numpy(f"codings/{change}")
        apart = np.abs(self._numbers(as_it_is, random) - self._numbers(as_it_is, random))
        small = np.quantile(apart, _SMALL)
        by_chance = (apart <= small).mean()
        cells = self._spec.columns[change].cells
        assert cells is not None
        changes = np.linspace(-small, small, _DRAWN)
        if cells.step:
            changes = cells.step * np.round(changes / cells.step)
        near = np.unique(cells.cells_of(changes[np.abs(changes) <= small]))
        masses = self.shapes[change].masses
        needed = by_chance + _STAYS * (1 - by_chance)
        return as_it_is if masses[near].sum() > needed * masses.sum() else change

    def _numbers(self, place: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return numbers drawn from a released column."""
        shape = self.shapes[place]
        shares = shape.bin_masses / shape.bin_masses.sum()
        bins = random.choice(len(shares), _DRAWN, p=shares)
        column = self._spec.columns[place]
        return drawn_numbers(column, shape, bins, random.uniform(size=_DRAWN))

    def estimate(self, progress: Progress = silent) -> None:
        """Estimate the field of all that was released, and draw the rows that stand for it."""
        if self._fitted == len(self.tables) and len(self._rows):
            return
        sizes = self.sizes
        hidden = self._successors.hidden
        margins = [self.margin(i) for i in (*range(len(self.shapes)), *hidden)]
        public = self._public_tables(margins)
        self._of_public = tuple(public)
        if not self.tables and not public:
            potentials: dict[Clique, NDArray[np.float64]] = {
                (i,): np.log(np.maximum(margin.masses, 1e-9 * self.total))
                for i, margin in enumerate(margins)
            }
            self._field = Field(sizes, potentials, hidden=len(hidden))
        else:
            known = [
                Measured(one.clique, self._agreed(one), one.deviation, self._lines(one.count))
                for one in self._latest.values()
            ]
            known += self._told.values()
            joint = {i for one in known if not one.lines for i in one.clique}
            joint |= {i for clique in public for i in clique}
            measured = [
                Measured((i,), margin.masses, margin.deviations)
                for i, margin in enumerate(margins)
                if i not in joint
            ]
            measured += known
            deviation = _TRUST * self._joint_deviation
            measured += [
                Measured(clique, self.total * shares, deviation)
                for clique, shares in public.items()
            ]
            self._field = estimated(
                sizes, measured, total=self.total, hidden=len(hidden), progress=progress
            )
        self._rows = np.zeros((self._spec.rows, len(sizes)), np.int32)
        Drawer(self._field).fill(self._rows, self._streams.numpy(f"rows/{len(self.tables)}"))
        self._weights = np.full(len(self._rows), 1 / len(self._rows))
        self._fitted = len(self.tables)

    def model(self, lengths: NDArray[np.float64]) -> TableModel:
        """Return the model of all that is known.

        Args:
            lengths: weight of trajectories by the group of their last step.
        """
        self.estimate()
        assert self._field is not None
        cliques = [*self._cleaned, *self._told, *self._of_public]
        return TableModel(
            columns=self.columns,
            shapes=self.shapes,
            field=self._field,
            couplings=couplings(self.columns, self.sizes, cliques, self._rows),
            lengths=lengths,
        )

    @property
    def _latest(self) -> dict[Clique, ReleasedTable]:
        """Of each clique the joint count that was released last: it knows those before it."""
        return {one.clique: one for one in self.tables}

    def _agreed(self, table: ReleasedTable) -> NDArray[np.float64]:
        """Return a joint count as far as later and finer ones of its columns bear it out.

        What a count of halves of three numbers says within its parts was guessed before two of them
        were counted more finely.
        """
        counts = table.cleaned
        for other in self.tables[self.tables.index(table) + 1 :]:
            if (
                table.parts
                and set(other.clique) < set(table.clique)
                and other.count.tells(JointCount(other.clique, table.parts))
            ):
                places = [table.clique.index(i) for i in other.clique]
                others = tuple(axis for axis in range(counts.ndim) if axis not in places)
                sums = counts.sum(axis=others, keepdims=True)
                wanted = np.expand_dims(other.cleaned, others)
                counts = counts * np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > 0)
        return counts

    @property
    def _cleaned(self) -> dict[Clique, NDArray[np.float64]]:
        return {clique: one.cleaned for clique, one in self._latest.items()}

    def _covered(self, count: JointCount) -> bool:
        """Say whether a joint count is part of one that was measured."""
        return any(one.count.tells(count) for one in self.tables)

    def _varies(self, clique: Clique) -> bool:
        """Say whether each column has two parts that stand out from its noise."""
        return all(
            self._own_margin(i).varies(_SEEN, ordered=one)
            for i, one in zip(clique, self.ordered(clique), strict=True)
        )

    def _fits(self, *cliques: Clique, share: float = 1.0) -> bool:
        """Say whether the model stays within a share of its size with further cliques."""
        return self._growth.allows({*self._cleaned, *self._told, *cliques}, share)

    @property
    def _growth(self) -> Growth:
        spec = self._spec
        return Growth(
            sizes=self.sizes,
            model_cells=spec.model_cells,
            row_cells=spec.row_cells,
            given=spec.given,
            planned=self._planned,
        )

    def margin(self, place: int) -> Margin:
        """Return what is known of a column's bins before joint counts; needs `shapes`."""
        own = self._own_margin(place)
        shared = self._spec.columns[place].like is not None
        return replace(own, deviations=own.deviations * _SHARED) if shared else own

    def _own_margin(self, place: int) -> Margin:
        """Return what counts of the column that it is like say of a column's bins."""
        shape = self.shapes[place]
        masses = shape.bin_masses
        masses = masses * (self.total / masses.sum())
        _, joined = shape.bin_counts
        cells = self._spec.columns[place].cells
        atoms = None if cells is None else shape.atoms(cells)
        return Margin(masses, shape.deviation * np.sqrt(joined), atoms)

    @property
    def _told(self) -> dict[Clique, Measured]:
        """What joint counts say of the step before."""
        if self._replayed[0] != len(self.tables):
            tables = list(self._cleaned.items())
            found = {
                clique: self._as_told(clique, shares, self._latest[source])
                for clique, (shares, source) in self._successors.replayed(
                    tables, self._growth
                ).items()
            }
            self._replayed = len(self.tables), found
        return self._replayed[1]

    def _as_told(
        self, clique: Clique, shares: NDArray[np.float64], source: ReleasedTable
    ) -> Measured:
        """Return what a joint count says of other columns."""
        lines = self._lines(JointCount(clique, source.parts))
        return Measured(clique, self.total * shares, _SHARED * source.deviation, lines)

    def _public_tables(self, margins: Sequence[Margin]) -> dict[Clique, NDArray[np.float64]]:
        """Return what public rows say of columns that were not counted together, if they fit."""
        if not len(self.public_cells):
            return {}
        if self._prior is None:
            bins = [shape.bins[self.public_cells[:, i]] for i, shape in enumerate(self.shapes)]
            self._prior = PublicRows(
                np.stack(bins, axis=1).astype(np.int32),
                self.sizes,
                self.candidates,
                {(i,): margins[i].masses for i in range(len(self.shapes))},
                self.columns.of("unit"),
            )
        chosen: list[Clique] = []
        for clique in self._prior.cliques:
            measured = any(set(clique) <= set(one) for one in self._cleaned)
            if not measured and self._fits(*chosen, clique):
                chosen.append(clique)
        return self._prior.tables(chosen, self._cleaned)
