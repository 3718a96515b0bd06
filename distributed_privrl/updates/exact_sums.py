"""Sums of clipped vectors that are exact beyond some units: multiples of the noise's lattice.

A unit's vector reaches the sum in one of two ways. A vector that was formed is rounded to the
lattice by itself; sums of such integers are exact in any order. The others are added up, some units
of a micro-batch at a time, by matrix products in float32, whose rounding `float32_slack` bounds for
any order of their additions; each product is rounded to the lattice, and what follows is exact
again.

So one unit moves the sum by its vector, by `SUM_SLACK` of the clip norm where float32 products are
used, and by one step of the lattice in each coordinate: a theorem, not a measurement.

Reference: Higham, Accuracy and Stability of Numerical Algorithms (2002), sections 3.1 and 3.5, for
gamma_m = m u / (1 - m u).
"""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.calibration import SUM_SLACK
from distributed_privrl.privacy.noise import lattice_granularity, most_exact_units
from distributed_privrl.updates.local_update import equal_parts
from distributed_privrl.updates.row_kernels import add_rounded_, add_rounded_rows_

_UNIT_ROUNDOFF = 2.0**-24
_MOST_ADDENDS = 2**16  # up to it gamma_m is below m u (1 + 2^-7)
_TILE_NUMBERS = 2**19  # of a product at once: it and the total it goes to stay in the cache


def float32_slack(units: int, addends: int, cancellation: float) -> float:
    """Return how far rounding moves a float32 sum, in clip norms, when one unit becomes null.

    A product of ``m = units x addends`` terms, added up in any order, fused or not, is off by
    gamma_m times the sum of the terms' norms in L2: by gamma_m x units x cancellation clip norms at
    most. One unit more or less, it is twice that.

    Args:
        units: of the sum (n).
        addends: terms of each unit (k): rows and tokens.
        cancellation: largest ratio of the sum of the norms of a unit's terms to its clip norm.
    """
    terms = units * addends
    if terms > _MOST_ADDENDS:
        return math.inf
    gamma = terms * _UNIT_ROUNDOFF / (1 - terms * _UNIT_ROUNDOFF)
    return 2 * gamma * units * cancellation


def most_units(addends: int, cancellation: float) -> int:
    """Return how many units a float32 sum may hold so that `SUM_SLACK` pays for its rounding.

    Example:
        >>> most_units(1, 1.0), most_units(4, 16.0)
        (259, 32)
    """
    units = math.isqrt(int(SUM_SLACK / (2 * _UNIT_ROUNDOFF * addends * cancellation))) + 1
    while units and float32_slack(units, addends, cancellation) > SUM_SLACK:
        units -= 1
    return units


def check_full_float32() -> None:
    """Refuse products of less than full float32, for which the bound does not hold.

    Raises:
        UnsafeError: torch may use bfloat16 or TF32 for products of float32 matrices.
    """
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # backends were told different ones
        precision = "mixed"
    if precision != "highest":
        raise UnsafeError(
            "torch.set_float32_matmul_precision is not 'highest': sums of clipped vectors would be"
            " rounded more than their noise pays for"
        )


