"""A toy model for private rounds: a small network and a regression loss, rows never meet."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.updates.gradient import GradientLocalUpdate, PerUnitGradients
from distributed_privrl.updates.local_update import UnitBatch


class ToyNetwork(nn.Module):
    """Two linear layers with a residual connection; one has no bias."""

    def __init__(self, width: int = 5, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Linear(width, 8, dtype=dtype)
        self.second = nn.Linear(8, 8, bias=False, dtype=dtype)
        self.last = nn.Linear(8, width, dtype=dtype)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) / 3)

    def forward(self, rows: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(rows))
        return self.last(hidden + torch.tanh(self.second(hidden)))


@dataclass(frozen=True)
class ToyLoss:
    """Denoising: reconstruct the row from the row plus the draws."""

    draw_count: int = 5

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        return (module(rows + 0.3 * draws) - rows).square().sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class ToyUpdate:
    """Factory of the toy's local update."""

    clip_norm: float | None = 1.0
    micro_batch_rows: int = 128
    per_unit_gradients: PerUnitGradients = "auto"
    dtype: torch.dtype = torch.float64
    draw_count: int = 5

    def __call__(self) -> GradientLocalUpdate:
        return GradientLocalUpdate(
            module=ToyNetwork(dtype=self.dtype),
            row_loss=ToyLoss(),
            clip_norm=self.clip_norm,
            micro_batch_rows=self.micro_batch_rows,
            per_unit_gradients=self.per_unit_gradients,
        )


def initial_parameters(dtype: torch.dtype = torch.float64) -> NDArray[np.floating]:
    network = ToyNetwork(dtype=dtype)
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def batch(units: int, copies: int = 1, *, seed: int = 0, scale: float = 1.0) -> UnitBatch:
    generator = np.random.default_rng(seed)
    return UnitBatch(
        rows=(scale * generator.normal(size=(units, copies, 5))).astype(np.float32),
        valid=np.ones((units, copies), bool),
        draws=generator.normal(size=(units, copies, 5)),
    )
