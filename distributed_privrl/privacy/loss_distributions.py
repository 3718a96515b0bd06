"""Privacy loss distributions of counted events, each kind on a grid of its own."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.atoms import Atoms

CERTIFIED_INTERVAL = 1e-4
BINS = 1_000_000
DISCRETE_ATOMS = 10_000
"""The largest integer sensitivity whose atoms are listed one by one."""
_LARGEST_EXPONENT = 700.0
_SMALLEST_INTERVAL = 1e-10


_until: ContextVar[float] = ContextVar("until", default=math.inf)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Let what is composed inside take so many seconds of this thread's processor in all.

    An atom takes up to some seconds, and is not interrupted.

    Args:
        seconds: of `time.thread_time`, which stands still while others compute.
    """
    token = _until.set(time.thread_time() + seconds)
    try:
        yield
    finally:
        _until.reset(token)


def compose(atoms: Atoms, grid: float) -> pld.PrivacyLossDistribution:
    """Compose each kind of atom on a grid of its own, then all of them on ``grid``.

    Raises:
        ConfigError: it takes longer than `within` allows.
    """
    total: pld.PrivacyLossDistribution | None = None
    parts = _parts(atoms, grid)
    first = next(parts)
    for part in parts:
        total = (first.on_grid(grid) if total is None else total).compose(part.on_grid(grid))
        if time.thread_time() > _until.get():
            raise ConfigError(
                "so many different events take too long to compose: an accountant is given"
                " events of few kinds"
            )
    return first.distribution if total is None else total


@dataclass(frozen=True)
class _Losses:
    """A privacy loss distribution on multiples of ``interval``."""

    distribution: pld.PrivacyLossDistribution
    interval: float

    def repeated(self, count: int) -> "_Losses":
        dense = _per_direction(self.distribution, lambda pmf: pmf.to_dense_pmf())
        return _Losses(dense.self_compose(count), self.interval)

    def on_grid(self, interval: float) -> pld.PrivacyLossDistribution:
        """Round every loss up to a multiple of ``interval``: an upper bound."""
        if interval == self.interval:
            return self.distribution
        return _per_direction(self.distribution, lambda pmf: self._rounded_up(pmf, interval))

    def _rounded_up(self, pmf: pld_pmf.PLDPmf, interval: float) -> pld_pmf.PLDPmf:
        dense = pmf.to_dense_pmf()
        losses = (dense._lower_loss + np.arange(dense.size)) * (self.interval / interval)
        cells = np.ceil(losses).astype(np.int64)
        masses = np.bincount(cells - cells[0], weights=dense._probs)
        return pld_pmf.DensePLDPmf(interval, int(cells[0]), masses, dense._infinity_mass, True)


def _per_direction(
    distribution: pld.PrivacyLossDistribution, change: Callable[[pld_pmf.PLDPmf], pld_pmf.PLDPmf]
) -> pld.PrivacyLossDistribution:
    """Apply ``change`` to the losses of removing a unit, and of adding one where they differ."""
    add = None if distribution._symmetric else change(distribution._pmf_add)
    return pld.PrivacyLossDistribution(change(distribution._pmf_remove), add)


def _parts(atoms: Atoms, grid: float) -> Iterator[_Losses]:
    scale = grid / CERTIFIED_INTERVAL
    if atoms.mu_squared:
        multiplier = 1 / math.sqrt(atoms.mu_squared)
        interval = _interval(1 / multiplier, _gaussian_range(multiplier), scale)
        distribution = pld.from_gaussian_mechanism(
            multiplier, value_discretization_interval=interval
        )
        yield _Losses(distribution, interval)
    for (probability, multiplier), count in atoms.poisson.items():
        yield _private_round(probability, multiplier, scale).repeated(count)
    for multiplier, count in atoms.laplace.items():
        yield _laplace(multiplier, scale).repeated(count)
    for (parameter, sensitivity), count in atoms.discrete_laplace.items():
        if sensitivity > DISCRETE_ATOMS:
            multiplier = continuous_multiplier(parameter, sensitivity)
            yield _laplace(multiplier, scale).repeated(count)
        else:
            yield _discrete_laplace(parameter, sensitivity).repeated(count)
    for value, count in atoms.bounded_range.items():
        yield _bounded_range(value, scale).repeated(count)
    for value, count in atoms.pure.items():
        yield _randomised_response(value).repeated(count)


@lru_cache(maxsize=8)
def _private_round(probability: float, multiplier: float, scale: float) -> _Losses:
    step_loss = probability * math.sqrt(math.expm1(min(multiplier**-2, _LARGEST_EXPONENT)))
    interval = _interval(step_loss, _gaussian_range(multiplier), scale)
    remove, add = (
        _discretised(
            GaussianPrivacyLoss(multiplier, sampling_prob=probability, adjacency_type=direction),
            interval,
        )
        for direction in (AdjacencyType.REMOVE, AdjacencyType.ADD)
    )
    return _Losses(pld.PrivacyLossDistribution(remove, add), interval)


