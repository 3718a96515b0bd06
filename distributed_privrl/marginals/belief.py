"""What is known of a table from released counts and public rows: expectations, and a model.

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
from distributed_privrl.marginals.association import BlockCounts
from distributed_privrl.marginals.bins import Bins, found_bins
from distributed_privrl.marginals.candidates import Candidates
from distributed_privrl.marginals.cleaning import Released, cleaned, left_after_cleaning
from distributed_privrl.marginals.clocks import asked_by_growth
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StepSource
from distributed_privrl.marginals.coupling import couplings
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.ends import told_in_time
from distributed_privrl.marginals.growth import Growth
from distributed_privrl.marginals.implied import Implied
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.margins import NoisyCount, combined
from distributed_privrl.marginals.model import Field, estimated
from distributed_privrl.marginals.prior import PublicRows, public_cells
from distributed_privrl.marginals.steps import cleaned_lengths
from distributed_privrl.marginals.tables import (
    Clique,
    JointCount,
    Margin,
    ReleasedTable,
    all_but,
    blocks,
    counts_of,
    raked,
)

_SHOWN = 4.0
"""Deviations by which a cell of a joint count must stand out to show that its category is there."""
_TRUST = 3.0
"""Deviations of a released count's noise that a public one is taken to be off."""
_NOTHING = 1e-300


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
        asked: columns that are counted together in any case.
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
    asked: tuple[Clique, ...] = ()
    public: tuple[StepSource, ...] = ()


