"""What is subtracted from a value because its estimate is uncertain (algorithm 1, line 5)."""

import math
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.step_noise import Release
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease

Preset: TypeAlias = Literal["theory", "practical", "none"]

PRACTICAL_DEVIATIONS = 2.0
"""E / 2 of the practical preset, in standard deviations of the noise: 1 unvisited pair in 44 has a
noisy count above it."""


def noise_deviation(release: Release) -> float:
    """Return the standard deviation of a release's noise.

    Args:
        release: adds it.
    """
    if isinstance(release, DiscreteGaussianRelease):
        return release.standard_deviation
    return release.scale * math.sqrt(2)


@dataclass(frozen=True, kw_only=True)
class Uncertainty:
    """Public sizes that the penalties depend on.

    Args:
        horizon: H.
        states: S, after clustering.
        actions: A.
        successors: S, or S + 1 with "ended".
        releases: vectors released: H, or 1 when time steps are pooled.
        reward_width: highest minus lowest reward of a step.
        estimated_reward: the reward is estimated from the data.
        random_reward: the value of a successor includes a reward for arriving there.
    """

    horizon: int
    states: int
    actions: int
    successors: int
    releases: int
    reward_width: float
    estimated_reward: bool = False
    random_reward: bool = False


@dataclass(frozen=True, kw_only=True)
class Pessimism:
    """The penalty Gamma of algorithm 1 and its constants; the defaults are the theory's.

    With n the projected count of a pair, E the error bound of noisy counts, H' = H times the width
    of the reward range and iota = log(H S A / failure_probability), where n > E

        bernstein: Gamma = C1 sqrt(Var iota / (n - E)) + max(C2 S E, C3) H' iota / n
        hoeffding: Gamma = C1 H' sqrt(iota / (n - E)) + C2 S E H' iota / n

    and C H' elsewhere. The paper has C2 S E alone: C3 is what is left of the second term without
    noise (E = 0), as in APVI, and never the larger one at the theory's constants and E >= 7/24.
    An estimated reward adds C1 width / 2 sqrt(iota / (n - E)), the first term for the largest
    variance that a reward can have; the noise in its sum (at most E / 2, with the denominator's
    error 3 E / 2 in all) is within the second term.

    ``worst_case=False`` replaces S iota E by E and H by the time steps that are left (one more for
    a reward that is not known in advance): of the order of the error that noise does cause after
    the projection, but no bound. No choice here changes the privacy of the result.

    Args:
        kind: ``bernstein``, ``hoeffding``, or ``none``: Gamma = 0.
        variance_constant: C1; the paper has sqrt 2, Yin and Wang 2021b print 2.
        privacy_constant: C2.
        sampling_constant: C3; Yin and Wang 2021b print 14/3.
        unvisited_constant: C > 1.
        failure_probability: of all bounds together.
        noise_deviations: E / 2 in standard deviations of the noise; None: the bound that all noise
            of the run keeps with probability 1 - failure_probability.
        worst_case: as above.

    Raises:
        ConfigError: a value is out of range.

    Reference: DP-VAPVI, algorithm 1 and "Comparison to Hoeffding type pessimism"; Yin and Wang
    2021b, algorithm 1 (APVI).
    """

    kind: Literal["bernstein", "hoeffding", "none"] = "bernstein"
    variance_constant: float = math.sqrt(2)
    privacy_constant: float = 16.0
    sampling_constant: float = 14 / 3
    unvisited_constant: float = 2.0
    failure_probability: float = 0.1
    noise_deviations: float | None = None
    worst_case: bool = True

    def __post_init__(self) -> None:
        if self.kind not in ("bernstein", "hoeffding", "none"):
            raise ConfigError(f"kind must be bernstein, hoeffding or none, got {self.kind!r}")
        for name in ("variance_constant", "privacy_constant", "sampling_constant"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"{name} must be finite, at least 0, got {getattr(self, name)!r}")
        if not 1 < self.unvisited_constant < math.inf:
            raise ConfigError(f"unvisited_constant must be > 1, got {self.unvisited_constant!r}")
        check_probability("failure_probability", self.failure_probability)
        if self.noise_deviations is not None:
            check_positive("noise_deviations", self.noise_deviations)

    @classmethod
    def preset(cls, name: Preset, kind: Literal["bernstein", "hoeffding"] = "bernstein") -> Self:
        """Return the constants called ``name``.

        ``theory``: the paper's. ``practical``: much smaller ones and ``worst_case=False``, E / 2 of
        `PRACTICAL_DEVIATIONS`; chosen on a public simulator (ICU-Sepsis, 100,000 patients, pooled
        counts), where the theory's penalties leave every value at its lower end. ``none``: no
        penalty; E as in ``practical``.

        Raises:
            ConfigError: no such preset.
        """
        if name == "theory":
            return cls(kind=kind)
        if name not in ("practical", "none"):
            raise ConfigError(f"preset must be theory, practical or none, got {name!r}")
        return cls(
            kind="none" if name == "none" else kind,
            variance_constant=0.1,
            privacy_constant=0.02,
            sampling_constant=0.01,
            noise_deviations=PRACTICAL_DEVIATIONS,
            worst_case=False,
        )

    def count_error(self, release: Release | None, size: Uncertainty) -> float:
        """Return E: twice the bound on the noise of every count of the run; 0 without noise.

        Gaussian noise of deviation sigma exceeds t in size with probability at most
        2 exp(-t^2 / (2 sigma^2)), so that E / 2 = sigma sqrt(2 log(2 M / failure)) for M cells.
        With the paper's M = 2 H S^2 A and sigma^2 = 2 H / rho, that is the paper's
        E = 4 sqrt(H log(4 H S^2 A / failure) / rho). Laplace noise of scale b exceeds t in size
        with probability exp(-t / b), so that E / 2 = b log(M / failure).

        Args:
            release: adds the noise; None: nothing is added.
            size: of the problem.
        """
        if release is None:
            return 0.0
        families = 1 + size.estimated_reward
        cells = size.states * size.actions * max(2 * size.successors, size.successors + families)
        cells, failure = cells * size.releases, self.failure_probability
        spread = noise_deviation(release)
        if isinstance(release, DiscreteGaussianRelease):
            deviations = math.sqrt(2 * math.log(2 * cells / failure))  # line 2
        else:
            deviations = math.log(cells / failure) / math.sqrt(2)
        return 2 * spread * (self.noise_deviations or deviations)

    def penalties(
        self,
        variances: NDArray[np.float64],
        totals: NDArray[np.float64],
        *,
        error: float,
        size: Uncertainty,
        steps_left: int,
    ) -> NDArray[np.float64]:
        """Return Gamma of every pair at one time step.

        Args:
            variances: ``(N,)``, of the next value under the estimated transitions.
            totals: ``(N,)``, projected counts of the pairs.
            error: E.
            size: of the problem.
            steps_left: H - h, time steps after this one.

        Returns:
            ``(N,)``
        """
        if self.kind == "none":
            return np.zeros(len(totals))
        iota = math.log(size.horizon * size.states * size.actions / self.failure_probability)
        span, scale = size.horizon * size.reward_width, size.successors * iota
        if not self.worst_case:
            unknown = size.estimated_reward or size.random_reward
            span, scale = (steps_left + unknown) * size.reward_width, 1.0
        visited = totals > error
        count = np.where(visited, totals, 1.0 + error)
        root = np.sqrt(iota / (count - error))
        if self.kind == "bernstein":
            first = self.variance_constant * np.sqrt(variances) * root
            second = max(self.privacy_constant * scale * error, self.sampling_constant * iota)
        else:
            first = self.variance_constant * span * root
            second = self.privacy_constant * scale * error
        if size.estimated_reward:
            first = first + self.variance_constant * size.reward_width / 2 * root
        ceiling = self.unvisited_constant * size.horizon * size.reward_width
        return np.where(visited, first + second * span / count, ceiling)  # line 5
