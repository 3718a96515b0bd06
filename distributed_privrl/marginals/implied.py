"""What released counts say of columns that were not counted together.

Lengths tell of times, flows of changes and ends, and counts of a step of the step before. What was
counted itself overrules all of it, and has its room in the model first. All of it is
post-processing of released counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import SHARED, Bins
from distributed_privrl.marginals.completion import Completion
from distributed_privrl.marginals.flow import told_by_flow
from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.successors import Successors, Told
from distributed_privrl.marginals.tables import Clique, JointCount, ReleasedTable


@dataclass(frozen=True, eq=False)
class Implied:
    """What some joint counts imply.

    Args:
        bins: of the columns.
        counted: of each clique the joint count that was released last, in order.
        in_time: what lengths say of times; see `told_in_time`.
        allows: says whether the model has room for cliques beside those that were counted.
    """

    bins: Bins
    counted: Mapping[Clique, ReleasedTable]
    in_time: Mapping[Clique, Measured]
    allows: Callable[[Sequence[Clique]], bool]

    @cached_property
    def by_flow(self) -> dict[Clique, Measured]:
        """What flows say of changes and ends, as far as there is room; see `told_by_flow`."""
        found: dict[Clique, Measured] = {}
        for clique, measured in told_by_flow(self.bins, self.counted).items():
            if clique in self.counted or (
                not self._is_counted(clique) and self.allows([*found, clique])
            ):
                found[clique] = measured
        return found

    @cached_property
    def told(self) -> dict[Clique, Measured]:
        """What lengths say of times, and joint counts of the step before, of all rows."""
        found, _ = self._replayed
        return dict(self.in_time) | {
            clique: self._as_told(clique, shares, self.counted[source])
            for clique, (shares, source) in found.items()
        }

    @property
    def without_room(self) -> Told:
        """What joint counts say of the step before that the model has no room for."""
        return self._replayed[1]

    @cached_property
    def laterals(self) -> dict[Clique, NDArray[np.float64]]:
        """What joint counts say of observations after a step that the model does not tell.

        It has no room for it, or what one becomes is a change.
        """
        successors, found = Successors(self.bins.columns), dict[Clique, NDArray[np.float64]]()
        known = [set(clique) for clique in (*self.counted, *self.told)]
        told: list[JointCount] = []
        for one in reversed(self._finest_first):  # what comes last holds
            together = successors.together(one.clique, one.cleaned)
            count = None if together is None else JointCount(together[0], one.parts)
            if together is None or count is None or any(other.tells(count) for other in told):
                continue
            after = successors.next_of(together[0])
            if after is None or not any(set(after) <= other for other in known):
                found.pop(together[0], None)
                found[together[0]] = together[1]
                told.append(count)
        return found if self.bins.columns.of("time") else {}

    def of_all(
        self, counted: Sequence[Measured], masses: Sequence[NDArray[np.float64]]
    ) -> list[Measured]:
        """Return counts and all that they imply, of all rows.

        Args:
            counted: what was counted, by itself or in public rows.
            masses: ``(K,)`` of each column's bins, in all rows.
        """
        flows = list(self.by_flow.values())
        completion = Completion(self.bins, masses, flows)
        others = [one for one in counted if one.clique not in self.by_flow]
        told = map(completion.fitted, self.told.values())
        return [*flows, *completion.of_all(others), *told]

    @cached_property
    def _replayed(self) -> tuple[Told, Told]:
        """What joint counts say of the step before: what there is room for, and the rest."""
        tables = [(one.clique, one.cleaned) for one in self._finest_first]
        flows = [clique for clique in self.by_flow if clique not in self.counted]
        return Successors(self.bins.columns).replayed(
            tables, lambda cliques: self.allows([*flows, *cliques])
        )

    @property
    def _finest_first(self) -> list[ReleasedTable]:
        """Joint counts in order, those of bins before those of parts, and pairs first."""
        return sorted(self.counted.values(), key=lambda one: (one.parts > 0, len(one.clique)))

    def _is_counted(self, clique: Clique) -> bool:
        return any(set(clique) <= set(other) for other in (*self.counted, *self.in_time))

    def _as_told(
        self, clique: Clique, shares: NDArray[np.float64], source: ReleasedTable
    ) -> Measured:
        """Return what a joint count says of other columns."""
        lines = self.bins.lines(JointCount(clique, source.parts))
        return Measured(clique, self.bins.total * shares, SHARED * source.deviation, lines)