class ExactSum:
    """The sum of a batch's clipped vectors ``(P,)``, float64 multiples of the noise's lattice.

    Without a clip norm nothing is private, and nothing is rounded.

    Args:
        dimension: P.
        clip_norm: L2 bound of a unit's vector; None without privacy.
        like: a tensor of the device where sums are formed.
    """

    def __init__(self, dimension: int, clip_norm: float | None, *, like: Tensor) -> None:
        self.granularity = None if clip_norm is None else lattice_granularity(clip_norm, dimension)
        self._most = math.inf if clip_norm is None else most_exact_units(clip_norm, dimension)
        self._own, self._added = self._most, 0
        self._total = torch.zeros(dimension, dtype=torch.float64, device=like.device)
        self._begun: dict[int, int] | None = {}  # places, first to last; None: all of them
        self._tile = like.new_empty(0)

    @property
    def total(self) -> Tensor:
        """``(P,)`` float64, until the sum is cleared."""
        self._begin_the_rest()
        return self._total

    def clear(self, share: float = 1.0) -> None:
        """Begin a new sum: what is added first to a place overwrites what lies there.

        Args:
            share: of a round's units, all workers' together, that may be added to this sum: their
                sum is exact, too.
        """
        self._own, self._added, self._begun = self._most * share, 0, {}

    def _begin(self, place: slice) -> bool:
        """Say whether ``place`` has nothing of this sum, whose next vector begins it."""
        if self._begun is None:
            return False
        first, last, _ = place.indices(len(self._total))
        if self._begun.get(first) == last:
            return False
        if any(one < last and first < end for one, end in self._begun.items()):
            self._begin_the_rest()  # places that overlap in part
            return False
        self._begun[first] = last
        return True

    def _begin_the_rest(self) -> None:
        """Write zeros wherever nothing was added."""
        if self._begun is not None:
            free = 0
            for first, last in [*sorted(self._begun.items()), (len(self._total), 0)]:
                self._total[free:first].zero_()
                free = last
            self._begun = None

    def count(self, units: int) -> None:
        """Tell that vectors of so many units are to be added.

        Raises:
            UnsafeError: they are more than exact sums can hold. How many take part follows from the
                coins alone.
        """
        self._added += units
        if self._added > self._own:
            raise UnsafeError(
                f"a worker has {self._added} units of a round, exact sums of {len(self._total)}"
                f" numbers hold {int(self._own)} of it and {int(self._most)} in all: lower"
                " training.expected_batch_size"
            )

    def add_products(
        self,
        place: slice,
        operands: Sequence[tuple[Tensor, Tensor]],
        *,
        addends: int = 1,
        cancellation: float = 1.0,
    ) -> None:
        """Add ``G^T A``, ``(M, O), (M, I) -> (O I,)``, of each pair of operands at ``place``.

        Rows are summed in float32 with those of so many units as `most_units` allows, and rounded.
        All pairs are added to a part of the sum while it lies in the cache.

        Args:
            place: of the sum.
            operands: gradients and inputs, one after the other each unit's rows.
            addends: rows of a unit; M is a multiple of it.
            cancellation: largest ratio of the sum of their norms to the clip norm.

        Raises:
            UnsafeError: a unit has more addends than float32 sums are paid for.
        """
        target, begin = self._total[place], self._begin(place)
        parts = [
            (gradients[part], inputs[part])
            for gradients, inputs in operands
            for part in self._parts(len(gradients), addends, cancellation)
        ]
        outputs, width = operands[0][0].shape[1], operands[0][1].shape[1]
        at_once = max(1, _TILE_NUMBERS // width)
        if len(self._tile) < at_once * width:
            self._tile = operands[0][1].new_empty(at_once * width)
        for first in range(0, outputs, at_once):
            last = min(first + at_once, outputs)
            product = self._tile[: (last - first) * width].view(last - first, width)
            tile = target[first * width : last * width]
            for number, (gradients, inputs) in enumerate(parts):
                torch.mm(gradients[:, first:last].t(), inputs, out=product)
                fresh = begin and number == 0
                add_rounded_(tile, product.view(-1), self.granularity, begin=fresh)

    def add_sum(
        self, place: slice, rows: Tensor, *, addends: int = 1, cancellation: float = 1.0
    ) -> None:
        """Add the sum of ``rows`` ``(M, O) -> (O,)`` at ``place``; see `add_products`."""
        begin = self._begin(place)
        for number, part in enumerate(self._parts(len(rows), addends, cancellation)):
            fresh = begin and number == 0
            add_rounded_(self._total[place], rows[part].sum(dim=0), self.granularity, begin=fresh)

    def _parts(self, rows: int, addends: int, cancellation: float) -> list[slice]:
        """Return which rows one float32 sum holds: whole units, as many as are paid for."""
        units = rows // addends
        most = max(1, units)
        if self.granularity is not None:
            most = min(most, most_units(addends, cancellation))
            if not most:
                raise UnsafeError(f"no float32 sum of {addends} addends a unit is paid for")
        ends = [0, *accumulate(size * addends for size in equal_parts(units, most))]
        return [slice(*pair) for pair in pairwise(ends)]

    def add_rows(self, place: slice, rows: Tensor, first: int = 0) -> None:
        """Add columns of ``rows`` ``(U, Q)`` from ``first`` on at ``place``, each row rounded."""
        begin = self._begin(place)
        add_rounded_rows_(self._total[place], rows, first, self.granularity, begin=begin)
