"""What draws of stable prefixes cost and risk: figures for `sparse_vector`."""

import math
from collections.abc import Callable
from typing import Literal

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.accounting import epsilon as epsilon_of
from distributed_privrl.privacy.events import PureDpEvent
from distributed_privrl.privacy.laplace_tails import wrong_answer
from distributed_privrl.privacy.units import Relation

Variant = Literal["tight", "paper"]
OVERFLOW_SHARE = 0.01
"""Part of delta that draws which run short may use up."""
FAILURE_SHARE = 0.3
"""Part of delta for wrong answers, in ``tight``; the threshold moves by 1 % from .2 to .5."""
_STEP_DOWN = 1e-9


def constants(
    variant: Variant,
    epsilon: float,
    delta: float,
    *,
    draws: int,
    max_length: int,
    probability: float,
) -> tuple[tuple[float, float, float], float, float]:
    """Return the costs of draw, threshold and queries, the margin and the failure of a query.

    Args:
        variant: ``tight``: the lowest threshold; ``paper``: as printed.
        epsilon: of all draws.
        delta: likewise.
        draws: T.
        max_length: L.
        probability: p_min.

    Raises:
        ConfigError: no such variant.

    Reference: Expert-level DP, algorithm 2, lines 2 and 3.
    """
    if variant == "paper":
        part = epsilon / math.sqrt(32 * draws * math.log(2 / delta))  # epsilon' of line 2
        failure = min(delta / (2 * draws * max_length), _largest_failure(2 * part, part))
        return (part, part / 2, part / 2), 4 / part * math.log(1 / failure), failure
    if variant != "tight":
        raise ConfigError(f"variant must be tight or paper, got {variant!r}")
    left = delta * (1 - FAILURE_SHARE - OVERFLOW_SHARE)
    failure = FAILURE_SHARE * delta / draws
    cost = draw_epsilon(epsilon, left, draws)

    def threshold(noise: float) -> float:
        least = -1 / math.expm1(2 * noise - cost)
        return least / probability + margin_of(failure, 1 / noise, 1 / noise)

    from scipy.optimize import minimize_scalar

    best = minimize_scalar(
        threshold,
        bounds=(0.01 * cost, 0.49 * cost),
        method="bounded",
        options={"xatol": 1e-6 * cost},
    )
    noise = float(best.x)
    failure = min(failure, _largest_failure(cost, 2 * noise))
    return (cost - 2 * noise, noise, noise), margin_of(failure, 1 / noise, 1 / noise), failure


def _largest_failure(cost: float, queries: float) -> float:
    """Return what step 4 of `sparse_vector`'s proof allows; less than delta's at large costs."""
    return math.exp(-queries) * -math.expm1(-cost) * (1 - 10 * _STEP_DOWN)


def margin_of(failure: float, threshold_scale: float, query_scale: float) -> float:
    """Return the least margin whose `wrong_answer` is at most ``failure``, below 1/2."""
    unit = max(threshold_scale, query_scale)

    def excess(units: float) -> float:
        found = wrong_answer(units * unit, threshold_scale, query_scale)
        return math.log(found) - math.log(failure)

    from scipy.optimize import brentq

    highest = 2.0 - 2 * math.log(failure)
    return unit * (float(brentq(excess, 0.0, highest, xtol=1e-12)) + _STEP_DOWN)


def draw_epsilon(epsilon: float, delta: float, draws: int) -> float:
    """Return the largest cost of a pure mechanism of which ``draws`` keep (epsilon, delta).

    Raises:
        ConfigError: a value is out of range.
    """
    check_positive("draws", draws)

    def cost(each: float) -> float:
        events = (PureDpEvent(epsilon=each, count=draws),)
        return epsilon_of(events, delta=delta, relation=Relation.POLICY_LEVEL)

    return _largest(cost, check_positive("epsilon", epsilon), least=epsilon / draws)


def _largest(cost: Callable[[float], float], budget: float, *, least: float) -> float:
    """Return the largest argument up to ``budget`` whose cost is within it; ``least``'s is."""
    if cost(budget) <= budget:
        return budget
    from scipy.optimize import brentq

    found = float(brentq(lambda value: cost(value) - budget, least * (1 - _STEP_DOWN), budget))
    while cost(found) > budget:
        found *= 1 - _STEP_DOWN
    return found


def overflow_cost(draws: int, pool: int, experts: int, epsilon: float) -> float:
    """Return what draws that run short cost of delta, together; see `sparse_vector`'s proof.

    Args:
        draws: T.
        pool: trajectories of each expert.
        experts: fewest experts among which draws are made.
        epsilon: of a draw.
    """
    ways = math.comb(draws, pool + 1)
    if ways == 0:
        return 0.0
    logarithm = math.log(ways) - pool * math.log(max(experts, 1)) + (pool + 1) * epsilon
    if logarithm > 0:
        return math.inf
    return math.exp(logarithm) * (1 + math.exp(-(pool + 1) * epsilon))
