"""The temporal U-Net that denoises trajectory fragments (PrivORL-j-U)."""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.fragment_inputs import (
    condition_features,
    embedding,
    step_features,
)
from distributed_privrl.models.layers import Waves, linear
from distributed_privrl.models.sizes import KERNEL, STEP_FEATURES, step_parts


class TrajectoryUNet(nn.Module):
    """Predicts the noise in a fragment by convolutions over its steps, coarser level by level.

    A convolution is an ``nn.Linear`` on windows of three steps, so that, as in the transformer,
    only ``nn.Linear`` layers hold trainable parameters, each runs once a forward pass with the
    batch as its first axis, and the layer norms have no parameters. Padded steps are zeros in
    every window, so that a padded fragment acts like a shorter one. A level has half the steps
    (rounded up) and twice the width of the one above.

    With O = 4, A = 2 (S = 13) it has 1,078,925 parameters at width 64 and depth 3.

    Args:
        observation_width: numbers of an encoded observation (O).
        action_width: numbers of an encoded action (A).
        horizon: steps of a fragment (H).
        width: width of the finest level (W).
        depth: number of levels.
        column_frequencies: sines and cosines of each number, beside the number; see `Waves`.
        generator: source of the initial weights.

    Raises:
        ConfigError: a size is not positive.

    Reference: PrivORL, section VIII-B (PrivORL-j-U) and appendix E; Janner et al., "Planning
    with diffusion for flexible behavior synthesis" (2022), the shape of the network.
    """

    def __init__(
        self,
        observation_width: int,
        action_width: int,
        *,
        horizon: int,
        width: int = 64,
        depth: int = 3,
        column_frequencies: int = 0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        for name, value in {"horizon": horizon, "width": width, "depth": depth}.items():
            check_positive(name, value)
        self.step_width = sum(step_parts(observation_width, action_width))
        self.horizon = horizon
        widths = [width * 2**level for level in range(depth)]
        context = 2 * width
        self.time = embedding(STEP_FEATURES, context, context, generator)
        self.waves = Waves(column_frequencies)
        shown = self.waves.width(self.step_width)
        self.condition = embedding(shown + 1, context, context, generator)
        self.input = linear(KERNEL * shown, width, generator)
        self.down = nn.ModuleList(_Residual(w, w, context, generator) for w in widths)
        self.coarsen = nn.ModuleList(
            linear(KERNEL * fine, coarse, generator) for fine, coarse in itertools.pairwise(widths)
        )
        self.up = nn.ModuleList(
            _Residual(fine + coarse, fine, context, generator)
            for fine, coarse in itertools.pairwise(widths)
        )
        self.output = linear(KERNEL * width, self.step_width, generator)

    def forward(
        self, noisy: Tensor, step_condition: Tensor, condition: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the predicted noise ``(N, H, S)``; see `FragmentNetwork`."""
        padded = ~mask.bool().unsqueeze(-1)
        linked = condition_features(condition, self.waves)
        context = F.silu(self.time(step_features(step_condition)) + self.condition(linked))
        real = [(~padded).to(noisy.dtype)]
        shown = self.waves(noisy.masked_fill(padded, 0)) * real[0]
        hidden = self.input(_windows(shown))
        levels = []
        for block, coarsen in itertools.zip_longest(self.down, self.coarsen):
            hidden = block(hidden, context, real[-1])
            if coarsen is not None:
                levels.append(hidden)
                hidden = coarsen(_windows(hidden * real[-1], stride=2))
                real.append(real[-1][:, ::2])
        for level in reversed(range(len(levels))):
            fine = levels[level]
            coarse = hidden.repeat_interleave(2, dim=1)[:, : fine.shape[1]]
            hidden = self.up[level](torch.cat((fine, coarse), dim=-1), context, real[level])
        output: Tensor = self.output(_windows(_activate(hidden, real[0])))
        return output.masked_fill(padded, 0)


class _Residual(nn.Module):
    """Two convolutions beside a skip connection; the context enters between them."""

    def __init__(self, inputs: int, outputs: int, context: int, generator: torch.Generator) -> None:
        super().__init__()
        self.first = linear(KERNEL * inputs, outputs, generator)
        self.context = linear(context, outputs, generator)
        self.second = linear(KERNEL * outputs, outputs, generator)
        self.skip = linear(inputs, outputs, generator) if inputs != outputs else nn.Identity()

    def forward(self, hidden: Tensor, context: Tensor, real: Tensor) -> Tensor:
        """Return ``(N, L, outputs)``; ``real`` ``(N, L, 1)`` is zero where nothing may be seen."""
        inner = self.first(_windows(_activate(hidden, real)))
        inner = inner + self.context(context).unsqueeze(1)
        output: Tensor = self.skip(hidden) + self.second(_windows(_activate(inner, real)))
        return output


def _activate(hidden: Tensor, real: Tensor) -> Tensor:
    return F.silu(F.layer_norm(hidden, hidden.shape[-1:])) * real


def _windows(steps: Tensor, *, stride: int = 1) -> Tensor:
    """Return each step beside its neighbours, ``(N, ceil(L / stride), 3 C)``; zeros outside.

    Args:
        steps: ``(N, L, C)``.
        stride: steps between windows.
    """
    length = steps.shape[1]
    outside = F.pad(steps, (0, 0, 1, 1))
    return torch.cat(
        [outside[:, shift : shift + length : stride] for shift in range(KERNEL)], dim=-1
    )
