"""Actions drawn from the distributions that a policy of SAC acts by."""

import torch
from torch import Tensor

from distributed_privrl.agents.edac import LOG_STD_RANGE
from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.agents.squashed_gaussian import squashed_gaussian
from distributed_privrl.core.errors import ConfigError


@torch.no_grad()
def sample_actions(policy: Policy, observations: Tensor, generator: torch.Generator) -> Tensor:
    """Return actions ``(M, A)`` drawn from the distributions that a policy of SAC acts by.

    Args:
        policy: from `SacTrainer.policy`, or loaded: its network holds the deviations as well.
        observations: (M, O), raw.
        generator: source of the draws.

    Raises:
        ConfigError: the network has no deviations.
    """
    scale = ActionScale.of(policy.action_space)
    mean, spread = (
        torch.from_numpy(side) for side in (policy.normalisation.mean, policy.normalisation.spread)
    )
    output = policy.network((observations - mean) / spread)
    if output.shape[1] != 2 * len(scale.low):
        raise ConfigError("policy has no standard deviations to sample by: train it by SAC")
    noise = torch.randn(len(output), len(scale.low), generator=generator)
    unit, _ = squashed_gaussian(output, log_std_range=LOG_STD_RANGE).sample(noise)
    return from_unit(unit, torch.from_numpy(scale.low), torch.from_numpy(scale.high))


def from_unit(unit: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Return raw actions ``(M, A)`` of ``unit`` ones in [-1, 1], inside their bounds (A,)."""
    raw = low + (unit + 1) / 2 * (high - low)
    return torch.minimum(torch.maximum(raw, low), high)
