"""The local update: from (parameters, units' data) to a sum of clipped vectors.

Every method is one of these; the round around it never changes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError

Scalar = TypeVar("Scalar", bound=np.generic)

RowLosses = Callable[[nn.Module, slice], Tensor]
"""The losses of some rows of a micro-batch, computed with a module."""

# Rows whose clipped vectors are summed in float32; blocks of them are added in float64.
SUM_EVERY_ROWS = 1024
# The same for units with many tokens, whose vectors are formed. Adding to a sum of n vectors rounds
# by n 2^-24 of the clip norm at most, in all n (n + 1) 2^-24 over a block and its neighbour: about
# a quarter of what the noise pays for (`SUM_SLACK`).
SUM_EVERY_VECTORS = 64


@dataclass(frozen=True, kw_only=True)
class UnitBatch:
    """The included units of one round on one worker.

    Args:
        rows: the units' rows, ``K`` for each unit, ``(U, K, D)`` float32.
        valid: ``(U, K)``; rows that are not count as null contributions.
        draws: standard normals for each row, ``(U, K, Z)`` float64.
        counts: ``(U,)``, in 1 .. K: the first ``counts[u]`` rows of unit u are its own, what
            follows is padding that nothing is computed of; None: all K are.

    Raises:
        ConfigError: counts out of range.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]
    draws: NDArray[np.float64]
    counts: NDArray[np.int64] | None = None

    def __post_init__(self) -> None:
        if self.counts is not None and not (
            self.counts.shape == (len(self),)
            and ((self.counts >= 1) & (self.counts <= self.rows.shape[1])).all()
        ):
            raise ConfigError(f"counts must be ({len(self)},) and lie in 1 .. {self.rows.shape[1]}")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each unit, ``(U,)``."""
        return np.full(len(self), self.rows.shape[1]) if self.counts is None else self.counts

    def part(self, start: int, stop: int) -> "UnitBatch":
        """Return the units ``start..stop``."""
        return UnitBatch(
            rows=self.rows[start:stop],
            valid=self.valid[start:stop],
            draws=self.draws[start:stop],
            counts=None if self.counts is None else self.counts[start:stop],
        )

    def micro_batches(self, rows: int) -> Iterator["UnitBatch"]:
        """Yield units with equally many rows, at most ``rows`` together, but at least one unit.

        Privacy: which units meet depends on nothing but how many rows each has, and no unit meets
        one that has more, whose size could change how it is computed.
        """
        counts = self.row_counts
        for count in np.unique(counts).tolist():
            alike = np.flatnonzero(counts == count)
            most = max(1, rows // count)
            for start in range(0, len(alike), most):
                yield self._alike(alike[start : start + most], count)

    def _alike(self, units: NDArray[np.int64], count: int) -> "UnitBatch":
        """Return ``units``, which have ``count`` rows each; views where they are neighbours."""
        first, last = int(units[0]), int(units[-1]) + 1
        chosen = slice(first, last) if last - first == len(units) else units
        return UnitBatch(
            rows=self.rows[chosen, :count],
            valid=self.valid[chosen, :count],
            draws=self.draws[chosen, :count],
        )

    def own(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the units' own entries of ``values``, ``(U, K, ...) -> (R, ...)``."""
        if self.counts is None:
            return values.reshape(values.shape[0] * values.shape[1], *values.shape[2:])
        return values[np.arange(values.shape[1]) < self.counts[:, None]]


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
    ) -> NDArray[np.floating]:
        """Return the sum over units of their clipped vectors, ``(P,)``.

        Privacy: unit as batched by the worker; each unit's vector has L2 norm at most the clip
        norm, a non-finite one is the zero vector. The sum is raw private data: it goes to the
        server, which adds the noise, and nowhere else.
        """
        ...
