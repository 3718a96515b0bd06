"""What events cost: privacy loss distributions, Renyi DP as a cross-check, exact special cases.

Three steps: `ParallelEvent`s become one sequence for each branch that a unit may be in; a sequence
becomes `Atoms`, equal ones counted; an accountant turns the atoms into an epsilon.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from distributed_privrl.core.checks import check_delta
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.atoms import Atoms, atoms_of_every_choice
from distributed_privrl.privacy.events import EVENTS, Event
from distributed_privrl.privacy.units import Relation

Accountant = Literal["pld", "rdp", "pure", "gdp"]

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
    # Here and not above: servers and samplers of a run compute no cost, and it takes a second.
    from distributed_privrl.privacy import composition

    if accountant == "rdp":
        return composition.renyi_epsilon(atoms, delta)
    if atoms.is_gaussian:
        return composition.gaussian_epsilon(atoms, delta, exact=accountant == "gdp")
    if atoms.selections:
        raise ConfigError("accountant pld takes no repeat_and_select: use accountant rdp")
    composed = composition.pld_epsilon(atoms, delta, certified)
    return min(composed, math.inf if pure is None else pure)
