"""An ensemble of Gaussian models of what an action does: state difference and reward.

Reference: PriMORL, section 4.2; Chua et al. 2018 (PETS), arXiv:1805.12114.
"""

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from distributed_privrl.core.errors import ConfigError

LOG_VARIANCE_RANGE = (-10.0, 1.0)


class DynamicsEnsemble(nn.Module):
    """N networks from (observation, action) to a Gaussian, their parameters stacked.

    Parameters are ``weight_0`` ``(N, I, H)``, ``bias_0`` ``(N, H)``, ``weight_1`` ... in this
    order, initialised as torch's linear layers are.

    Args:
        inputs: I, numbers that describe a state and an action.
        targets: T, numbers that are predicted.
        members: N.
        hidden: widths of the hidden layers, each followed by SiLU; at least one.
        log_variance_range: public bounds of the log-variance, approached softly.
        generator: source of the initial parameters.

    Raises:
        ConfigError: a size below 1, no hidden layer, or an empty range.

    Example:
        >>> ensemble = DynamicsEnsemble(
        ...     4, 3, members=2, hidden=(8,), generator=torch.Generator().manual_seed(0)
        ... )
        >>> [tuple(values.shape) for values in ensemble(torch.zeros(5, 4))]
        [(2, 5, 3), (2, 5, 3)]
    """

    def __init__(
        self,
        inputs: int,
        targets: int,
        *,
        members: int,
        hidden: tuple[int, ...],
        log_variance_range: tuple[float, float] = LOG_VARIANCE_RANGE,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        low, high = log_variance_range
        if not (low < high and math.isfinite(low) and math.isfinite(high)):
            raise ConfigError(f"log_variance_range must be two rising numbers, got {(low, high)}")
        sizes = {"inputs": inputs, "targets": targets, "members": members, "layers": len(hidden)}
        for name, size in (*sizes.items(), *((f"hidden={hidden}", width) for width in hidden)):
            if size < 1:
                raise ConfigError(f"{name} must be at least 1, got {size}")
        self.members = members
        self.targets = targets
        self.log_variance_range = (float(low), float(high))
        self.widths = (inputs, *hidden, 2 * targets)
        for layer, (width, outputs) in enumerate(itertools.pairwise(self.widths)):
            bound = width**-0.5
            for name, shape in (
                (f"weight_{layer}", (members, width, outputs)),
                (f"bias_{layer}", (members, outputs)),
            ):
                values = torch.empty(shape).uniform_(-bound, bound, generator=generator)
                self.register_parameter(name, nn.Parameter(values))

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Weight ``(N, in, out)`` and bias ``(N, out)`` of each layer."""
        return [
            (getattr(self, f"weight_{layer}"), getattr(self, f"bias_{layer}"))
            for layer in range(len(self.widths) - 1)
        ]

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of each member, both ``(N, M, T)``.

        Args:
            inputs: ``(M, I)``, the same for all members, or ``(N, M, I)``.
        """
        values = inputs.expand(self.members, *inputs.shape) if inputs.dim() == 2 else inputs
        layers = self.layers
        for weight, bias in layers[:-1]:
            values = functional.silu(torch.baddbmm(bias[:, None], values, weight))
        weight, bias = layers[-1]
        mean, raw = torch.baddbmm(bias[:, None], values, weight).chunk(2, dim=-1)
        return mean, soft_bounds(raw, *self.log_variance_range)


def soft_bounds(values: Tensor, low: float, high: float) -> Tensor:
    """Return log(e^low + 1 / (e^-high + e^-value)) of each value: near it between the bounds."""
    below = high - functional.softplus(high - values)
    return low + functional.softplus(below - low)


def gaussian_nll(mean: Tensor, log_variance: Tensor, targets: Tensor) -> Tensor:
    """Return each row's negative log-likelihood, summed over targets, without its constant.

    Args:
        mean: ``(N, M, T)``.
        log_variance: ``(N, M, T)``.
        targets: ``(M, T)`` or ``(N, M, T)``.

    Returns:
        ``(N, M)``: half the sum of log-variance and squared error / variance.
    """
    squares = (mean - targets).square() * torch.exp(-log_variance)
    return 0.5 * (log_variance + squares).sum(dim=-1)
