"""The denoiser built from its configuration, and its loss as a local update."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from distributed_privrl.core.random import Streams
from distributed_privrl.methods.privorl.config import DenoiserConfig
from distributed_privrl.models.denoiser import ResidualMLPDenoiser
from distributed_privrl.models.edm import EDM
from distributed_privrl.rounds.gradient import GradientLocalUpdate


def build_denoiser(config: DenoiserConfig, *, row_width: int, seed: int) -> ResidualMLPDenoiser:
    """Return a freshly initialised denoiser; the same public seed gives the same weights."""
    generator = torch.Generator().manual_seed(Streams(seed).integer("model"))
    return ResidualMLPDenoiser(
        row_width,
        width=config.width,
        depth=config.depth,
        time_width=config.time_width,
        fourier_features=config.fourier_features,
        activation=config.activation,
        normalise=config.normalise,
        generator=generator,
    )


@dataclass(frozen=True)
class DiffusionRowLoss:
    """The EDM loss of each row; its draws are the noise level and the noise.

    Reference: paper 000, equation 3, in the form of Karras et al. (2022).

    Args:
        diffusion: constants of the loss.
        row_width: numbers in a row (D).
    """

    diffusion: EDM
    row_width: int

    @property
    def draw_count(self) -> int:
        """One normal for the noise level, D for the noise."""
        return 1 + self.row_width

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, D)`` under draws ``(M, 1 + D)``."""
        sigma = self.diffusion.training_sigma(draws[:, 0])
        return self.diffusion.loss(module, rows, sigma, draws[:, 1:])


@dataclass(frozen=True, kw_only=True)
class DiffusionUpdate:
    """Builds the local update of PrivORL-n in a worker's process.

    Args:
        model: the denoiser's configuration.
        row_width: numbers in a row (D).
        seed: the run's public seed.
        clip_norm: L2 bound of a unit's vector; None without privacy.
        micro_batch_rows: rows computed at once.
        device: where gradients are computed.
    """

    model: DenoiserConfig
    row_width: int
    seed: int
    clip_norm: float | None
    micro_batch_rows: int
    device: str = "cpu"

    @property
    def draw_count(self) -> int:
        """Normals that a row's loss needs."""
        return 1 + self.row_width

    def __call__(self) -> GradientLocalUpdate:
        """Return the local update."""
        network = build_denoiser(self.model, row_width=self.row_width, seed=self.seed)
        return GradientLocalUpdate(
            module=network.to(self.device),
            row_loss=DiffusionRowLoss(self.model.diffusion(), self.row_width),
            clip_norm=self.clip_norm,
            micro_batch_rows=self.micro_batch_rows,
        )
