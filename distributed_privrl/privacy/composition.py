"""Epsilons of composed atoms by dp_accounting: privacy loss distributions and Renyi DP.

Apart from `accounting`, which imports this where a cost is computed.
"""

import logging
import math
from collections.abc import Sequence

import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.atoms import Atoms
from distributed_privrl.privacy.loss_distributions import (
    BINS,
    CERTIFIED_INTERVAL,
    DISCRETE_ATOMS,
    compose,
    continuous_multiplier,
)

SEARCH_FACTOR = 10
_REFINEMENTS = 3
_LARGEST_EPSILON = 1000.0
_ROUNDING = 2.0**-50
_STEP_ROUNDING = 1e-14
_ROOT_TOLERANCE = 1e-12
_FEW_ORDERS = (1.1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 63, 128, 256, 1024)
"""Some of dp_accounting's orders, for searches: any of them bound epsilon from above."""


def gaussian_epsilon(atoms: Atoms, delta: float, *, exact: bool) -> float:
    """Return the exact cost of Gaussian releases.

    Args:
        atoms: of such releases alone.
        delta: above 0.
        exact: take no other bound, where discrete ones may cost less by Renyi DP.

    Raises:
        ConfigError: there is no exact cost.
    """
    if not exact and atoms.mu_squared > atoms.concentrated:
        bounds = [renyi_epsilon(atoms, delta)]
        if math.isfinite(atoms.mu_squared):
            bounds.append(gaussian_epsilon(atoms, delta, exact=True))
        return min(bounds)
    if math.isinf(atoms.mu_squared):
        raise ConfigError(
            "accountant gdp takes no discrete_gaussian with a standard deviation of 3 steps or"
            " less: use a finer lattice, or accountant rdp"
        )
    sigma = 1 / math.sqrt(atoms.mu_squared)
    with np.errstate(divide="ignore"):
        value = dp.get_epsilon_gaussian(sigma, delta, _ROOT_TOLERANCE)
    return float(value) + _ROOT_TOLERANCE


def _renyi_events(atoms: Atoms) -> list[dp.DpEvent]:
    """Return the atoms as dp_accounting events that its Renyi accountant takes.

    An (epsilon, 0) mechanism has Renyi divergence at most min(epsilon, order epsilon^2 / 2), one of
    bounded range epsilon at most min(epsilon, order epsilon^2 / 8).
    """
    events: list[dp.DpEvent] = [
        RepeatAndSelectDpEvent(dp.ComposedDpEvent(_renyi_events(s.base)), s.mean, s.shape)
        for s in atoms.selections
    ]
    if atoms.concentrated:
        events.append(dp.GaussianDpEvent(1 / math.sqrt(atoms.concentrated)))
    for (probability, multiplier), count in atoms.poisson.items():
        step = dp.PoissonSampledDpEvent(probability, dp.GaussianDpEvent(multiplier))
        events.append(dp.SelfComposedDpEvent(step, count))
    for multiplier, count in atoms.laplace.items():
        events.append(dp.SelfComposedDpEvent(dp.LaplaceDpEvent(multiplier), count))
    pure = list(atoms.pure.items())
    for (a, shift), count in atoms.discrete_laplace.items():
        if shift > DISCRETE_ATOMS:
            multiplier = continuous_multiplier(a, shift)
            events.append(dp.SelfComposedDpEvent(dp.LaplaceDpEvent(multiplier), count))
        else:
            pure.append((a * shift, count))
    # Divergences lose up to some 1e-15 a step to rounding, and dp_accounting takes a negative one
    # for perfect privacy: more than what can be lost is added at every order.
    smooth = (atoms.poisson, atoms.laplace, atoms.discrete_laplace)
    steps = sum(sum(counter.values()) for counter in smooth)
    if steps:
        events.append(dp.ZCDpEvent(rho=0, xi=_STEP_ROUNDING * steps))
    bounds = [(value**2 / 2, value, count) for value, count in pure]
    bounds += [(value**2 / 8, value, count) for value, count in atoms.bounded_range.items()]
    for rho, xi, count in bounds:  # of the two, what is less at order 2
        bound = dp.ZCDpEvent(rho=rho, xi=0) if 2 * rho < xi else dp.ZCDpEvent(rho=0, xi=xi)
        events.append(dp.SelfComposedDpEvent(bound, count))
    return events


def _is_news(record: logging.LogRecord) -> bool:
    return "Excluding this order" not in record.getMessage()


# dp_accounting warns at each order that it leaves out; the rest still bounds epsilon from above.
logging.getLogger("absl").addFilter(_is_news)


def renyi_epsilon(atoms: Atoms, delta: float, certified: bool = True) -> float:
    """Return the least epsilon over dp_accounting's orders, or over few of them for a search.

    At an order, epsilon is a convex function of it divided by the order less 1: (order - 1) times a
    divergence is a cumulant, and what converts it to epsilon is convex, too. So epsilon falls to
    its least and rises from there, and a second look at the orders between the neighbours of the
    best of a few finds it. Where a divergence is so small that delta alone covers it, it is
    smallest at the least order, which is one of the few. Selections' divergences are bounds of
    another form: every order is looked at.
    """
    event = dp.ComposedDpEvent(_renyi_events(atoms))
    if atoms.selections and certified:
        return _least_epsilon(event, delta, DEFAULT_RDP_ORDERS)[0]
    value, best = _least_epsilon(event, delta, _FEW_ORDERS)
    if not certified or not math.isfinite(value):
        return value
    low = max((order for order in _FEW_ORDERS if order < best), default=1)
    high = min((order for order in _FEW_ORDERS if order > best), default=best)
    between = [order for order in DEFAULT_RDP_ORDERS if low < order < high and order != best]
    return min(value, _least_epsilon(event, delta, between)[0]) if between else value


def _least_epsilon(event: dp.DpEvent, delta: float, orders: Sequence[float]) -> tuple[float, float]:
    """Return the least epsilon over ``orders``, and at which of them it is."""
    accountant = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(event)
    value, order = accountant.get_epsilon_and_optimal_order(delta)
    return float(value), float(order)


def pld_epsilon(atoms: Atoms, delta: float, certified: bool) -> float:
    """Compose privacy loss distributions, on a finer grid while Renyi DP does better."""
    renyi = renyi_epsilon(atoms, delta, certified)
    if renyi > _LARGEST_EPSILON or math.isinf(atoms.mu_squared):
        return renyi
    noisy = (atoms.poisson, atoms.laplace, atoms.discrete_laplace)
    counts = (*noisy, atoms.bounded_range, atoms.pure)
    # The Fourier transform's n-th power carries a relative rounding error of n machine epsilons,
    # spread over the whole support, and each round's divergences less than one: both are paid
    # from delta.
    rounding = _ROUNDING * (1000 + sum(sum(counter.values()) for counter in counts))
    if rounding >= delta / 2:
        return renyi
    value = math.inf
    interval = CERTIFIED_INTERVAL * (1 if certified else SEARCH_FACTOR)
    for _ in range(_REFINEMENTS):
        grid = max(interval, renyi / BINS)
        value = compose(atoms, grid).get_epsilon_for_delta(delta - rounding)
        # Choices of bounded range may cost more than by Renyi DP on any grid; see `atoms`.
        if value <= renyi or not certified or atoms.bounded_range:
            break
        interval /= 4
    return float(min(value, renyi))
