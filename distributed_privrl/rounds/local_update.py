"""The local update: from (parameters, units' data) to a sum of clipped vectors.

Every method is one of these; the round around it never changes.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

# Rows whose clipped vectors are summed in float32; blocks of them are added in float64.
SUM_EVERY_ROWS = 1024


@dataclass(frozen=True, kw_only=True)
class UnitBatch:
    """The included units of one round on one worker.

    Args:
        rows: the units' rows, already drawn: ``copies`` for each unit, ``(U, copies, D)`` float32.
        valid: ``(U, copies)``; rows that are not count as null contributions.
        draws: standard normals for each copy, ``(U, copies, Z)`` float64.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]
    draws: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> "UnitBatch":
        """Return the units ``start..stop``."""
        return UnitBatch(
            rows=self.rows[start:stop], valid=self.valid[start:stop], draws=self.draws[start:stop]
        )


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
