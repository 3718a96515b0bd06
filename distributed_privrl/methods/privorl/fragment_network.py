"""The synthesizer of PrivORL-j: fragments of trajectories, each conditioned on the step before it.

Reference: PrivORL, section VI-B, equation 6.

A run makes it before its budget is held: what builds or samples networks imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.fragments import FragmentEncoder, FragmentLayout
from distributed_privrl.data.spaces import part_width
from distributed_privrl.methods.privorl.fragment_coding import CodedFragments
from distributed_privrl.methods.privorl.model_config import TransformerConfig, UNetConfig
from distributed_privrl.methods.privorl.weights import fragment_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from distributed_privrl.models.ddpm import DDPM, Bounds, DDPMSampler, LossKind
    from distributed_privrl.models.edm import Precision
    from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer
    from distributed_privrl.models.trajectory_unet import TrajectoryUNet

FARTHEST = 10.0  # standardised; where a column has no bound, samples are cut here


@dataclass(frozen=True, kw_only=True)
class FragmentLoss:
    """The diffusion loss of each fragment; its draws are the noise level and the noise.

    Args:
        ddpm: the diffusion.
        layout: where the parts of a fragment lie in its row.
        kind: distance of the prediction.
    """

    ddpm: DDPM
    layout: FragmentLayout
    kind: LossKind

    @property
    def draw_count(self) -> int:
        """One normal for the noise level, H x S for the noise."""
        return 1 + self.layout.horizon * self.layout.step_width

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, W)`` under draws ``(M, 1 + H S)``."""
        condition, steps, mask = self.layout.split(rows)
        timestep = self.ddpm.training_timestep(draws[:, 0])
        noise = draws[:, 1:].reshape(steps.shape)
        return self.ddpm.loss(module, steps, mask, condition, timestep, noise, kind=self.kind)


@dataclass(frozen=True, kw_only=True)
class FragmentSynthesizer(CodedFragments):
    """Fragments of H steps; see `update.Synthesizer`.

    Args:
        model: the network's configuration.
    """

    model: TransformerConfig | UNetConfig

    @property
    def weights(self) -> int:
        """How many numbers rounds learn."""
        return fragment_weights(self.model, self.fragments.transitions)

    @property
    def row_loss(self) -> FragmentLoss:
        """The diffusion loss."""
        return FragmentLoss(
            ddpm=self.model.ddpm(), layout=self.fragments.layout, kind=self.model.loss
        )

    def build(self, seed: int) -> TrajectoryTransformer | TrajectoryUNet:
        """Return a fresh network.

        Raises:
            ConfigError: the heads do not divide the width.
        """
        from distributed_privrl.methods.privorl.update import initial_weights
        from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer
        from distributed_privrl.models.trajectory_unet import TrajectoryUNet

        model, transitions = self.model, self.fragments.transitions
        widths = part_width(transitions.observation_space), part_width(transitions.action_space)
        sizes = {
            name: getattr(model, name)
            for name in ("horizon", "width", "depth", "column_frequencies")
        }
        generator = initial_weights(seed)
        if isinstance(model, UNetConfig):
            return TrajectoryUNet(*widths, **sizes, generator=generator)
        return TrajectoryTransformer(*widths, **sizes, heads=model.heads, generator=generator)

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return cheap samples after the linking steps of the fragments in ``given``."""
        import torch

        from distributed_privrl.models.ddpm import DDPMSampler

        condition, _, mask = self.fragments.layout.split(given)
        sampler = DDPMSampler(steps=steps, stochasticity=0.0)
        drawn = self.sample(network, condition, sampler, generator=generator)
        return torch.cat((condition, drawn.flatten(1), torch.ones_like(mask)), dim=1)

    def sample(
        self,
        network: nn.Module,
        condition: Tensor,
        sampler: DDPMSampler,
        *,
        generator: torch.Generator,
        precision: Precision = "fp32",
    ) -> Tensor:
        """Return fragments ``(N, H, S)`` that follow ``condition`` ``(N, S)``; see `ddpm.sample`.

        Clean steps are cut to the spaces' bounds, or to ten deviations where there are none.
        """
        from distributed_privrl.models.ddpm import sample

        return sample(
            network,
            self.model.ddpm(),
            sampler,
            condition,
            horizon=self.model.horizon,
            generator=generator,
            bounds=self._bounds(condition),
            precision=precision,
        )

    def _bounds(self, like: Tensor) -> Bounds:
        import torch

        low, high = (torch.from_numpy(edge).to(like) for edge in step_bounds(self.fragments))
        return low, high


def step_bounds(encoder: FragmentEncoder) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and the highest number of each column of a step, ``(S,)``, public facts.

    Columns that the spaces or the coding bound lie between those bounds, others within
    ``FARTHEST``; the end bits are -1 or 1.
    """
    transitions = encoder.transitions
    low, high = (
        (side - transitions.scaling.offset) / transitions.scaling.scale
        for side in transitions.layout.limits
    )
    unbounded = ~(np.isfinite(low) & np.isfinite(high))
    low[unbounded] = np.maximum(low[unbounded], -FARTHEST)
    high[unbounded] = np.minimum(high[unbounded], FARTHEST)
    return np.append(low, -1.0), np.append(high, 1.0)
