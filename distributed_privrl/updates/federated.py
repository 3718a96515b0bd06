"""DP-FedAvg: a unit's vector is where its own local training ends, seen from where it started.

Reference: PriMORL, algorithm 2; McMahan et al. 2018, arXiv:1710.06963.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.updates.ensemble_clipping import EnsembleClip
from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.federated_config import FederatedConfig
from distributed_privrl.updates.local_update import UnitBatch


class LocalTrainer(Protocol):
    """Trains on one unit after the other, each from the same start; no unit sees another."""

    @property
    def draw_count(self) -> int:
        """Standard normals that a row needs."""
        ...

    def differences(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> Iterator[NDArray[np.floating]]:
        """Yield start - end of consecutive units' training, ``(u, P)``, at most the next yield.

        A unit without a valid row ends where it started; what is not finite is left so.

        Args:
            parameters: flat ``(P,)``, where each unit starts; what follows is read and not trained.
            batch: the units.
        """
        ...


@dataclass(frozen=True)
class FederatedUpdate:
    """Sums the units' clipped local training; see `LocalUpdate`.

    The sum is of start - end: a direction to descend along, as a gradient is. A server with plain
    SGD at rate 1 moves by the mean of end - start, as in the paper (lines 16 to 19).

    Args:
        trainer: trains on each unit.
        clip: bounds what it returns.
    """

    trainer: LocalTrainer
    clip: EnsembleClip

    @cached_property
    def _total(self) -> ExactSum:
        return ExactSum(self.dimension, self.clip.clip_norm, like=torch.empty(0))

    @property
    def dimension(self) -> int:
        """Length of a unit's vector."""
        return self.clip.layout.dimension

    def clipped_sum(
        self, parameters: NDArray[np.floating], batch: UnitBatch
    ) -> NDArray[np.float64]:
        """Return the sum over units of their clipped vectors, ``(P,)`` float64.

        Privacy: one vector a unit, L2 norm <= clip norm over all its rows, batches, epochs, members
        and layers, whatever ``projection`` says; null for a unit whose training is not finite. Each
        unit is trained by itself, and its vector rounded to the lattice by itself, so that the sum
        is exact and needs no ``sum_slack``.
        """
        if parameters.ndim != 1 or len(parameters) < self.dimension:
            raise ConfigError(
                f"parameters must be of shape ({self.dimension},), or longer by what no round"
                f" trains, got {parameters.shape}"
            )
        self._total.clear(batch.share)
        for vectors in self.trainer.differences(parameters, batch):
            self.clip.add_clipped(vectors, self._total)
        return self._total.total.numpy()


def row_order(batch: UnitBatch, config: FederatedConfig, *, draws_used: int) -> NDArray[np.int64]:
    """Return in which order each epoch takes a unit's rows, ``(U or 1, E, K)``.

    Args:
        batch: the units; those of their draws that come after the first ``draws_used`` sort their
            rows, one draw an epoch.
        config: says whether rows are shuffled.
        draws_used: draws of a row that belong to its loss.
    """
    row = np.arange(batch.rows.shape[1])
    if not config.shuffle:
        return np.tile(row, (1, config.epochs, 1))
    keys = batch.draws[:, :, draws_used : draws_used + config.epochs]
    own = row < batch.row_counts[:, None]
    return np.argsort(np.where(own[:, :, None], keys, np.inf).transpose(0, 2, 1), kind="stable")
