"""One clipped vector of integers a unit, the noise of their sums, and what noisy sums say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease, integer_laplace_release
from distributed_privrl.privacy.units import Relation

if TYPE_CHECKING:
    from distributed_privrl.evaluation.off_policy.estimators import Floats
    from distributed_privrl.evaluation.off_policy.released import UnitFigures

STEPS = 2**20
"""Integers of a clipped number: it lies in -1 to 1 before."""
NUMBERS = 4
"""Of a unit: value, return, square of the value, square of their difference."""
UNIT_L1 = 3 * STEPS
"""By how much a unit that comes or goes moves the sums at most: squares have half the steps."""
MARGIN = 0.5
"""An estimate may lie beyond the bounds of returns by this share of their width."""


def clip_range(returns: tuple[float, float]) -> tuple[float, float]:
    """Return centre and half-width of the interval that a unit's numbers are clipped to.

    Doubly robust estimates of single episodes leave the range of returns; cut off at its bounds,
    their mean would be too low where most returns are high.

    Example:
        >>> clip_range((0.0, 10.0))
        (5.0, 10.0)
    """
    low, high = returns
    return (low + high) / 2, (0.5 + MARGIN) * (high - low)


def unit_integers(figures: UnitFigures, returns: tuple[float, float]) -> NDArray[np.int64]:
    """Return the integers of a unit (4,).

    Args:
        figures: of the unit.
        returns: public bounds of a return.

    Privacy: they are at most `UNIT_L1` in L1, whatever the figures are: value and return are
        clipped to [-1, 1] and have `STEPS` steps; the squares, moved to [-1, 1], have half of them.
    """
    centre, half = clip_range(returns)
    value, earned = np.clip(np.nan_to_num((np.array(figures) - centre) / half), -1.0, 1.0)
    squares = 2 * value**2 - 1, 2 * ((value - earned) / 2) ** 2 - 1
    scaled = [STEPS * value, STEPS * earned, *(STEPS / 2 * square for square in squares)]
    found: NDArray[np.int64] = np.rint(scaled).astype(np.int64)
    return found


def release_of_sums(epsilon: float, relation: Relation) -> DiscreteLaplaceRelease:
    """Return what draws the noise of the four sums.

    Privacy: one unit moves them by `UNIT_L1` at most, by twice as much where it becomes another
        one. Event ``discrete_laplace``.
    """
    return integer_laplace_release(epsilon=epsilon, sensitivity=UNIT_L1 * relation.contributions)


@dataclass(frozen=True, kw_only=True)
class Value:
    """What the sums say.

    Args:
        policy: mean of what the policy would earn.
        acted: mean of what who acted earned.
        policy_error: standard error of the first, of noise and of chance.
        gain_error: the same of their difference.
        noise_error: standard deviation of the noise of either mean alone.
    """

    policy: float
    acted: float
    policy_error: float
    gain_error: float
    noise_error: float


def value_of(sums: Floats, *, units: int, returns: tuple[float, float], deviation: float) -> Value:
    """Return what noisy sums say; post-processing.

    Args:
        sums: (4,), with noise.
        units: how many there are.
        returns: public bounds of a return.
        deviation: standard deviation of the noise of a sum; 0: there is none.
    """
    centre, half = clip_range(returns)
    value, earned, square, square_of_difference = sums / (units * STEPS)
    noise = deviation / (units * STEPS)
    # Squares were 2 x^2 - 1 in half the steps. Their noise may make a variance too small: a
    # deviation of it is added.
    variance = max(square + 0.5 - value**2, 0.0) + noise
    variance_of_half = max(square_of_difference + 0.5 - ((value - earned) / 2) ** 2, 0.0) + noise
    return Value(
        policy=float(centre + half * value),
        acted=float(centre + half * earned),
        policy_error=half * float(np.sqrt(variance / units + noise**2)),
        gain_error=half * float(np.sqrt(4 * variance_of_half / units + 2 * noise**2)),
        noise_error=half * noise,
    )
