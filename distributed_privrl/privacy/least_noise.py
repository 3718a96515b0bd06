"""The search for the least noise whose certified cost keeps a budget."""

import math
from collections.abc import Callable, Sequence
from functools import cache

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.accounting import Accountant, epsilon
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.units import PrivacyBudget

EventsOf = Callable[[float], Sequence[Event]]

TOLERANCE = 1e-3
_MARGIN = 3e-4
_LARGEST_MULTIPLIER = 2.0**29
_SMALLEST_MULTIPLIER = 2.0**-6
_SETTLING_STEPS = 20
_LEAST_SLOPE = 0.5
_COARSE_EPSILON = 0.02
"""Below it the coarse grid's own rounding is as large as what is searched for."""


def rounded_up(
    noise_multiplier: float,
    events_of: EventsOf,
    budget: PrivacyBudget,
    accountant: Accountant = "pld",
) -> float:
    """Return the multiplier, enlarged by what rounding may have lost of it.

    A run whose certified cost were above its budget by a unit in the last place could draw, and
    never be settled.
    """
    for exponent in range(-52, 0):
        if _cost(events_of(noise_multiplier), budget, accountant) <= budget.epsilon:
            break
        noise_multiplier *= 1 + 2.0**exponent
    return noise_multiplier


def least_multiplier(
    events_of: EventsOf,
    budget: PrivacyBudget,
    accountant: Accountant,
    other_events: Sequence[Event] = (),
) -> float:
    """Return the least noise multiplier that keeps the budget, or up to `TOLERANCE` more.

    Searches on a coarse grid, then settles on the certified one, always on the safe side.

    Args:
        events_of: gives all events at a noise multiplier, ``other_events`` included; they cost no
            more at a larger one.
        budget: what they may cost.
        accountant: that decides.
        other_events: those that the noise multiplier does not change.

    Raises:
        ConfigError: ``other_events`` alone exceed the budget, or no noise keeps it.
    """
    others = _cost(other_events, budget, accountant)
    if others >= budget.epsilon:
        raise ConfigError(
            f"the other events cost epsilon={others:.4g} of {budget.epsilon:g}: nothing is left for"
            " the rounds; raise epsilon or lower what they spend"
        )

    def excess(log_multiplier: float, certified: bool = False) -> float:
        """Return log(cost / budget), cut where it says no more."""
        events = events_of(math.exp(log_multiplier))
        ratio = _cost(events, budget, accountant, certified) / budget.epsilon
        return math.log(min(max(ratio, 1e-9), 1e9))

    fine = budget.epsilon < _COARSE_EPSILON
    coarse = cache(lambda value: excess(value, certified=fine))
    low, high = _bracket(coarse)
    if low == high:
        return math.exp(low)
    from scipy.optimize import brentq

    guess = float(brentq(coarse, low, high, xtol=4e-3, rtol=1e-9))
    slope = (coarse(low) - coarse(guess)) / (guess - low) if guess > low else 1.0
    return math.exp(_settle(lambda value: excess(value, certified=True), guess, slope))


def _cost(
    events: Sequence[Event], budget: PrivacyBudget, accountant: Accountant, certified: bool = True
) -> float:
    return epsilon(
        events,
        delta=budget.delta,
        relation=budget.relation,
        accountant=accountant,
        certified=certified,
    )


def _bracket(excess: Callable[[float], float]) -> tuple[float, float]:
    """Return log multipliers that are too small and large enough; equal if all are large enough."""
    step = math.log(2)
    high = 0.0
    while excess(high) > 0:
        high += step
        if high > math.log(_LARGEST_MULTIPLIER):
            raise ConfigError("no noise multiplier keeps this budget: raise epsilon or delta")
    low = high - step
    while high <= 0 and excess(low) <= 0:
        high, low = low, low - step
        if low < math.log(_SMALLEST_MULTIPLIER):
            return high, high
    return low, high


def _settle(excess: Callable[[float], float], guess: float, slope: float) -> float:
    """Return a log multiplier within `TOLERANCE` above the least one that keeps the budget.

    Args:
        excess: falls with the log multiplier; at most 0 where the budget is kept.
        guess: log multiplier near the least one.
        slope: how fast ``excess`` falls, about; replaced by what is seen.
    """
    value, best, seen = guess, math.inf, None
    for _ in range(_SETTLING_STEPS):
        over = excess(value)
        if seen is not None and abs(value - seen[0]) > _MARGIN:
            slope = (seen[1] - over) / (value - seen[0])
        slope = max(slope, _LEAST_SLOPE)
        shift = over / slope
        if over <= 0:
            best = min(best, value)
            if shift > -TOLERANCE:
                return best
        seen = (value, over)
        value += shift + _MARGIN
    if math.isinf(best):
        raise ConfigError("the noise could not be calibrated: use accountant rdp")
    return best
