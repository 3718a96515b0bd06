"""A lower bound on epsilon from one release over many canaries: guesses of who took part.

Reference: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023), theorem
5.2.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from distributed_privrl.core.checks import check_probability
from distributed_privrl.core.errors import ConfigError

_LARGEST = 100.0


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of which canaries took part, each by a fair coin of its own.

    Args:
        canaries: how many there were.
        made: of how many of them it was guessed.
        right: guesses that were.
    """

    canaries: int
    made: int
    right: int


def guessed(scores: NDArray[np.float64], inside: NDArray[np.bool_], *, made: int) -> Guesses:
    """Guess that canaries of the highest scores took part and those of the lowest did not.

    Args:
        scores: (N,) what speaks for each canary in the release.
        inside: (N,) whether it took part.
        made: how many to guess, half of them high; chosen before the scores are seen.

    Raises:
        ConfigError: fewer canaries than guesses.

    Example:
        >>> guessed(np.array([3.0, 2.0, -1.0]), np.array([True, False, False]), made=2).right
        2
    """
    if not 2 <= made <= len(scores):
        raise ConfigError(f"made must lie in [2, {len(scores)}], got {made}")
    order, half = np.argsort(scores, kind="stable"), made // 2
    right = int((~inside[order[:half]]).sum() + inside[order[-half:]].sum())
    return Guesses(canaries=len(scores), made=2 * half, right=right)


def epsilon_at_least(guesses: Guesses, *, delta: float, confidence: float) -> float:
    """Return an epsilon that the mechanism's own is not below, at that delta.

    Args:
        guesses: over one run.
        delta: of the guarantee that is held against it.
        confidence: with which the bound holds; a right mechanism is above its own epsilon with
            what is left of 1.

    Privacy: a statement about canaries, which are nobody's; relation: one that took part or did
    not.

    Example:
        >>> perfect = Guesses(canaries=1000, made=100, right=100)
        >>> round(epsilon_at_least(perfect, delta=0.0, confidence=0.95), 2)  # .05 ** (1 / 100)
        3.49
    """
    check_probability("confidence", confidence)
    level = 1 - confidence

    def excess(epsilon: float) -> float:
        return _likely(guesses, epsilon, delta) - level

    if excess(0.0) > 0:
        return 0.0
    if excess(_LARGEST) <= 0:
        return _LARGEST
    return float(optimize.brentq(excess, 0.0, _LARGEST, xtol=1e-6))


def _likely(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Return a bound on the probability of as many right guesses under (epsilon, delta)."""
    share = 1 / (1 + math.exp(-epsilon))
    beta = float(stats.binom.sf(guesses.right - 1, guesses.made, share))
    steps = np.arange(1, guesses.right + 1)
    below = np.cumsum(stats.binom.pmf(guesses.right - steps, guesses.made, share))
    alpha = float((below / steps).max(initial=0.0))
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)
