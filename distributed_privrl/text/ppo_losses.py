"""The equations of proximal policy optimisation on tokens, each a pure function.

B completions of C tokens; ``mask`` (B, C) is 1 where a token counts, and each completion's tokens
are its first ones.

References: Schulman et al., "Proximal policy optimization algorithms" (2017); "High-dimensional
continuous control using generalized advantage estimation" (2016); Ziegler et al., "Fine-tuning
language models from human preferences" (2019), section 2.2.
"""

import math

import torch
from torch import Tensor


def token_rewards(
    scores: Tensor, log_policy: Tensor, log_reference: Tensor, mask: Tensor, *, kl_weight: float
) -> Tensor:
    """Return the reward of each token (B, C): the score at the last, less what it strays.

    Args:
        scores: (B,).
        log_policy: (B, C) log-probabilities of the tokens under the policy that drew them.
        log_reference: (B, C) under the model before training.
        mask: (B, C).
        kl_weight: price of a nat.

    Reference: Ziegler et al., equation 2.
    """
    rewards = -kl_weight * (log_policy - log_reference) * mask
    last = mask.long().sum(1, keepdim=True) - 1
    return rewards.scatter_add(1, last.clamp(min=0), scores[:, None].to(rewards.dtype))


def mixed_scores(scores: Tensor, likelihoods: Tensor, *, weight: float) -> Tensor:
    """Return scores (B,) that count the likelihood of a text, too; their mean and unit stay.

    Args:
        scores: (B,).
        likelihoods: (B,) mean log-probability of a text's tokens under a public model.
        weight: standard deviations of the scores for one of the likelihoods.
    """
    every = torch.ones_like(scores)
    return scores + weight * _spread(scores, every) * whitened(likelihoods, every)


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, discount: float, trace_decay: float
) -> Tensor:
    """Return the advantage of each token (B, C), zero where the mask is.

    Args:
        rewards: (B, C).
        values: (B, C) before each token.
        mask: (B, C).
        discount: gamma.
        trace_decay: lambda.

    Reference: Schulman et al. (2016), equation 16.
    """
    advantages = torch.zeros_like(values)
    following = torch.zeros_like(values[:, 0])
    running = torch.zeros_like(values[:, 0])
    for place in reversed(range(values.shape[1])):
        counts = mask[:, place].to(values.dtype)
        error = rewards[:, place] + discount * following - values[:, place]
        running = (error + discount * trace_decay * running) * counts
        advantages[:, place] = running
        following = values[:, place] * counts
    return advantages


def whitened(numbers: Tensor, mask: Tensor) -> Tensor:
    """Return numbers with mean zero and variance one over the mask (B, C)."""
    mean = masked_mean(numbers, mask)
    return (numbers - mean) / (_spread(numbers, mask) + 1e-8) * mask


def clipped_policy_loss(
    log_new: Tensor, log_old: Tensor, advantages: Tensor, mask: Tensor, *, clip_range: float
) -> Tensor:
    """Return the clipped surrogate, to be made small.

    Args:
        log_new: (B, C) log-probabilities of the tokens now.
        log_old: (B, C) when they were drawn.
        advantages: (B, C).
        mask: (B, C).
        clip_range: epsilon of the paper: by how much a ratio may pay.

    Reference: Schulman et al. (2017), equation 7.
    """
    ratio = (log_new - log_old).exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return -masked_mean(torch.minimum(ratio * advantages, clipped * advantages), mask)


def clipped_value_loss(
    new: Tensor, old: Tensor, returns: Tensor, mask: Tensor, *, clip_range: float
) -> Tensor:
    """Return half the squared error of values that may move by ``clip_range`` for free.

    Args:
        new: (B, C) values now.
        old: (B, C) values when the tokens were drawn.
        returns: (B, C).
        mask: (B, C).
        clip_range: of a value.
    """
    near = old + (new - old).clamp(-clip_range, clip_range)
    return 0.5 * masked_mean(torch.maximum((new - returns) ** 2, (near - returns) ** 2), mask)


def divergence(log_policy: Tensor, log_reference: Tensor, mask: Tensor) -> Tensor:
    """Return an estimate of KL(policy, reference) a token, in nats; it is never negative.

    The tokens must be draws of the policy: ``E[q / p - 1 - log(q / p)] = KL(p, q)``.
    """
    ratio = log_reference - log_policy
    return masked_mean(ratio.exp() - 1 - ratio, mask)


def next_kl_weight(weight: float, *, kl: float, target: float, gain: float, least: float) -> float:
    """Return the price of a nat after a step whose divergence was ``kl``.

    Args:
        weight: so far.
        kl: measured, in nats a token.
        target: that it should have.
        gain: how fast the price follows; it changes by a fifth of this share at most.
        least: below which the price does not fall. Without it the price falls to nothing while the
            policy is still near, and is too low when it has gone far.

    Reference: Ziegler et al., section 2.2; the floor is ours.

    Example:
        >>> next_kl_weight(1.0, kl=0.2, target=0.1, gain=1.0, least=0.5)
        1.2
    """
    error = kl / target - 1 if math.isfinite(kl) else math.inf
    return max(least, weight * (1 + gain * min(0.2, max(-0.2, error))))


def masked_mean(numbers: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the numbers whose mask is 1."""
    return (numbers * mask).sum() / mask.sum().clamp(min=1)


def _spread(numbers: Tensor, mask: Tensor) -> Tensor:
    """Return the standard deviation of the numbers whose mask is 1."""
    return masked_mean((numbers - masked_mean(numbers, mask)) ** 2, mask).sqrt()
