"""A Gaussian through a hyperbolic tangent, and the temperature that holds its entropy.

Reference: Haarnoja et al., "Soft actor-critic algorithms and applications" (2018), appendix C and
section 5.
"""

import math
from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import softplus


class SquashedGaussian(NamedTuple):
    """Distributions over actions in (-1, 1)."""

    mean: Tensor
    """(N, A), before the hyperbolic tangent."""
    log_std: Tensor
    """(N, A)."""

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions and their log-probabilities.

        Args:
            noise: (N, A) or (N, K, A), standard normal.

        Returns:
            actions of the shape of ``noise``, log-probabilities ``(N,)`` or ``(N, K)``.
        """
        mean, log_std = self.mean, self.log_std
        if noise.dim() > mean.dim():
            mean, log_std = mean.unsqueeze(1), log_std.unsqueeze(1)
        unbounded = mean + log_std.exp() * noise
        normal = -0.5 * (noise.square() + math.log(2 * math.pi)) - log_std
        slope = 2 * (math.log(2) - unbounded - softplus(-2 * unbounded))
        return unbounded.tanh(), (normal - slope).sum(dim=-1)

    def detach(self) -> "SquashedGaussian":
        """Return the same distributions without gradients."""
        return SquashedGaussian(self.mean.detach(), self.log_std.detach())


def squashed_gaussian(
    output: Tensor, *, log_std_range: tuple[float, float], log_std_offset: float = 0.0
) -> SquashedGaussian:
    """Return the distributions that an actor's output ``(N, 2 A)`` means.

    Args:
        output: means, then logarithms of standard deviations.
        log_std_range: their lowest and highest value.
        log_std_offset: added to them first.
    """
    mean, log_std = output.chunk(2, dim=-1)
    return SquashedGaussian(mean, (log_std + log_std_offset).clamp(*log_std_range))


def temperature_loss(
    log_temperature: Tensor, log_probability: Tensor, target_entropy: float
) -> Tensor:
    """Return what raises the temperature while the entropy is below its target, ``(N,)``.

    Args:
        log_temperature: ().
        log_probability: (N,), of the actor's own actions.
        target_entropy: held on average; -A by default.

    Reference: Haarnoja et al., equation 18, on the logarithm as its authors' code has it.
    """
    return -log_temperature * (log_probability.detach() + target_entropy)