def _discretised(loss: GaussianPrivacyLoss, interval: float) -> pld_pmf.PLDPmf:
    """Return a sampled Gaussian's losses on multiples of ``interval``, by connecting the dots.

    dp_accounting does the same, but inverts the loss point by point in Python, which was most of
    what a plan took.
    """
    bounds = loss.connect_dots_bounds()
    lowest = math.floor(bounds.epsilon_lower / interval)
    highest = math.ceil(bounds.epsilon_upper / interval)
    deltas = _hockey_stick(loss, np.arange(lowest, highest + 1) * interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, deltas)


def _hockey_stick(loss: GaussianPrivacyLoss, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the divergence at each of ``epsilons``, ``(N,)``; q < 1 and sensitivity 1.

    Removing a unit has loss x where ``exp(x) = 1 - q + q exp(l)``, l the unsampled Gaussian's;
    adding one has -x where that has -l. No outcome has an x of log(1 - q) or less.
    """
    removes = loss.adjacency_type == AdjacencyType.REMOVE
    sign, least = (1.0 if removes else -1.0), math.log1p(-loss.sampling_prob)
    deltas = np.zeros_like(epsilons)
    reached = sign * epsilons > least
    if removes:
        deltas[~reached] = -np.expm1(epsilons[~reached])
    losses = sign * epsilons[reached]
    with np.errstate(divide="ignore"):  # the least loss's neighbour may be the least one, rounded
        unsampled = losses + np.log1p(-np.exp(least - losses)) - math.log(loss.sampling_prob)
    cutoffs = -sign * (0.5 + unsampled * loss.standard_deviation**2)
    deltas[reached] = loss.mu_upper_cdf(cutoffs) - np.exp(
        epsilons[reached] + loss.mu_lower_log_cdf(cutoffs)
    )
    return np.clip(deltas, 0.0, 1.0)


def _interval(step_loss: float, loss_range: float, scale: float) -> float:
    """Return a grid of at most a twentieth of one step's loss, and at most a million points."""
    fine = scale * min(CERTIFIED_INTERVAL, step_loss / 20)
    return max(fine, loss_range / BINS, _SMALLEST_INTERVAL)


def _gaussian_range(multiplier: float) -> float:
    return (20 * multiplier + 1) / multiplier**2


def continuous_multiplier(parameter: float, sensitivity: int) -> float:
    """Return the noise multiplier of continuous Laplace noise that dominates a discrete one.

    Its sensitivity is larger by two steps. Losses of the discrete one, of integer sensitivity k,
    are parameter (k - 2 j), j = 0 to k, and reach that with probability
    ``1 - exp(-parameter (j + 1)) / (1 + exp(-parameter))`` for j < k; the continuous one of
    sensitivity k + 2 reaches the same loss with ``1 - exp(-parameter (j + 1)) / 2``, which is no
    less. So it has the larger divergence at every epsilon above the least loss, and below that no
    mechanism has a smaller one than the discrete one.
    """
    return 1 / (parameter * (sensitivity + 2))


def _laplace(multiplier: float, scale: float) -> _Losses:
    interval = _interval(1 / multiplier, 2 / multiplier, scale)
    distribution = pld.from_laplace_mechanism(multiplier, value_discretization_interval=interval)
    return _Losses(distribution, interval)


def _discrete_laplace(parameter: float, sensitivity: int) -> _Losses:
    """Return the exact atoms: losses ``parameter`` times sensitivity, sensitivity - 2, ...

    The worst case is one coordinate that moves by the whole L1 sensitivity.
    """
    outcomes = np.arange(sensitivity + 1)
    masses = math.tanh(parameter / 2) * np.exp(-parameter * outcomes)
    tail = 1 / (1 + math.exp(-parameter))
    masses[0], masses[-1] = tail, tail * math.exp(-parameter * sensitivity)
    return _from_atoms(sensitivity - 2 * outcomes, masses, parameter)


def _bounded_range(value: float, scale: float) -> _Losses:
    """Return the pair that dominates choices of range ``value``; `atoms` has the proof.

    Its losses have density exp(x / 2) / (4 sinh(value / 2)) on [-value, value]. Connecting the dots
    of its divergence on a grid of spacing h, of which ``value`` is a multiple, puts mass
    2 tanh(h / 4) exp((x - value) / 2) / (1 - exp(-value)) on each x inside and half of that on the
    ends: no differences of divergences, so no digits are lost. At a twentieth of the largest loss
    the grid adds about 1/800 to the variance.
    """
    steps = math.ceil(value / _interval(value, 2 * value, scale))
    interval = value / steps
    losses = np.arange(-steps, steps + 1)
    masses = np.exp((losses - steps) * (interval / 2))
    masses *= 2 * math.tanh(interval / 4) / -math.expm1(-value)
    masses[[0, -1]] /= 2
    return _from_atoms(losses, masses, interval)


def _randomised_response(value: float) -> _Losses:
    """Return the worst (value, 0) mechanism: losses +value and -value."""
    truth = 1 / (1 + math.exp(-value))
    return _from_atoms(np.array([1, -1]), np.array([truth, truth * math.exp(-value)]), value)


def _from_atoms(losses: NDArray[np.int64], masses: NDArray[np.float64], interval: float) -> _Losses:
    lowest = int(losses.min())
    dense = np.bincount(losses - lowest, weights=masses)
    return _Losses(
        pld.PrivacyLossDistribution(pld_pmf.DensePLDPmf(interval, lowest, dense, 0.0, True)),
        interval,
    )
