"""Released joint counts without most of their noise: post-processing.

No single way suits all tables. A category that decides another needs each cell as it was released;
two numbers that go together loosely are told better by a smooth function than by their cells; of
two that have nothing to do with each other the margins know all. So each way is tried, and the
counts themselves say which is best: some noise more makes two independent versions of them, of
which one is cleaned and the other one judges. Within parts neither shows anything: there two
numbers go together smoothly, and others along straight lines; see `spreading`.

Reference: Neufeld, Dharamshi, Gao and Witten 2024 (data thinning).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.association import (
    FEWEST_BINS,
    STIFF,
    SUPPLE,
    BlockCounts,
    Smoothness,
    associated,
)
from distributed_privrl.marginals.spreading import spread
from distributed_privrl.marginals.tables import Maps, Margin, block_maps, blocks

_HEAVY = 3.0
"""Deviations by which a cell stands out at least."""
_TRIALS, _THINNING = 5, 0.5
"""How often each way is tried, and how much noise is added to the version that is cleaned."""
_EMPTY = 0.2
"""Deviations below which nothing is left of a cell."""


class Rule(Enum):
    """Which cells count as they were released."""

    WEIGHTY = "those that stand out from zero"
    SURPRISING = "those that stand out from what is expected"
    NONE = "none: all are as expected"


RULES = tuple(Rule)


@dataclass(frozen=True, eq=False)
class Released:
    """A released joint count, and what else is known of its cells.

    Args:
        noisy: released counts of blocks of bins.
        deviation: of the noise of each.
        total: weight of all rows.
        expected: of cells of bins without this count, adding up to ``total``.
        margins: of each column.
        ordered: of each column, whether neighbouring bins belong together.
        maps: the block of each bin of each column.
        before: released counts of the same columns.
        ruled_out: cells of bins that the owner of the rows has ruled out; None: none.
    """

    noisy: NDArray[np.float64]
    deviation: float
    total: float
    expected: NDArray[np.float64]
    margins: Sequence[Margin]
    ordered: Sequence[bool]
    maps: Maps
    before: Sequence[BlockCounts] = ()
    ruled_out: NDArray[np.bool_] | None = None

    @property
    def of_two_numbers(self) -> bool:
        """Say whether it may have an association that is smooth."""
        sizes = self.expected.shape
        return len(sizes) == 2 and all(self.ordered) and min(sizes) >= FEWEST_BINS

    @property
    def of_parts(self) -> bool:
        """Say whether parts of several bins were counted."""
        return self.noisy.shape != self.expected.shape

    @property
    def possible(self) -> NDArray[np.bool_]:
        """Cells whose categories and gaps their columns have shown, and which are not ruled out."""
        found = np.ones(self.expected.shape, np.bool_)
        if self.ruled_out is not None:
            found &= ~self.ruled_out
        for axis, (margin, ordered) in enumerate(zip(self.margins, self.ordered, strict=True)):
            if (margin.gaps or not ordered) and (margin.masses > 0).any():
                seen = margin.masses > 0
                if ordered:
                    seen[:-1] = True
                others = tuple(i for i in range(found.ndim) if i != axis)
                found &= np.expand_dims(seen, others)
        return found


def left_after_cleaning(
    counts: NDArray[np.float64], noisy: NDArray[np.float64], deviation: float
) -> NDArray[np.float64]:
    """Return how far each cell of a cleaned count may be off, as a deviation.

    Where nothing is left of a cell, noise alone may have made what was released of it. All such
    cells together say how much they hold on average: what they add up to, and how far noise may
    have moved that. The more of them there are, the surer each is empty. If all cells were off
    alike, an estimate of least squares would make up for what counts of the same columns differ by
    in empty cells, too.

    Args:
        counts: cleaned.
        noisy: the same as they were released.
        deviation: of the noise that was added to each cell.
    """
    empty = counts < _EMPTY * deviation
    if not empty.any():
        return np.full(counts.shape, deviation)
    held = max(float(noisy[empty].mean()), 0.0) / deviation + 1 / math.sqrt(empty.sum())
    left = 1 / (1 + held**-2)  # variances of a deviation of noise, and of what is held, together
    return np.asarray(deviation * np.sqrt((counts + left * deviation) / (counts + deviation)))


def cleaned(released: Released, random: np.random.Generator) -> NDArray[np.float64]:
    """Return a released joint count without most of its noise, cleaned in the best of some ways.

    Args:
        released: counts.
        random: of the trials, public.

    Returns:
        counts of at least zero of each cell of bins, that add up to ``total``.
    """
    halves = [_Halves.of(released, random) for _ in range(_TRIALS)]
    starts = _starts(released)
    tables = {
        start: [start.table(released, one.thinned, one.deviation) for one in halves]
        for start in starts
    }

    def risk(start: _Start, rule: Rule | None) -> float:
        """Return how far from the judging versions a way is: of a start alone, or with a rule."""
        found = 0.0
        for one, table in zip(halves, tables[start], strict=True):
            if rule is not None:
                table = _refined(released, one.thinned, one.deviation, table, rule)
            found += float(((blocks(table, released.maps) - one.judge) ** 2).sum())
        return found

    if released.of_two_numbers and released.of_parts:
        # A rule makes parts alike whatever they start from, and nothing else judges what is within.
        starts = [min(starts, key=lambda start: risk(start, None))]
        if starts == [_AS_EXPECTED]:
            return _refined(
                released, released.noisy, released.deviation, released.expected, Rule.NONE
            )
    ways = [(start, rule) for start in starts for rule in RULES]
    start, rule = min(ways, key=lambda way: risk(*way))
    table = start.table(released, released.noisy, released.deviation)
    return _refined(released, released.noisy, released.deviation, table, rule)


@dataclass(frozen=True, eq=False)
class _Halves:
    """Two independent versions of a released count, made by some noise more.

    Args:
        thinned: is cleaned.
        deviation: of its noise.
        judge: of what is right.
    """

    thinned: NDArray[np.float64]
    deviation: float
    judge: NDArray[np.float64]

    @classmethod
    def of(cls, released: Released, random: np.random.Generator) -> "_Halves":
        """Return two versions of a count."""
        noise = released.deviation * random.standard_normal(released.noisy.shape)
        return cls(
            released.noisy + _THINNING * noise,
            released.deviation * math.hypot(1, _THINNING),
            released.noisy - noise / _THINNING,
        )


@dataclass(frozen=True)
class _Start:
    """What cells are like before those that stand out are kept.

    Args:
        smoothness: of how two numbers go together; None: as is expected.
        unrelated: the smooth function says all of it, and not what is more than expected. What is
            expected was guessed where coarser parts alone were counted.
    """

    smoothness: Smoothness | None = None
    unrelated: bool = False

    def table(
        self, released: Released, noisy: NDArray[np.float64], deviation: float
    ) -> NDArray[np.float64]:
        """Return cells of bins by a version of the count."""
        if self.smoothness is None:
            return released.expected
        rows, columns = (margin.masses / margin.masses.sum() for margin in released.margins)
        return associated(
            [*released.before, BlockCounts(noisy, deviation, released.maps)],
            self.smoothness,
            expected=released.total * np.outer(rows, columns)
            if self.unrelated
            else released.expected,
            margins=released.margins,
        )


_AS_EXPECTED = _Start()


def _starts(released: Released) -> list[_Start]:
    if not released.of_two_numbers:
        return [_AS_EXPECTED]
    smooth = [_Start(one, unrelated) for one in (STIFF, SUPPLE) for unrelated in (False, True)]
    return [*smooth, _AS_EXPECTED]


def _refined(
    released: Released,
    noisy: NDArray[np.float64],
    deviation: float,
    expected: NDArray[np.float64],
    rule: Rule,
) -> NDArray[np.float64]:
    """Return what is expected, corrected from coarse blocks of neighbouring bins to single cells.

    What stands out is kept, and the rest of the weight goes to the other cells as the coarser
    blocks have it, raked to what each column's margin still lacks. So the noise of many empty cells
    does not become rows, and a relation that no single cell shows is seen in blocks. A category
    that the count of its column did not show has no rows: nobody dies where nobody did.
    """
    total = released.total
    least = 1e-9 * total / expected.size  # a block without weight could not take any up later
    result = np.maximum(expected, least)
    gaps = [margin.gaps for margin in released.margins]
    levels = block_maps(noisy.shape, released.ordered, gaps)
    for level in reversed(levels):
        maps = tuple(wide[own] for wide, own in zip(level, released.maps, strict=True))
        known = [
            Margin(
                np.asarray(np.bincount(one, weights=margin.masses), np.float64),
                np.sqrt(np.bincount(one, weights=margin.deviations**2)),
            )
            for one, margin in zip(maps, released.margins, strict=True)
        ]
        before = blocks(result, maps)
        deviations = deviation * np.sqrt(blocks(np.ones(noisy.shape), level))
        after = _kept_and_raked(blocks(noisy, level), deviations, total, before, known, rule)
        if released.of_parts and not released.of_two_numbers and level is levels[0]:
            atoms = [margin.alone for margin in released.margins]
            result = spread(result, after, maps, released.ordered, atoms)
        else:
            result = result * (after / before)[np.ix_(*maps)]
        result = np.maximum(result, least)
    result = np.where(released.possible, result, 0.0)
    return np.asarray(result * (total / result.sum()))


def _kept_and_raked(
    noisy: NDArray[np.float64],
    deviations: NDArray[np.float64],
    total: float,
    expected: NDArray[np.float64],
    margins: Sequence[Margin],
    rule: Rule,
) -> NDArray[np.float64]:
    """Return cells that stand out as they are, the others as expected and as margins lack.

    Of K cells that are nothing but noise, none stands out by sqrt(2 log K) deviations or more, as a
    rule.
    """
    bound = max(_HEAVY, math.sqrt(2 * math.log(noisy.size))) * deviations
    if rule is Rule.NONE:
        seen = np.zeros(noisy.shape, np.bool_)
    else:
        seen = np.abs(noisy - (0.0 if rule is Rule.WEIGHTY else expected)) > bound
    kept: NDArray[np.float64] = np.where(seen, np.maximum(noisy, 0.0), 0.0)
    if kept.sum() >= total:
        return np.asarray(kept * (total / kept.sum()))
    rest: NDArray[np.float64] = np.where(seen, 0.0, expected)
    axes = range(noisy.ndim)
    for axis, margin in enumerate(margins):
        others = tuple(i for i in axes if i != axis)
        variances = (deviations**2).sum(axis=others)
        precision = 1 / variances + 1 / margin.deviations**2
        best = noisy.sum(axis=others) / variances + margin.masses / margin.deviations**2
        lacking = np.maximum(best / precision - kept.sum(axis=others), 0.0)
        if lacking.sum() <= 0:
            continue
        sums = rest.sum(axis=others)
        ratio = np.divide(lacking, sums, out=np.zeros_like(sums), where=sums > 0)
        rest = rest * ratio.reshape([-1 if i == axis else 1 for i in axes])
    if rest.sum() > 0:
        return np.asarray(kept + rest * ((total - kept.sum()) / rest.sum()))
    return np.asarray(kept * (total / kept.sum())) if kept.any() else expected


def norm_sub(counts: NDArray[np.float64], total: float) -> NDArray[np.float64]:
    """Return counts less one number each, cut at zero, so that they add up to ``total``.

    Args:
        counts: of any shape.
        total: above zero.

    Reference: Wang, Lopuhaa-Zwakenberg, Li, Skoric and Li 2020 (Norm-Sub).

    Example:
        >>> norm_sub(np.array([5.0, 3.0, -2.0]), 6.0).tolist()
        [4.0, 2.0, 0.0]
    """
    falling = np.sort(counts, axis=None)[::-1]
    over = (np.cumsum(falling) - total) / np.arange(1, falling.size + 1)
    kept = int(np.flatnonzero(falling > over)[-1])
    found: NDArray[np.float64] = np.maximum(counts - over[kept], 0.0)
    return found
