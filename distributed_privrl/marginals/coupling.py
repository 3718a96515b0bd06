"""How numbers lie in their bins, given how others do.

A joint count says how bins go together. Two numbers that nearly decide each other do so inside
their bins, too: of delays in an hour's bin, the longest go with the latest arrivals. All of it is
post-processing of released counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from distributed_privrl.marginals.changes import After, Before, PartsOfSteps, parts_of_steps
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.tables import Clique, counts_of, local_correlation

_UNRELATED = 0.05
"""Numbers whose bins correlate less than this lie in their bins independently of each other."""
_EDGE = 1e-9
_NOTHING = 1e-300


@dataclass(frozen=True, eq=False)
class Leaning:
    """Where a number lies in its bin, given another number of the row.

    Around a bin, both are taken to be normal, with a correlation that the bins around it show. So
    how far the other lies among all rows of the bin says where in the bin the number lies; the
    narrower the bin is, the less.

    Args:
        shares: ``(K, L)`` of the other's bins and the number's.
    """

    shares: NDArray[np.float64]

    @cached_property
    def correlations(self) -> NDArray[np.float64]:
        """Of both within each of the number's bins, ``(L,)``.

        Of two standard normal numbers of correlation rho, one of which lies in a bin where its
        deviation is s: rho s / sqrt(rho^2 s^2 + 1 - rho^2).
        """
        around = self.shares / np.maximum(self.shares.sum(axis=0), _NOTHING)
        along = (local_correlation(self.shares) * around).sum(axis=0)
        explained = along * _deviations(self.shares.sum(axis=0))
        return np.asarray(explained / np.sqrt(explained**2 + 1 - along**2))

    @cached_property
    def _below(self) -> NDArray[np.float64]:
        """Share of a bin's rows whose other number lies in a lower bin, ``(K, L)``."""
        return np.asarray(self._within.cumsum(axis=0) - self._within)

    @cached_property
    def _within(self) -> NDArray[np.float64]:
        sums = self.shares.sum(axis=0)
        even = np.full(self.shares.shape, 1 / len(self.shares))
        return np.asarray(np.divide(self.shares, sums, out=even, where=sums > 0))

    def scores(
        self,
        bins: NDArray[np.integer],
        others: NDArray[np.integer],
        places: NDArray[np.float64],
        noise: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return normal scores of where the number lies in its bins, ``(N,)``.

        Args:
            bins: of the number, ``(N,)``.
            others: bins of the other number.
            places: where the other lies in its bin, from 0 to 1.
            noise: standard normal.
        """
        along = self._below[others, bins] + places * self._within[others, bins]
        told = self.correlations[bins]
        leaning = told * ndtri(np.clip(along, _EDGE, 1 - _EDGE))
        return np.asarray(leaning + np.sqrt(1 - told**2) * noise)

    def likelihoods(
        self, bins: NDArray[np.integer], scores: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return how much likelier each bin of the other number is by where the number lies.

        Args:
            bins: of the number, ``(N,)``.
            scores: normal scores of where it lies in them.

        Returns:
            ``(N, K)``, 1 where it tells nothing; those of a bin are 1 on average.
        """
        within, told = self._within[:, bins], self.correlations[bins]
        lower = ndtri(np.clip(self._below[:, bins], _EDGE, 1 - _EDGE))
        upper = ndtri(np.clip(self._below[:, bins] + within, _EDGE, 1 - _EDGE))
        spread = np.sqrt(1 - told**2)
        inside = ndtr((upper - told * scores) / spread) - ndtr((lower - told * scores) / spread)
        even = np.ones(inside.shape)
        return np.asarray(np.divide(inside, within, out=even, where=within > _EDGE).T)


def _deviations(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the deviation of a standard normal number within each of its bins, ``(L,)``."""
    edges = np.clip(np.append(0.0, np.cumsum(shares)) / shares.sum(), _EDGE, 1 - _EDGE)
    limits = ndtri(edges)
    heights = norm.pdf(limits)
    own = np.maximum(np.diff(edges), _EDGE)
    mean, slope = -np.diff(heights) / own, -np.diff(limits * heights) / own
    return np.asarray(np.sqrt(np.clip(1 + slope - mean**2, 0.0, 1.0)))


@dataclass(frozen=True, eq=False)
class Coupling:
    """A number that follows another one, in its bins.

    Args:
        leader: the other's place.
        strength: how much both go together, from 0 to 1.
        follower: where the number lies, given the leader.
        leads: where the leader lies, given the number.
    """

    leader: int
    strength: float
    follower: Leaning | After
    leads: Leaning | Before

    @classmethod
    def of_bins(cls, leader: int, shares: NDArray[np.float64], strength: float) -> "Coupling":
        """Return a coupling of two numbers that go together in their bins as around them.

        Args:
            leader: see `Coupling`.
            shares: ``(K, L)`` of the other's bins and the number's.
            strength: see `Coupling`.
        """
        return cls(leader, strength, Leaning(shares), Leaning(np.ascontiguousarray(shares.T)))

    @classmethod
    def of_steps(cls, leader: int, parts: PartsOfSteps, strength: float) -> "Coupling":
        """Return the coupling of a number after a step with the same number before it."""
        return cls(leader, strength, After(parts), Before(parts))


@dataclass(frozen=True, eq=False)
class Couplings:
    """All couplings of a table.

    Args:
        of: that of each number that follows another, by place.
    """

    of: dict[int, Coupling]

    def in_order(self, asked: Sequence[int]) -> list[int]:
        """Return places, leaders before those that follow them."""
        order: list[int] = []

        def add(place: int) -> None:
            if place in order or place not in asked:
                return
            if place in self.of:
                add(self.of[place].leader)
            order.append(place)

        for place in asked:
            add(place)
        return order

    def score(
        self,
        place: int,
        asked: Sequence[int],
        bins: NDArray[np.integer],
        scores: NDArray[np.float64],
        random: np.random.Generator,
    ) -> None:
        """Write normal scores of where a number lies in its bins, in place.

        It leans on what it goes with most: its leader, or one that follows it and is drawn after
        it. Of that the bin alone is known, which tells bins of a wide bin's one end from the other.

        Args:
            place: of the number.
            asked: places that are drawn together, `in_order`.
            bins: ``(N, V)``.
            scores: ``(N, V)``, those of leaders known.
            random: of the draws.
        """
        own = bins[:, place]
        noise = random.standard_normal(len(bins))
        leader = self.of.get(place)
        after = [i for i in asked if i in self.of and self.of[i].leader == place]
        strongest = max(after, key=lambda i: self.of[i].strength, default=None)
        if strongest is not None and (
            leader is None or self.of[strongest].strength > leader.strength
        ):
            anywhere = random.random(len(bins))
            leads = self.of[strongest].leads
            scores[:, place] = leads.scores(own, bins[:, strongest], anywhere, noise)
        elif leader is not None:
            known = ndtr(scores[:, leader.leader])
            scores[:, place] = leader.follower.scores(own, bins[:, leader.leader], known, noise)
        else:
            scores[:, place] = noise


def couplings(
    columns: TableColumns,
    shapes: Sequence[ColumnShape],
    sizes: Sequence[int],
    cliques: Sequence[Clique],
    rows: NDArray[np.integer],
) -> Couplings:
    """Return how numbers lie in their bins.

    Each number follows at most one other, the one that it goes with most, among those before it
    that were counted with it. What a number becomes may follow the number, of which changes were
    counted, too; what never falls does. What a bin holds is as in rows that are drawn, of which
    large units have more.

    Args:
        columns: of the table.
        shapes: of each column.
        sizes: bins of each column.
        cliques: that were measured.
        rows: ``(N, V)``, drawn from the model.
    """
    found: dict[int, Coupling] = {}
    weights = np.ones(len(rows))
    for place in columns.of("unit"):
        assert columns.unit_sizes is not None
        weights = np.asarray(columns.unit_sizes.rows[rows[:, place]], np.float64)
    ranks, changes = _ranks(rows), dict(columns.codings)
    followed = rows[columns.followed(rows)]
    for place in range(len(columns)):
        column = columns[place]
        if column.cells is None or place in columns.unused:
            continue
        leaders = {
            other
            for clique in cliques
            if place in clique
            for other in clique
            if other < place and columns[other].cells is not None
        }
        if place in changes and column.like is not None:
            leaders.add(column.like)
        if not leaders:
            continue
        strength = {one: abs(float(np.mean(ranks[:, one] * ranks[:, place]))) for one in leaders}
        leader = max(sorted(leaders), key=strength.__getitem__)
        if place in changes and column.like is not None:
            change = columns[changes[place]]
            if column.rises or leader == column.like or strength[leader] < _UNRELATED:
                own = column.like
                together = counts_of(followed, (own, place), sizes)
                parts = parts_of_steps(
                    shapes[place], column, shapes[changes[place]], change, together
                )
                found[place] = Coupling.of_steps(own, parts, strength[own])
                continue
        if strength[leader] < _UNRELATED:
            continue
        counts = counts_of(rows, (leader, place), sizes, weights)
        found[place] = Coupling.of_bins(leader, counts / counts.sum(), strength[leader])
    return Couplings(found)


def _ranks(rows: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return the standardised ranks of each column's bins, ``(N, V)``."""
    ranks = np.zeros(rows.shape)
    for place in range(rows.shape[1]):
        counts = np.bincount(rows[:, place])
        middle = np.cumsum(counts) - counts / 2
        own = middle[rows[:, place]]
        deviation = own.std()
        ranks[:, place] = (own - own.mean()) / deviation if deviation > 0 else 0.0
    return ranks