class Belief:
    """What is known of a table, and how it grows.

    Args:
        spec: public facts.
        joint_deviation: of the noise of a joint count's cell.
        planned: joint counts of the whole run.
    """

    def __init__(self, spec: TableFacts, *, joint_deviation: float, planned: int) -> None:
        self._spec, self._joint_deviation, self._planned = spec, joint_deviation, planned
        self._streams = Streams(spec.seed).child("marginals")
        self.tables: list[ReleasedTable] = []
        """Joint counts that were released, in order."""
        self._bins: Bins | None = None
        self._field: Field | None = None
        self._fitted = -1, False
        self._rows = np.empty((0, 0), np.int32)
        self._weights = np.empty(0)
        self._followed = np.empty(0, np.int64)
        self._prior: PublicRows | None = None
        self._of_public: tuple[Clique, ...] = ()
        self._lengths = np.empty(0)
        self._in_time: dict[Clique, Measured] = {}
        self._known: tuple[int, Implied] | None = None

    @cached_property
    def public_cells(self) -> NDArray[np.int32]:
        """Cells of the public rows, ``(N, V)``."""
        spec = self._spec
        random = self._streams.numpy("public rows")
        return public_cells(spec.columns, spec.public, most=spec.rows, random=random)

    def shape(self, counts: NDArray[np.int64], deviation: float) -> None:
        """Find bins from the released counts of columns; see `found_bins`.

        Args:
            counts: as `CountWorker.columns` has them, with noise.
            deviation: of the noise.
        """
        columns = self._spec.columns
        if columns.lengths:
            found = counts[len(counts) - columns.lengths :].astype(np.float64)
            self._lengths = cleaned_lengths(found, columns.longest, deviation)
        self._bins = found_bins(
            self._spec.columns,
            counts,
            deviation,
            joint_deviation=self._joint_deviation,
            most_bins=self._spec.most_bins,
            streams=self._streams,
            lengths=self._lengths,
        )
        self._in_time = told_in_time(
            columns, self._bins.shapes, self._lengths, total=self._bins.total
        )

    @property
    def shaped(self) -> bool:
        """Whether columns have been released, and so have bins."""
        return self._bins is not None

    @property
    def bins(self) -> Bins:
        """Of the columns; needs `shaped`."""
        assert self._bins is not None
        return self._bins

    @cached_property
    def candidates(self) -> Candidates:
        """Joint counts that are small enough; needs `shaped`."""
        return Candidates(
            self.bins,
            joint_deviation=self._joint_deviation,
            most_cells=self._spec.most_cells,
            asked=self._spec.asked,
        )

    def worth_counting(self) -> list[JointCount]:
        """Return what could tell anything, and leaves the model small.

        What is told of next observations without room in the model is no candidate either.
        """
        left = self.implied.without_room
        found = self.candidates.worth_counting([one.count for one in self.tables], self._fits)
        return [one for one in found if not any(set(one.clique) <= set(told) for told in left)]

    def asked(self, open_: Sequence[JointCount]) -> JointCount | None:
        """Return what is to be counted next in any case; None: what is chosen.

        Growth asks for half of all counts at most: a table of many numbers that grow has other
        relations, too.

        Args:
            open_: `worth_counting`.
        """
        measured = [one.clique for one in self.tables]
        grown = asked_by_growth(self.bins, self.tables)
        enough = 2 * sum(clique in grown for clique in set(measured)) >= self._planned
        return self.candidates.asked(measured, open_, further=() if enough else grown)

    def small_enough(self, counts: Sequence[JointCount]) -> list[JointCount]:
        """Return those of joint counts with which the model stays as small as is its turn.

        All are returned where none is; see `Growth.share`.

        Args:
            counts: `worth_counting`.
        """
        share = self._growth.share(len(self.tables) + 1)
        small = {one for one in {one.clique for one in counts} if self._fits(one, share=share)}
        return [one for one in counts if one.clique in small] or list(counts)

    def expected(self, clique: Clique) -> NDArray[np.float64]:
        """Return what is expected of a clique's cells, in the rows that its count is of."""
        bins = self.bins
        if not bins.columns.only_followed(clique):
            return bins.total * counts_of(self._rows, clique, bins.sizes, self._weights)
        weights = self._weights[self._followed]
        found = counts_of(self._rows[self._followed], clique, bins.sizes, weights)
        return np.asarray(bins.followed * found / max(float(weights.sum()), _NOTHING))

    def take(self, count: JointCount, noisy: NDArray[np.int64], deviation: float) -> None:
        """Take up a released count, and weight the rows that stand for the model by it."""
        self.tables.append(
            self._released(count, noisy, deviation, self.expected(count.clique), len(self.tables))
        )
        told = {one: measured.counts for one, measured in self.implied.told.items()}
        self._weights = raked(
            self._rows,
            self._weights,
            told | self._cleaned,
            self.bins.sizes,
            within=self._within(self._followed),
        )

    def _within(self, followed: NDArray[np.int64]) -> dict[Clique, NDArray[np.int64]]:
        """Return which rows joint counts are of, where it is not all, by those that go on."""
        columns = self.bins.columns
        return {one: followed for one in self._cleaned if columns.only_followed(one)}

    def _released(
        self,
        count: JointCount,
        noisy: NDArray[np.int64],
        deviation: float,
        expected: NDArray[np.float64],
        place: int,
    ) -> ReleasedTable:
        """Return a joint count, cleaned by all that is known of its categories."""
        clique, bins = count.clique, self.bins
        shown = self._shown((clique, noisy, deviation))
        own = NoisyCount(count, noisy, deviation)
        counts, ruled_out = noisy.astype(np.float64), bins.ruled_out(clique)
        if ruled_out is not None:
            counts[blocks((~ruled_out).astype(np.float64), bins.maps(count)) == 0] = 0.0
        released = Released(
            noisy=counts,
            deviation=deviation,
            total=bins.weight_of(clique),
            expected=expected,
            margins=self._margins(clique, shown, expected, [*self._noisy(place), own]),
            ordered=bins.ordered(clique),
            maps=bins.maps(count),
            before=[
                BlockCounts(one.counts.astype(np.float64), one.deviation, bins.maps(one.count))
                for one in self._noisy(place)
                if one.count.clique == clique
            ],
            ruled_out=ruled_out,
        )
        found = cleaned(released, self._streams.numpy(f"cleaning/{place}"))
        return ReleasedTable(clique, count.parts, noisy, deviation, found)

    def _margins(
        self,
        clique: Clique,
        shown: dict[int, NDArray[np.bool_]],
        expected: NDArray[np.float64],
        released: Sequence[NoisyCount],
    ) -> list[Margin]:
        """Return what is known of a clique's columns in the rows that its count is of.

        What is counted of all rows tells little of those that go on, who may be others.
        """
        bins = self.bins
        margins = [self._margin(i, shown, released) for i in clique]
        if not bins.columns.only_followed(clique):
            return margins
        share, found = bins.followed / bins.total, []
        for axis, margin in enumerate(margins):
            own = expected.sum(axis=all_but(axis, expected.ndim))
            masses = np.where((own <= 0) & (margin.masses > 0), share * margin.masses, own)
            masses = masses * (bins.followed / masses.sum())
            deviations = np.hypot(margin.deviations, (1 - share) * masses)
            found.append(replace(margin, masses=masses, deviations=deviations))
        return found

    def _margin(
        self, place: int, shown: dict[int, NDArray[np.bool_]], released: Sequence[NoisyCount]
    ) -> Margin:
        """Return what is known of a column's bins: of a number's, what joint counts say, too.

        Args:
            place: of the column.
            shown: see `_shown`.
            released: joint counts.
        """
        bins = self.bins
        found = bins.margin(place, shown.get(bins.counted_as(place)))
        if bins.columns[place].cells is None:
            return found
        followed = bins.columns.only_followed([place])
        told = [
            one.sums_of(place, bins)
            for one in released
            if place in one.count.clique
            and bins.columns.only_followed(one.count.clique) == followed
        ]
        return combined(found, told)

    def _noisy(self, before: int | None = None) -> list[NoisyCount]:
        """Return the joint counts that were released before one of them; None: all."""
        return [NoisyCount(one.count, one.noisy, one.deviation) for one in self.tables[:before]]

    def _clean_again(self) -> None:
        """Clean joint counts anew that said nobody has what later ones have shown.

        That is a category, or a gap.
        There it is expected as margins have it, and the rest as it was cleaned. Privacy: all of it
        follows from released counts.
        """
        bins, shown = self.bins, self._shown()
        for place, table in enumerate(self.tables):
            late = np.zeros(table.cleaned.shape, np.bool_)
            weight = bins.weight_of(table.clique)
            expected: NDArray[np.float64] = np.full(late.shape, weight)
            for axis, i in enumerate(table.clique):
                others = all_but(axis, late.ndim)
                masses = bins.margin(i, shown.get(bins.counted_as(i))).masses
                expected = expected * np.expand_dims(masses / bins.total, others)
                hidden = (masses > 0) & (table.cleaned.sum(axis=others) <= 0)
                if bins.ordered((i,))[0]:
                    hidden[: len(hidden) - bins.columns[bins.seen(i)].gaps] = False
                late |= np.expand_dims(hidden, others)
            if late.any():
                expected = np.where(late, expected, table.cleaned)
                expected *= weight / expected.sum()
                self.tables[place] = self._released(
                    table.count, table.noisy, table.deviation, expected, place
                )
                self._known = None

    def estimate(self, progress: Progress = silent, *, last: bool = False) -> None:
        """Estimate the field of all that was released, and draw the rows that stand for it.

        Args:
            progress: told where the estimate stands.
            last: rows are drawn from it for good: it may take longer.
        """
        if self._fitted in ((len(self.tables), last), (len(self.tables), True)):
            return
        self._clean_again()
        bins = self.bins
        sizes, hidden, shown = bins.sizes, len(bins.hidden), self._shown()
        noisy = self._noisy()
        margins = [self._margin(bins.seen(i), shown, noisy) for i in range(len(sizes))]
        public = self._public_tables(margins)
        self._of_public = tuple(public)
        if not self.tables and not self._in_time and not public:
            potentials: dict[Clique, NDArray[np.float64]] = {
                (i,): np.log(np.maximum(margin.masses, 1e-9 * bins.total))
                for i, margin in enumerate(margins)
            }
            self._field = Field(sizes, potentials, hidden=hidden)
        else:
            deviation = _TRUST * self._joint_deviation
            counted = [self._measured(one) for one in self._latest.values()]
            counted += [
                Measured(clique, bins.weight_of(clique) * shares, deviation)
                for clique, shares in public.items()
            ]
            known = self.implied.of_all(counted, [margin.masses for margin in margins])
            joint = {i for one in known if not one.lines for i in one.clique}
            measured = [
                Measured((i,), margin.masses, margin.deviations)
                for i, margin in enumerate(margins)
                if i not in joint
            ]
            measured += known
            self._field = estimated(
                sizes, measured, total=bins.total, hidden=hidden, progress=progress, last=last
            )
        self._rows = np.zeros((self._spec.rows, len(sizes)), np.int32)
        Drawer(self._field).fill(self._rows, self._streams.numpy(f"rows/{len(self.tables)}"))
        self._weights = np.full(len(self._rows), 1 / len(self._rows))
        self._followed = np.flatnonzero(bins.columns.followed(self._rows))
        self._fitted = len(self.tables), last

    def model(self, progress: Progress = silent) -> TableModel:
        """Return the model of all that is known.

        Args:
            progress: told where the estimate stands.
        """
        self.estimate(progress, last=True)
        assert self._field is not None
        bins = self.bins
        cliques = [*self._cleaned, *self.implied.told, *self._of_public]
        return TableModel(
            columns=bins.columns,
            shapes=bins.shapes,
            field=self._field,
            couplings=couplings(bins.columns, bins.shapes, bins.sizes, cliques, self._rows),
            lengths=self._lengths,
            laterals=self.implied.laterals,
        )

    def _shown(
        self, *others: tuple[Clique, NDArray[np.int64], float]
    ) -> dict[int, NDArray[np.bool_]]:
        """Return which categories, or gaps, stand out from a joint count, by what counts them.

        A joint count has less noise than all columns at once, so that it shows categories that
        these hide. Of K cells that are nothing but noise none stands out as far, but in one table
        of some thousand.

        Args:
            others: cliques, released counts and deviations beside `tables`.
        """
        bins = self.bins
        found: dict[int, NDArray[np.bool_]] = {}
        for clique, noisy, deviation in (
            *((one.clique, one.noisy, one.deviation) for one in self.tables),
            *others,
        ):
            bound = max(_SHOWN, math.sqrt(2 * math.log(noisy.size)) + 1) * deviation
            for axis, i in enumerate(clique):
                place = bins.counted_as(i)
                column = bins.columns[place]
                stands_out: NDArray[np.bool_] = np.zeros(bins.sizes[place], np.bool_)
                if column.cells is None:
                    stands_out = np.asarray((noisy > bound).any(axis=all_but(axis, noisy.ndim)))
                elif column.gaps:  # they are the last part of their column
                    stands_out[-1] = (noisy.take(-1, axis=axis) > bound).any()
                else:
                    continue
                found[place] = stands_out | found.get(place, np.zeros_like(stands_out))
        return found

    @property
    def _latest(self) -> dict[Clique, ReleasedTable]:
        """Of each clique the joint count that was released last: it knows those before it."""
        return {one.clique: one for one in self.tables}

    def _agreed(self, table: ReleasedTable) -> NDArray[np.float64]:
        """Return a joint count as far as later and finer ones of its columns bear it out.

        What a count of halves of three numbers says within its parts was guessed before two of them
        were counted more finely.
        """
        counts, columns = table.cleaned, self.bins.columns
        for other in self.tables[self.tables.index(table) + 1 :]:
            if (
                table.parts
                and set(other.clique) < set(table.clique)
                and columns.only_followed(other.clique) == columns.only_followed(table.clique)
                and other.count.tells(JointCount(other.clique, table.parts))
            ):
                places = [table.clique.index(i) for i in other.clique]
                others = tuple(axis for axis in range(counts.ndim) if axis not in places)
                sums = counts.sum(axis=others, keepdims=True)
                wanted = np.expand_dims(other.cleaned, others)
                counts = counts * np.divide(wanted, sums, out=np.zeros_like(sums), where=sums > 0)
        return counts

    def _measured(self, table: ReleasedTable) -> Measured:
        """Return what an estimate is told of a joint count."""
        counts, deviation = self._agreed(table), table.deviation
        if lines := self.bins.lines(table.count, apart=self._finer_elsewhere(table)):
            return Measured(table.clique, counts, deviation, lines)
        left = left_after_cleaning(counts, table.noisy.astype(np.float64), deviation)
        return Measured(table.clique, counts, left)

    def _finer_elsewhere(self, table: ReleasedTable) -> set[int]:
        """Return which columns of a joint count were counted more finely together in another one.

        What lies within their parts was guessed there, by a model that knew less. Later counts of
        the same parts know it better, too.
        """
        columns, place, found = self.bins.columns, self.tables.index(table), set[int]()
        for other_place, other in enumerate(self.tables):
            shared = tuple(i for i in table.clique if i in other.clique)
            own, others = JointCount(shared, table.parts), JointCount(shared, other.parts)
            if (
                len(shared) > 1
                and other_place != place
                and others.tells(own)
                and (other_place > place or not own.tells(others))
                and columns.only_followed(other.clique) == columns.only_followed(table.clique)
            ):
                found |= set(shared)
        return found

    @property
    def _cleaned(self) -> dict[Clique, NDArray[np.float64]]:
        return {clique: one.cleaned for clique, one in self._latest.items()}

    def _fits(self, *cliques: Clique, share: float = 1.0) -> bool:
        """Say whether the model stays within a share of its size with further cliques."""
        return self._growth.allows({*self._cleaned, *self._in_time, *cliques}, share)

    @property
    def _growth(self) -> Growth:
        spec = self._spec
        return Growth(
            sizes=self.bins.sizes,
            model_cells=spec.model_cells,
            row_cells=spec.row_cells,
            given=spec.given,
            planned=self._planned,
        )

    @property
    def implied(self) -> Implied:
        """What the joint counts that were released imply beyond what they count."""
        if self._known is None or self._known[0] != len(self.tables):
            share = self._growth.share(max(len(self.tables), 1))
            counted = {
                clique: replace(one, cleaned=self._agreed(one))
                for clique, one in self._latest.items()
            }
            found = Implied(
                self.bins,
                counted,
                self._in_time,
                lambda cliques: self._fits(*cliques, share=share),
            )
            self._known = len(self.tables), found
        return self._known[1]

    def _public_tables(self, margins: Sequence[Margin]) -> dict[Clique, NDArray[np.float64]]:
        """Return what public rows say of columns that were not counted together, if they fit."""
        if not len(self.public_cells):
            return {}
        if self._prior is None:
            bins = self.bins
            cells = [shape.bins[self.public_cells[:, i]] for i, shape in enumerate(bins.shapes)]
            self._prior = PublicRows(
                np.stack(cells, axis=1).astype(np.int32),
                bins.sizes,
                self.candidates.weights,
                {
                    (i,): margins[i].masses
                    for i in range(len(bins.shapes))
                    if not bins.columns.only_followed((i,))  # nobody counted who goes on
                },
                bins.columns,
            )
        chosen: list[Clique] = []
        for clique in self._prior.cliques:
            measured = any(set(clique) <= set(one) for one in self._cleaned)
            if not measured and self._fits(*chosen, clique):
                chosen.append(clique)
        return self._prior.tables(chosen, self._cleaned)
