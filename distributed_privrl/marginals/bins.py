"""Bins of a table's columns, as released counts of each of them show them.

All of it is post-processing.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.marginals.column import STAYS, TERMINATES
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.ends import told_by_lengths
from distributed_privrl.marginals.shapes import (
    ColumnShape,
    column_shape,
    drawn_numbers,
    falling,
)
from distributed_privrl.marginals.spreading import lines_of
from distributed_privrl.marginals.successors import Successors
from distributed_privrl.marginals.tables import Clique, JointCount, Maps, Margin, parts_of
from distributed_privrl.marginals.tails import Weight
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

SHARED = 3.0
"""How much less counts of observations say of next observations."""
_FEWEST_BINS = 6
_PANEL = 0.9
"""Share of trajectories of the same length above which others are taken for noise."""
_SMALL, _STAYS = 0.25, 0.6
"""Share of differences of two people that are small; of the others, that of changes that are."""
_RISES = 0.2
"""The same of what never falls: it has not forgotten what it was."""
_DRAWN = 20_000


class Bins:
    """What is known of each column by itself.

    Args:
        columns: of the table; of two codings of a number, one is unused.
        shapes: of each column.
        total: weight of all rows.
        panel: whether trajectories are as long as each other, so that a step's time says if it is
            the last.
        followed: weight of the rows of which somebody saw what follows; None: of all.
    """

    def __init__(
        self,
        columns: TableColumns,
        shapes: Sequence[ColumnShape],
        total: float,
        *,
        panel: bool = False,
        followed: float | None = None,
    ) -> None:
        self.columns, self.shapes, self.total = columns, tuple(shapes), total
        self.panel = panel
        self.followed = total if followed is None else followed
        self.hidden = Successors(columns).hidden
        """Columns whose successors are hidden ones of the model."""
        sizes = tuple(shape.size for shape in self.shapes)
        self.sizes = sizes + tuple(sizes[i] for i in self.hidden)
        """Bins of each column, at last of hidden ones."""
        self._parted: dict[tuple[int, int], NDArray[np.int64]] = {}

    def weight_of(self, clique: Clique) -> float:
        """Return the weight of the rows that a joint count is of."""
        return self.followed if self.columns.only_followed(clique) else self.total

    def margin(self, place: int, shown: NDArray[np.bool_] | None = None) -> Margin:
        """Return what is known of a column's bins before joint counts.

        Args:
            place: of the column.
            shown: bins of categories, or of gaps, that stand out from a joint count, whatever the
                column's own says.
        """
        own = self.own_margin(place, shown)
        shared = self.columns[place].like is not None
        return replace(own, deviations=own.deviations * SHARED) if shared else own

    def own_margin(self, place: int, shown: NDArray[np.bool_] | None = None) -> Margin:
        """Return what counts of the column that it is like say of a column's bins."""
        shape = self.shapes[place]
        masses = shape.bin_masses
        if shown is not None:
            late, (noisy, _) = shown & (masses <= 0), shape.bin_counts
            masses = np.where(late, np.maximum(noisy, shape.deviation), masses)
        masses = masses * (self.total / masses.sum())
        _, joined = shape.bin_counts
        cells = self.columns[place].cells
        atoms = None if cells is None else shape.atoms(cells)
        deviation = shape.deviation
        if self.columns[place].like is None:
            deviation *= self.total / self.weight_of((place,))
        return Margin(masses, deviation * np.sqrt(joined), atoms, self.columns[place].gaps)

    def ordered(self, clique: Clique) -> list[bool]:
        """Say of each column whether neighbouring bins belong together."""
        return [self.columns[i].cells is not None for i in clique]

    def counted_as(self, place: int) -> int:
        """Return the column whose own count says what is known of a column's categories."""
        like = self.columns[self.seen(place)].like
        return self.seen(place) if like is None else like

    def seen(self, place: int) -> int:
        """Return the column that a hidden one is like, and others as they are."""
        over = place - len(self.shapes)
        return place if over < 0 else self.hidden[over]

    def maps(self, count: JointCount) -> Maps:
        """Return the part that each bin of each column is counted in."""
        return tuple(self._parts(self.seen(i), count.parts) for i in count.clique)

    def counted(self, count: JointCount) -> tuple[int, ...]:
        """Return the shape of what is counted."""
        return tuple(int(one[-1]) + 1 for one in self.maps(count))

    def ruled_out(self, clique: Clique) -> NDArray[np.bool_] | None:
        """Return the cells in which a number falls that never does; None: there are none."""
        found: NDArray[np.bool_] | None = None
        for after in clique:
            before, cells = self.columns[after].like, self.columns[after].cells
            if not self.columns[after].rises or before not in clique or cells is None:
                continue
            falls = falling(self.shapes[after], cells)
            others = [axis for axis, i in enumerate(clique) if i not in (before, after)]
            falls = np.broadcast_to(np.expand_dims(falls, others), [self.sizes[i] for i in clique])
            found = falls if found is None else found | falls
        return found

    def lines(
        self, count: JointCount, *, apart: Collection[int] = ()
    ) -> tuple[NDArray[np.float64], ...]:
        """Return how much of each bin is in each part; nothing where bins were counted.

        Args:
            count: what was counted.
            apart: columns of which more is known than their parts: a bin is all in its own part.
                Elsewhere what is found of parts is spread along straight lines from one to the
                next, which is a guess of what lies within them.
        """
        if not count.parts:
            return ()
        found = []
        for i, parts in zip(count.clique, self.maps(count), strict=True):
            if i in apart or len(np.unique(parts)) == len(parts):
                found.append(np.eye(int(parts[-1]) + 1)[parts])
            else:
                margin = self.margin(self.seen(i))
                found.append(lines_of(margin.masses, parts, margin.atoms))
        return tuple(found)

    def _parts(self, place: int, parts: int) -> NDArray[np.int64]:
        """Return the part of each bin of a column; see `JointCount`."""
        if not parts or self.columns[place].cells is None:
            return np.arange(self.sizes[place])
        if (place, parts) not in self._parted:
            margin = self.margin(place)
            self._parted[place, parts] = parts_of(margin.masses, parts, margin.atoms)
        return self._parted[place, parts]


