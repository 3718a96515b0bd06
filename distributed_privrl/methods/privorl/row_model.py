"""The diffusion model of rows as a run's checks know it: what builds it, and what draws from it.

Reference: PrivORL, algorithm 1.

A run makes both before its budget is held, and is refused there without waiting for torch: what
builds or draws imports it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.methods.privorl.sampling_config import SamplingConfig
from distributed_privrl.methods.privorl.weights import row_weights
from distributed_privrl.models.chunks import chunk_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from distributed_privrl.core.random import Streams
    from distributed_privrl.methods.privorl.update import DiffusionRowLoss
    from distributed_privrl.models.denoiser import ResidualMLPDenoiser


@dataclass(frozen=True, kw_only=True)
class RowSynthesizer:
    """The synthesizer of PrivORL-n: independent transitions; see `update.Synthesizer`.

    Args:
        model: the denoiser's configuration.
        row_width: numbers in a row (D).
    """

    model: DenoiserConfig
    row_width: int

    @property
    def public_parts(self) -> tuple[str, ...]:
        """None: one network makes the whole row."""
        return ()

    @property
    def weights(self) -> int:
        """How many numbers rounds learn."""
        return row_weights(self.model, self.row_width)

    @property
    def row_loss(self) -> DiffusionRowLoss:
        """The EDM loss."""
        from distributed_privrl.methods.privorl.update import DiffusionRowLoss

        return DiffusionRowLoss(self.model.diffusion(), self.row_width)

    def build(self, seed: int) -> ResidualMLPDenoiser:
        """Return a fresh denoiser."""
        from distributed_privrl.methods.privorl.update import build_denoiser

        return build_denoiser(self.model, row_width=self.row_width, seed=seed)

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return cheap samples, as many as ``given`` has rows: there is no condition to take."""
        from distributed_privrl.models.edm import SamplerConfig, sample

        sampler = SamplerConfig(steps=steps, churn=0.0)
        shape = (len(given), self.row_width)
        return sample(network, self.model.diffusion(), sampler, shape, generator=generator)


@dataclass(frozen=True, kw_only=True)
class RowDrawer:
    """Draws independent rows by the stochastic Heun sampler; see `release.ChunkDrawer`.

    Args:
        model: the denoiser's configuration.
        config: the sampler.
        row_width: numbers in a row.
        rows: rows of all chunks together.
    """

    model: DenoiserConfig
    config: SamplingConfig
    row_width: int
    rows: int

    @property
    def count(self) -> int:
        """The number of chunks."""
        return chunk_count(rows=self.rows, chunk_rows=self.config.chunk_rows)

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the rows of chunk ``index``."""
        from distributed_privrl.methods.privorl.release import native_precision
        from distributed_privrl.models.edm import sample_chunks

        return next(
            sample_chunks(
                network,
                self.model.diffusion(),
                self.config.sampler(),
                rows=self.rows,
                row_width=self.row_width,
                streams=streams,
                chunk_rows=self.config.chunk_rows,
                chunks=[index],
                precision=native_precision(self.config.precision, device),
                device=device,
            )
        )
