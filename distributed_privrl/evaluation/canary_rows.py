"""Canaries as workers see them: rows of known gradients, and the update they go through."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.shards import EncodedShard
from distributed_privrl.data.trajectories import offsets_of
from distributed_privrl.updates.gradient import GradientLocalUpdate

WORKERS, FAN_IN = 3, 2
"""More than answer the server themselves: sums of sums are measured, too."""
BLOCKS = 4


@dataclass(frozen=True, kw_only=True)
class CanaryShard:
    """All canaries: canary i is 1 + i mod ``most`` times the row (i, gradient's size)."""

    canaries: int
    size: float
    most: int = 1

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        """Make those that ``keep`` chooses."""
        ids = np.arange(self.canaries, dtype=np.uint64)
        ids = ids if keep is None else ids[keep(ids)]
        rows = np.stack([ids.astype(np.float32), np.full(len(ids), self.size, np.float32)], axis=1)
        counts = 1 + ids.astype(np.int64) % self.most
        return EncodedShard(
            rows=np.repeat(rows, counts, axis=0),
            valid=np.ones(counts.sum(), dtype=bool),
            unit_ids=ids,
            offsets=offsets_of(counts),
        )


@dataclass(frozen=True)
class CanaryLoss:
    """The gradient of row (i, s) is s times the i-th unit vector."""

    dimension: int

    @property
    def draw_count(self) -> int:
        """Nothing is random."""
        return 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return ``s w_i`` of each row ``(M, 2)``, where w are the module's weights."""
        chosen = rows.new_zeros(len(rows), self.dimension)
        chosen.scatter_(1, rows[:, :1].long(), 1.0)
        return torch.as_tensor(rows[:, 1] * module(chosen)[:, 0])


@dataclass(frozen=True, kw_only=True)
class CanaryUpdate:
    """Builds the canaries' local update: the one that gradients of every method go through.

    Changes by local training, in place of gradients, are clipped elsewhere: no canary shows that.
    """

    canaries: int
    clip_norm: float

    @property
    def draw_count(self) -> int:
        """Nothing is random."""
        return 0

    def __call__(self) -> GradientLocalUpdate:
        """Return the local update."""
        module = nn.Linear(self.canaries, 1, bias=False, device="meta").to_empty(device="cpu")
        nn.init.zeros_(module.weight)
        return GradientLocalUpdate(
            module=module, row_loss=CanaryLoss(self.canaries), clip_norm=self.clip_norm
        )
