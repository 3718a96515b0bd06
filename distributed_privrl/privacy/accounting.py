"""What events cost: privacy loss distributions, Renyi DP as a cross-check, exact special cases.

Three steps: `ParallelEvent`s become one sequence for each branch that a unit may be in; a sequence
becomes `Atoms`, equal ones counted; an accountant turns the atoms into an epsilon.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import dp_accounting as dp
import numpy as np
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from distributed_privrl.core.checks import check_delta
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.atoms import Atoms, atoms_of_every_choice
from distributed_privrl.privacy.events import EVENTS, Event
from distributed_privrl.privacy.loss_distributions import (
    BINS,
    CERTIFIED_INTERVAL,
    DISCRETE_ATOMS,
    compose,
    continuous_multiplier,
)
from distributed_privrl.privacy.units import Relation

Accountant = Literal["pld", "rdp", "pure", "gdp"]

SEARCH_FACTOR = 10
_REFINEMENTS = 3
_LARGEST_EPSILON = 1000.0
_ROUNDING = 2.0**-50
_STEP_ROUNDING = 1e-14
_ROOT_TOLERANCE = 1e-12
_FEW_ORDERS = (1.1, 1.2, 1.5, 1.8, 2, 2.5, 3, 4, 5, 6, 8, 11, 16, 23, 32, 45, 63, 128, 256, 1024)
"""Some of dp_accounting's orders, for searches: any of them bound epsilon from above."""


_coarse: ContextVar[bool] = ContextVar("coarse", default=False)


@contextmanager
def coarse_figures() -> Iterator[None]:
    """Take the grid of searches for every figure inside, also for those that certify.

    They stay upper bounds, some tenths of a percent higher, in a fraction of the time: for what is
    shown before a run, which computes its own.
    """
    token = _coarse.set(True)
    try:
        yield
    finally:
        _coarse.reset(token)


@dataclass(frozen=True, kw_only=True)
class RdpFigure:
    """The Renyi-DP epsilon, or null and the reason why Renyi DP cannot speak."""

    epsilon: float | None
    reason: str | None = None


def epsilon(
    events: Sequence[Event],
    *,
    delta: float,
    relation: Relation,
    accountant: Accountant = "pld",
    certified: bool = True,
) -> float:
    """Return an epsilon such that the composed events are (epsilon, delta)-DP.

    Args:
        events: what one stage released; they may have been chosen adaptively.
        delta: in [0, 1); probabilities of failure in ``events`` are paid from it.
        relation: under which the events' noise is stated.
        accountant: ``pld`` (privacy loss distributions; never above ``rdp`` where that applies),
            ``rdp``, ``pure`` (sums pure epsilons) or ``gdp`` (Gaussian releases alone, exact).
            Discrete Gaussian releases enter as `atoms` proves, never as Gaussian ones.
        certified: false uses a ten times coarser grid, for searches; still an upper bound. So do
            `coarse_figures`.

    Returns:
        an upper bound; infinity where the events are not private at all.

    Raises:
        ConfigError: the accountant cannot take the events, or the delta.
        UnsafeError: Poisson sampling under ``replace_one``, or failures use up the delta.

    Reference: Doroshenko et al. 2022 (connect the dots); Mironov et al. 2019 (Renyi DP); Balle and
        Wang 2018 (Gaussian); Kairouz et al. 2015 (an (epsilon, delta) mechanism is at worst
        randomised response that leaks with probability delta); `atoms` (choices of bounded range).
    """
    if accountant not in ("pld", "rdp", "pure", "gdp"):
        raise ConfigError(f"accountant must be pld, rdp, pure or gdp, got {accountant!r}")
    check_delta("delta", delta)
    certified = certified and not _coarse.get()
    return _epsilon_of_json(EVENTS.dump_json(tuple(events)), delta, relation, accountant, certified)


@lru_cache(maxsize=1024)
def _epsilon_of_json(
    events: bytes, delta: float, relation: Relation, accountant: Accountant, certified: bool
) -> float:
    """Remember what was computed: settling, certifying and verifying ask for the same figure."""
    return max(
        _epsilon_of_atoms(atoms, delta, accountant, certified)
        for atoms in atoms_of_every_choice(EVENTS.validate_json(events), relation)
    )


def cross_check(events: Sequence[Event], *, delta: float, relation: Relation) -> RdpFigure:
    """Return the Renyi-DP epsilon of ``events``, or the reason why there is none.

    Pure and discrete Laplace events enter by the bounds that hold for every (epsilon, 0) mechanism,
    choices of bounded range by those that hold for all of them; at delta 0 the order is infinite
    and pure epsilons are summed.

    Raises:
        UnsafeError: as in `epsilon`.
    """
    try:
        value = epsilon(events, delta=delta, relation=relation, accountant="rdp")
    except ConfigError as error:
        return RdpFigure(epsilon=None, reason=str(error))
    if not math.isfinite(value):
        return RdpFigure(epsilon=None, reason="Renyi DP gives no finite epsilon for these events")
    return RdpFigure(epsilon=value)


def _epsilon_of_atoms(atoms: Atoms, delta: float, accountant: Accountant, certified: bool) -> float:
    if atoms.failure > delta:
        raise UnsafeError(
            f"delta={delta:g} does not cover the events' probabilities of failure, which sum to"
            f" {atoms.failure:g}: raise delta or lower them"
        )
    delta -= atoms.failure
    pure = atoms.pure_epsilon
    if pure == 0:
        return 0.0
    if accountant == "gdp" and not atoms.is_gaussian:
        raise ConfigError("accountant gdp takes Gaussian releases alone: use pld")
    if accountant == "pure" or delta == 0:
        if pure is None:
            raise ConfigError(
                "pure epsilons cannot be summed over Gaussian noise or selection: state a delta > 0"
                " (beyond what failures use up) and accountant pld or rdp"
            )
        return pure
    if accountant == "rdp":
        return _renyi_epsilon(atoms, delta)
    if atoms.is_gaussian:
        return _gaussian_epsilon(atoms, delta, accountant)
    if atoms.selections:
        raise ConfigError("accountant pld takes no repeat_and_select: use accountant rdp")
    return min(_pld_epsilon(atoms, delta, certified), math.inf if pure is None else pure)


def _gaussian_epsilon(atoms: Atoms, delta: float, accountant: Accountant) -> float:
    """Return the exact cost of Gaussian releases; discrete ones may cost less by Renyi DP."""
    if accountant == "pld" and atoms.mu_squared > atoms.concentrated:
        bounds = [_renyi_epsilon(atoms, delta)]
        if math.isfinite(atoms.mu_squared):
            bounds.append(_gaussian_epsilon(atoms, delta, "gdp"))
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


def _renyi_epsilon(atoms: Atoms, delta: float, certified: bool = True) -> float:
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


def _pld_epsilon(atoms: Atoms, delta: float, certified: bool) -> float:
    """Compose privacy loss distributions, on a finer grid while Renyi DP does better."""
    renyi = _renyi_epsilon(atoms, delta, certified)
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
