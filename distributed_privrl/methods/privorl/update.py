"""What is trained and sampled: the denoiser of rows, its loss, and the loss as a local update."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from distributed_privrl.core.random import Streams
from distributed_privrl.methods.privorl.model_config import DenoiserConfig
from distributed_privrl.models.autoregressive import AutoregressiveNetwork
from distributed_privrl.models.denoiser import ResidualMLPDenoiser
from distributed_privrl.models.edm import EDM
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import RowLoss
from distributed_privrl.updates.parameters import FlatParameters


class Synthesizer(Protocol):
    """A diffusion model of rows; picklable, knows public facts alone."""

    @property
    def row_width(self) -> int:
        """Numbers in a row (D)."""
        ...

    @property
    def row_loss(self) -> RowLoss:
        """The diffusion loss of each row."""
        ...

    @property
    def public_parts(self) -> tuple[str, ...]:
        """Parts of a row whose networks public data alone teach; see `private_network`."""
        ...

    @property
    def weights(self) -> int:
        """How many numbers private rounds learn."""
        ...

    def build(self, seed: int) -> nn.Module:
        """Return a freshly initialised network; the same public seed gives the same weights."""
        ...

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return cheap samples ``(N, D)``, one for each row of ``given`` ``(N, D)``.

        Args:
            network: as built.
            given: rows whose condition the samples take, if the model has one.
            steps: of the cheap sampler.
            generator: public, on the network's device.
        """
        ...


def fix_public_parts(synthesizer: Synthesizer, network: nn.Module) -> nn.Module:
    """Take networks that public data alone teach out of training, in place; return ``network``."""
    if synthesizer.public_parts:
        assert isinstance(network, AutoregressiveNetwork)
        network.fix(synthesizer.public_parts)
    return network


def private_network(
    synthesizer: Synthesizer, seed: int, *, pretrained: Path, run_id: str
) -> nn.Module:
    """Return the network whose trainable numbers are those of the private rounds.

    Args:
        synthesizer: builds it.
        seed: the run's public seed.
        pretrained: checkpoint of the public pre-training, which is read where parts of a row stay
            what it made them.
        run_id: of the run.

    Raises:
        StorageError: the checkpoint cannot be read.
        UnsafeError: it is of another run.

    Privacy: public, or post-processing of bounds that were paid for, in whose coding it learned.
    """
    network = synthesizer.build(seed)
    if synthesizer.public_parts:
        tensors, _ = load_checkpoint(pretrained, run_id=run_id, stage="pretraining")
        FlatParameters(network).load(tensors["parameters"])
    return fix_public_parts(synthesizer, network)


def initial_weights(seed: int) -> torch.Generator:
    """Return the source of a network's initial weights."""
    return torch.Generator().manual_seed(Streams(seed).integer("model"))


def build_denoiser(config: DenoiserConfig, *, row_width: int, seed: int) -> ResidualMLPDenoiser:
    """Return a freshly initialised denoiser; the same public seed gives the same weights."""
    return ResidualMLPDenoiser(
        row_width,
        width=config.width,
        depth=config.depth,
        time_width=config.time_width,
        fourier_features=config.fourier_features,
        column_frequencies=config.column_frequencies,
        activation=config.activation,
        normalise=config.normalise,
        generator=initial_weights(seed),
    )


@dataclass(frozen=True)
class DiffusionRowLoss:
    """The EDM loss of each row; its draws are the noise level and the noise.

    Reference: PrivORL, equation 3, in the form of Karras et al. (2022).

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
    """Builds the local update in a worker's process.

    Args:
        synthesizer: builds the network and its loss.
        seed: the run's public seed.
        clip_norm: L2 bound of a unit's vector; None without privacy.
        micro_batch_rows: rows computed at once.
        device: where gradients are computed.
    """

    synthesizer: Synthesizer
    seed: int
    clip_norm: float | None
    micro_batch_rows: int
    device: str = "cpu"

    @property
    def draw_count(self) -> int:
        """Normals that a row's loss needs."""
        return self.synthesizer.row_loss.draw_count

    def __call__(self) -> GradientLocalUpdate:
        """Return the local update."""
        return GradientLocalUpdate(
            module=fix_public_parts(
                self.synthesizer, self.synthesizer.build(self.seed).to(self.device)
            ),
            row_loss=self.synthesizer.row_loss,
            clip_norm=self.clip_norm,
            micro_batch_rows=self.micro_batch_rows,
        )