def found_bins(
    columns: TableColumns,
    counts: NDArray[np.int64],
    deviation: float,
    *,
    joint_deviation: float,
    most_bins: int,
    streams: Streams,
    lengths: NDArray[np.float64],
) -> Bins:
    """Find bins, and shapes inside them, from the released counts of columns.

    Args:
        columns: of the table.
        counts: as `CountWorker.columns` has them, with noise.
        deviation: of the noise.
        joint_deviation: of the noise of a joint count's cell: more bins would drown in it.
        most_bins: of a number.
        streams: public randomness.
        lengths: ``(G,)`` trajectories by their length; empty where they are not counted.
    """
    ends = np.cumsum(columns.counted)
    own = [counts[end - size : end] for end, size in zip(ends, columns.counted, strict=True)]
    counted = [
        place
        for place, column in enumerate(columns.columns)
        if column.counted and not columns.only_followed([place])
    ]
    sums = np.array([float(own[i][: columns[i].size].sum()) for i in counted])
    inverse = 1 / np.array([columns[i].size for i in counted])
    total = max(float((sums * inverse).sum() / inverse.sum()), UNIT_WEIGHT)
    known = Weight(value=total, deviation=deviation * float(inverse.sum()) ** -0.5)
    followed = known
    if columns.ends_unseen:
        (end,) = columns.of("end")
        noisy = own[end].astype(np.float64)
        told = told_by_lengths(columns, end, noisy, lengths, (), total=total)
        shape = column_shape(
            columns[end], noisy, deviation=deviation, most_bins=most_bins, told=told
        )
        share = 1 - shape.masses[TERMINATES] / shape.masses.sum()
        followed = Weight(
            value=max(float(share) * total, deviation),
            deviation=math.hypot(known.deviation, deviation),
        )
    resolved = (total / joint_deviation) ** 0.5
    most = int(np.clip(resolved, _FEWEST_BINS, most_bins))
    shapes: list[ColumnShape] = []
    for place, column in enumerate(columns.columns):
        if column.like is not None:
            shapes.append(shapes[column.like])
            continue
        noisy = own[place].astype(np.float64)
        told = told_by_lengths(columns, place, noisy, lengths, shapes, total=total)
        weight = followed if columns.only_followed([place]) else known
        shapes.append(
            column_shape(
                column, noisy, deviation=deviation, most_bins=most, told=told, total=weight
            )
        )
    unused = (_worse(pair, columns, shapes, streams) for pair in columns.codings)
    drawn = replace(columns, unused=frozenset(unused))
    return Bins(drawn, shapes, total, panel=is_panel(lengths), followed=followed.value)


def is_panel(lengths: NDArray[np.float64]) -> bool:
    """Say whether nearly all trajectories have one length.

    Args:
        lengths: ``(G,)`` trajectories by their length; empty where they are not counted.
    """
    return bool(len(lengths)) and float(lengths.max()) > _PANEL * float(lengths.sum())


def _worse(
    codings: tuple[int, int],
    columns: TableColumns,
    shapes: Sequence[ColumnShape],
    streams: Streams,
) -> int:
    """Return the coding of a number after a step that nothing is to be drawn from.

    If a step forgot the number, its changes would be as large as differences of two people's
    numbers, of which a quarter count as small. Where most of the others are small as well, a change
    says more than the number itself: a pair of columns as fine as that would drown in noise. The
    share of small changes is that of the weights that were found in the released counts: noise,
    which hides all of them, spreads them over all changes that there may be. Of a category, staying
    is what is small. A number that never falls needs a smaller share: how long somebody stays away
    depends on who it is more than on the day.

    Args:
        codings: places of the number as it is, and as a change.
        columns: of the table.
        shapes: of each column.
        streams: public randomness.
    """
    as_it_is, change = codings
    if columns[change].cells is None:
        shares = shapes[as_it_is].masses / shapes[as_it_is].masses.sum()
        masses, by_chance = shapes[change].masses, float((shares**2).sum())
        stays = masses[STAYS] > (by_chance + _STAYS * (1 - by_chance)) * masses.sum()
        return as_it_is if stays else change
    random = streams.numpy(f"codings/{change}")
    one, other = (_numbers(columns, shapes, as_it_is, random) for _ in range(2))
    apart = np.abs(one - other)
    small = np.quantile(apart, _SMALL)
    by_chance = (apart <= small).mean()
    cells = columns[change].cells
    assert cells is not None
    changes = np.linspace(-small, small, _DRAWN)
    if cells.step:
        changes = cells.step * np.round(changes / cells.step)
    near = np.unique(cells.cells_of(changes[np.abs(changes) <= small]))
    masses = shapes[change].masses
    share = _RISES if columns[change].rises else _STAYS
    needed = by_chance + share * (1 - by_chance)
    return as_it_is if masses[near].sum() > needed * masses.sum() else change


def _numbers(
    columns: TableColumns,
    shapes: Sequence[ColumnShape],
    place: int,
    random: np.random.Generator,
) -> NDArray[np.float64]:
    """Return numbers drawn from a released column."""
    shape = shapes[place]
    shares = shape.bin_masses / shape.bin_masses.sum()
    bins = random.choice(len(shares), _DRAWN, p=shares)
    return drawn_numbers(columns[place], shape, bins, random.uniform(size=_DRAWN))
