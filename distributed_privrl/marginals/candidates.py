"""Which joint counts could tell anything, and in how many parts of each number.

Candidates follow from released counts and public facts alone.
"""

import math
from collections.abc import Callable, Sequence

from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.tables import CUTS, Clique, JointCount
from distributed_privrl.marginals.workload import LARGEST_WEIGHT, fitting, workload

_SEEN = 2.0
"""Deviations of its noise that a bin must weigh to be seen."""
_RESOLVED = 3.0
"""Deviations of its noise that the mean cell of a joint count weighs where parts tell no more."""
_OWN = 0.75
"""The same of a number and what it becomes, whose weight may lie in few cells."""
_CLEAR = 6.0
"""Deviations that the mean cell weighs where coarser parts are left out: these tell the same."""


class Candidates:
    """Joint counts of a table's columns.

    Args:
        bins: of the columns.
        joint_deviation: of the noise of a joint count's cell.
        most_cells: of a joint count.
        asked: columns that are counted together in any case.
    """

    def __init__(
        self,
        bins: Bins,
        *,
        joint_deviation: float,
        most_cells: int,
        asked: Sequence[Clique] = (),
    ) -> None:
        self._bins, self._joint_deviation = bins, joint_deviation
        asked = [self._as_coded(clique) for clique in asked]
        allowed = workload(bins.columns)
        if bins.panel:  # ends follow from time, which anything that changes with time would repeat
            ends = set(bins.columns.of("end"))
            allowed = {one: weight for one, weight in allowed.items() if not ends & set(one)}
        allowed |= {clique: LARGEST_WEIGHT for clique in asked if clique not in allowed}
        allowed = {one: weight for one, weight in allowed.items() if self._has_rows(one)}
        self._asked = tuple(asked)
        self.weights: dict[Clique, int] = fitting(bins.sizes, allowed, most_cells=most_cells)
        """Columns whose joint count is small enough, and what an agent needs it for."""

    def _as_coded(self, clique: Clique) -> Clique:
        """Return columns with the coding that is drawn from, of those that have two."""
        columns = self._bins.columns
        drawn = {one: other for pair in columns.codings for one, other in (pair, pair[::-1])}
        return tuple(sorted(drawn[i] if i in columns.unused else i for i in clique))

    def _has_rows(self, clique: Clique) -> bool:
        """Say whether the rows that something follows, if the count is of these, tell anything.

        All of them go on.
        """
        bins = self._bins
        if not bins.columns.only_followed(clique):
            return True
        seen = bins.weight_of(clique) > _SEEN * self._joint_deviation
        return seen and not set(bins.columns.of("end")) & set(clique)

    def worth_counting(
        self, measured: Sequence[JointCount], fits: Callable[..., bool]
    ) -> list[JointCount]:
        """Return what could tell anything, and leaves the model small.

        Args:
            measured: joint counts that were released.
            fits: says whether the model has room for further cliques.
        """
        found = []
        for clique in self.weights:
            counts = [
                one
                for one in self._counts(clique, fits)
                if not any(other.tells(one) for other in measured)
            ]
            if counts and self._varies(clique) and fits(clique):
                found += counts
        return found

    def weight(self, count: JointCount) -> int:
        """Return what a joint count matters for an agent, 1 to `LARGEST_WEIGHT`.

        What parts show of a number and what it becomes is worth less than what bins show, which may
        be that it stays. A change says that itself.
        """
        weight, columns = self.weights[count.clique], self._bins.columns
        finer = self._has_own(count.clique) and not any(columns[i].difference for i in count.clique)
        return max(weight - 1, 1) if count.parts and finer else weight

    def asked(
        self,
        measured: Sequence[Clique],
        open_: Sequence[JointCount],
        *,
        further: Sequence[Clique] = (),
    ) -> JointCount | None:
        """Return what is to be counted next in any case; None: nothing that could tell anything.

        Of the ways of counting the columns it is the finest whose mean cell stands out from noise,
        else the coarsest; of a number and what it becomes bins up to more noise, see `_counts`.

        Args:
            measured: columns that were counted together.
            open_: what is worth counting.
            further: columns that are counted together in any case, after those that were asked for.
        """
        for clique in (*self._asked, *further):
            ways = [one for one in open_ if one.clique == clique and clique not in measured]
            if ways:
                cells = {one: math.prod(self._bins.counted(one)) for one in ways}
                least = _RESOLVED * self._joint_deviation
                weight = self._bins.weight_of(clique)
                own = _OWN * self._joint_deviation if self._has_own(clique) else least
                clear = [
                    one for one in ways if weight / cells[one] >= (least if one.parts else own)
                ]
                return (
                    max(clear, key=cells.__getitem__) if clear else min(ways, key=cells.__getitem__)
                )
        return None

    def _counts(self, clique: Clique, fits: Callable[..., bool]) -> list[JointCount]:
        """Return the ways of counting a clique: in bins, and maybe in parts of its numbers.

        Parts are for what noise would hide between bins: where a cell weighs little beside it on
        average. What a number becomes in a step may follow from itself far more finely than from a
        part, as an age does, or loosely, as a delay does: up to more noise bins are counted there,
        or halves, which are not chosen where bins show more. In a triple bins alone are: its halves
        would say little of it, and be chosen for what else it tells. The model holds bins even so,
        and must have room for all that numbers become. Parts that are clear by themselves stand for
        all coarser ones, whose sums they tell. Several numbers of a triple are counted in halves
        alone: what finer parts tell of two of them, their own count tells better.
        """
        bins = self._bins
        cells, weight = math.prod(bins.sizes[i] for i in clique), bins.weight_of(clique)
        own, mean = self._has_own(clique), weight / cells
        seen = mean > _RESOLVED * self._joint_deviation or (own and len(clique) > 2)
        numbers = [i for i in clique if bins.columns[i].cells is not None]
        if not numbers or seen or not fits(clique, *self._own):
            return [JointCount(clique)]
        most = max(bins.sizes[i] for i in numbers)
        loose = own and mean > _OWN * self._joint_deviation
        if loose or (len(clique) > 2 and len(numbers) > 1):
            most = min(most, min(CUTS) + 1)
        found = {bins.counted(JointCount(clique)): JointCount(clique)}
        for parts in CUTS:
            one = JointCount(clique, parts)
            if parts < most:
                found.setdefault(bins.counted(one), one)
        clear = weight / (_CLEAR * self._joint_deviation)
        finest = max((math.prod(one) for one in found if math.prod(one) <= clear), default=0)
        return [one for shape, one in found.items() if math.prod(shape) >= finest]

    @property
    def _own(self) -> list[Clique]:
        """Pairs of an observation and what it becomes."""
        return [one for one in self.weights if len(one) == 2 and self._has_own(one)]

    def _has_own(self, clique: Clique) -> bool:
        """Say whether a clique has an observation, or its level, with what it becomes."""
        columns = [self._bins.columns[i] for i in clique]
        after = {one.place for one in columns if one.part == "next_observation"}
        before = ("observation", "memory")
        return any(one.part in before and one.place in after for one in columns)

    def _varies(self, clique: Clique) -> bool:
        """Say whether each column has two parts that stand out from its noise."""
        return all(
            self._bins.own_margin(i).varies(_SEEN, ordered=one)
            for i, one in zip(clique, self._bins.ordered(clique), strict=True)
        )
