"""The local update: from (parameters, units' data) to a sum of clipped vectors.

Every method is one of these; the round around it never changes.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError

RowLosses = Callable[[nn.Module, slice], Tensor]
"""The losses of some rows of a micro-batch, weighted so that a unit's add up to its mean."""


@dataclass(frozen=True, kw_only=True)
class UnitBatch:
    """The included slots of one round on one worker, block after block.

    Args:
        rows: the units' rows, ``K`` for each unit, ``(U, K, D)`` float32; K is public.
        valid: ``(U, K)``; rows that are not count as null contributions.
        draws: standard normals for each row, ``(U, K, Z)`` float64.
        counts: ``(U,)``, in 1 .. K: the first ``counts[u]`` rows of unit u are its own, what
            follows is padding that counts for nothing; None: all K are.
        blocks: units of each block, which add up to U; None: they are one block.
        share: part of all blocks of a round that these are, a public number.

    Raises:
        ConfigError: counts out of range, or blocks that do not add up.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]
    draws: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None
    blocks: tuple[int, ...] | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.counts is not None and not (
            self.counts.shape == (len(self),)
            and ((self.counts >= 1) & (self.counts <= self.rows.shape[1])).all()
        ):
            raise ConfigError(f"counts must be ({len(self)},) and lie in 1 .. {self.rows.shape[1]}")
        if self.blocks is not None and sum(self.blocks) != len(self):
            raise ConfigError(f"blocks must add up to {len(self)} units, got {self.blocks}")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each unit, ``(U,)``."""
        return np.full(len(self), self.rows.shape[1]) if self.counts is None else self.counts

    @property
    def weights(self) -> NDArray[np.float64]:
        """What each row counts in its unit's mean, ``(U, K)``: padding nothing."""
        counts = self.row_counts[:, None]
        return np.asarray((np.arange(self.rows.shape[1]) < counts) / counts, np.float64)

    def part(self, start: int, stop: int) -> "UnitBatch":
        """Return the units ``start..stop`` as one block."""
        return UnitBatch(
            rows=self.rows[start:stop],
            valid=self.valid[start:stop],
            draws=self.draws[start:stop],
            counts=None if self.counts is None else self.counts[start:stop],
        )

    def micro_batches(self, rows: int, units: int = sys.maxsize) -> Iterator["UnitBatch"]:
        """Yield parts of about equal size, of ``rows`` rows or one unit, that cross no block.

        Privacy: which units meet, and in which place, follows from how many slots each block's
        coins chose and from public numbers; how many rows a unit has changes nothing.

        Args:
            rows: of a part at most, but all of a unit.
            units: of a part at most.
        """
        at_once = min(max(1, rows // self.rows.shape[1]), units)
        start = 0
        for block in (len(self),) if self.blocks is None else self.blocks:
            for size in equal_parts(block, at_once):
                yield self.part(start, start + size)
                start += size


def equal_parts(count: int, most: int) -> list[int]:
    """Return the sizes of the fewest parts of at most ``most``, nearly equal, the larger first.

    Example:
        >>> equal_parts(10, 4)
        [4, 3, 3]
    """
    parts = -(-count // most)
    return [count // parts + (index < count % parts) for index in range(parts)]


class RowLoss(Protocol):
    """A loss whose rows never meet: no BatchNorm, nothing that couples units."""

    @property
    def draw_count(self) -> int:
        """How many standard normals a row's loss needs (``Z``)."""
        ...

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the loss of each row: ``(M, D), (M, Z) -> (M,)``."""
        ...


class LocalUpdate(Protocol):
    """A pure function from (parameters, units' data) to the sum of clipped vectors."""

    @property
    def dimension(self) -> int:
        """Length of a unit's vector."""
        ...

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.float64]:
        """Return the sum over units of their clipped vectors, ``(P,)`` float64.

        With a clip norm it consists of multiples of the noise's lattice (`lattice_granularity`), so
        that sums of workers are exact. The array may be overwritten by the next call.

        Privacy: unit as batched by the worker; each unit's vector has L2 norm at most the clip
        norm, a non-finite one is the zero vector. A unit that becomes null moves the sum by its
        vector, by what the mechanism's ``sum_slack`` pays for, and by one step of the lattice in
        each coordinate. The sum is raw private data: it goes to the server, which adds the noise,
        and nowhere else.
        """
        ...
