"""A small transformer of fragments: linear layers on rows of tokens, and one on rows alone."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.updates.book_keeping import SAFETY
from distributed_privrl.updates.gradient import GradientLocalUpdate, PerUnitGradients
from distributed_privrl.updates.local_update import UnitBatch

TOKENS, FEATURES = 6, 3
WIDTH = TOKENS * FEATURES


class TokenNetwork(nn.Module):
    """One attention block whose sums share gradients, and a token for a number of each row."""

    def __init__(self, width: int = 8, *, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.time = nn.Linear(1, width, dtype=dtype)
        self.embed = nn.Linear(FEATURES, width, dtype=dtype)
        self.attend = nn.Linear(width, 3 * width, bias=False, dtype=dtype)
        self.mix = nn.Linear(width, width, dtype=dtype)
        self.last = nn.Linear(width, FEATURES, dtype=dtype)
        for parameter in self.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) / 3)

    def forward(self, tokens: Tensor) -> Tensor:
        time = self.time(tokens.mean(dim=(1, 2))[:, None])
        hidden = torch.tanh(torch.cat((time[:, None], self.embed(tokens)), dim=1))
        query, key, value = self.attend(hidden).chunk(3, dim=-1)
        hidden = hidden + self.mix(F.scaled_dot_product_attention(query, key, value))
        return self.last(F.layer_norm(hidden, hidden.shape[-1:]))[:, 1:]


@dataclass(frozen=True)
class TokenLoss:
    """Denoising: reconstruct a fragment's tokens from them plus the draws."""

    draw_count: int = WIDTH

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        tokens = rows.view(-1, TOKENS, FEATURES)
        noisy = tokens + 0.3 * draws.view(-1, TOKENS, FEATURES)
        return (module(noisy) - tokens).square().sum(dim=(1, 2))


@dataclass(frozen=True, kw_only=True)
class TokenUpdate:
    """Factory of the local update."""

    clip_norm: float | None = 1.0
    micro_batch_rows: int = 16
    per_unit_gradients: PerUnitGradients = "auto"
    dtype: torch.dtype = torch.float64
    width: int = 8
    draw_count: int = WIDTH

    def __call__(self) -> GradientLocalUpdate:
        return GradientLocalUpdate(
            module=TokenNetwork(self.width, dtype=self.dtype),
            row_loss=TokenLoss(),
            clip_norm=self.clip_norm,
            micro_batch_rows=self.micro_batch_rows,
            per_unit_gradients=self.per_unit_gradients,
        )


def token_parameters(dtype: torch.dtype = torch.float64, width: int = 8) -> NDArray[np.floating]:
    network = TokenNetwork(width, dtype=dtype)
    return torch.cat([p.detach().reshape(-1) for p in network.parameters()]).numpy()


def fragments(
    counts: tuple[int, ...] = (1, 3, 2, 5), *, seed: int = 0, scale: float = 1.0
) -> UnitBatch:
    """Return units of different numbers of fragments; what pads them would be seen."""
    generator = np.random.default_rng(seed)
    shape = (len(counts), max(counts))
    return UnitBatch(
        rows=(scale * generator.normal(size=(*shape, WIDTH))).astype(np.float32),
        valid=np.ones(shape, bool),
        draws=generator.normal(size=(*shape, WIDTH)),
        counts=np.array(counts, np.int64),
    )


def unit_vectors(parameters: NDArray[np.floating], batch: UnitBatch) -> NDArray[np.float64]:
    """Return each unit's mean gradient ``(U, P)`` by plain autograd, fragment after fragment."""
    network = TokenNetwork()
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(parameters.copy()), network.parameters()
        )
    vectors = np.zeros((len(batch), len(parameters)))
    for unit, count in enumerate(batch.row_counts):
        for k in range(count):
            rows = torch.from_numpy(batch.rows[unit, k : k + 1]).double()
            draws = torch.from_numpy(batch.draws[unit, k : k + 1])
            loss = TokenLoss()(network, rows, draws) * float(batch.valid[unit, k])
            gradients = torch.autograd.grad(loss.sum(), list(network.parameters()))
            vectors[unit] += torch.cat([g.reshape(-1) for g in gradients]).numpy() / count
    return vectors


def clipped(vectors: NDArray[np.float64], clip_norm: float) -> NDArray[np.float64]:
    """Return the sum of ``vectors``, each clipped to the package's hair below the norm."""
    norms = np.linalg.norm(vectors, axis=1)
    return (vectors * np.minimum(1, clip_norm * SAFETY / norms)[:, None]).sum(axis=0)
