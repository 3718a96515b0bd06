"""Prefixes that enough experts would have taken (expert-level DP, algorithm 2).

A draw picks an expert at random and one of its trajectories, and asks of each prefix how many
experts would have taken it: ``count(prefix) = sum over experts of prod_j pi(a_j | s_j)``. The
sparse vector technique releases the longest prefix before the first count that is too low.

Why a draw is (epsilon, failure)-DP, epsilon = ``epsilon_draw + epsilon_threshold + epsilon_query``.
Let P be the law of its output for a set of n experts, Q that for a neighbour, with one expert less
or more; ``w(prefix)``, at least its count, the sum of these experts' true odds to take its actions:
experts that cannot be drawn are none of the n, and count nowhere.

1. *Queries.* Counts of neighbours differ by at most 1, all in the same direction. With one expert
   less, the threshold is lowered by 1 (``epsilon_threshold``): every answer "above" stays at least
   as likely, and the last one, "below", needs a shift of its noise of 0 to 1 (``epsilon_query``).
   With one more, the threshold stays, and the last answer needs that shift alone. Without the
   common direction the last shift is up to 2: variant ``paper``.
2. *Draw* (lemma 5.1). A prefix is drawn with odds in proportion to w / n, so that P / Q is at most
   ``w / (w - 1) <= exp(epsilon_draw)`` where ``w >= c_min = 1 / (1 - exp(-epsilon_draw))``.
3. *Why prefixes with low counts do not come out.* The output "prefix, no further" sums over the
   next action a, and step 2 is needed for ``w(prefix a)``. Every expert that counts for a prefix
   gives each next action at least p_min, so ``w(prefix a) >= p_min count(prefix) >= c_min`` where
   ``count(prefix) >= theta = c_min / p_min``: there P <= exp(epsilon) Q. A prefix with a count
   below theta comes out only if the first query below theta is answered "above". Counts never grow
   along a prefix, so for each drawn trajectory there is one such first query, and every longer
   prefix comes out only if that one was answered wrongly: that has probability at most ``failure``
   = P(query noise - threshold noise >= margin) *in all*, not at each of L steps (``paper`` adds
   them up). An output that ends where its trajectory ends needs ``w(prefix) >= c_min`` alone.
4. *Nothing comes out.* Where at least theta experts count at the first state, step 3 holds for the
   empty prefix. Elsewhere nothing comes out under P but for ``failure``, hence nothing under Q but
   for exp(epsilon_threshold + epsilon_query) failure (step 1), which leaves P <= exp(epsilon) Q as
   long as ``failure <= exp(-epsilon_threshold - epsilon_query) (1 - exp(-epsilon))``.

*Integers.* Counts are rounded down to whole steps of `STEP`, which moves neighbours no further
apart than 1 and keeps their direction: a step divides 1. Threshold and noise are whole steps, the
noise exact discrete Laplace, so that steps 1 to 4 compare integers. A tie counts as "above", in
each law alike; a shift of the threshold or of a query's noise by 1 is one by 1 / STEP integers,
whose odds differ by exp(1 / scale) at most, as for continuous noise. What `laplace_tails` gives for
continuous noise bounds the failure of a discrete one where the margin is larger by two steps.

Draws are independent, so they compose: T times (epsilon, 0), and T failures. A draw whose expert
has no unused trajectory left releases nothing. Ideal draws never run short; the chance that a real
run differs from them is at most ``C = binomial(T, a + 1) / k^a`` for a pool of a trajectories and k
experts. It costs ``(1 + exp((a + 1) epsilon)) C`` of delta, not C: where P may exceed Q by a
factor, what ran short is missing from Q. In full, for T ideal draws with outputs o and
``s = Q(ran short | o)``, ``(P - e^E Q (1 - s))+ <= (P - e^E Q)+ + P s``; the sum of ``P s`` over
all o is at most that of ``exp((a + 1) epsilon) k^-a`` over the sets of a + 1 draws, as the outputs
of all other draws say nothing about whether these had one expert. k is ceil(theta) - 1, not the
number of experts, of which many may be null: with fewer than theta in both sets nothing comes out
at all but for failures.
"""

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_delta, check_positive
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.events import (
    LONGEST_PREFIX,
    PREFIX_ROUNDING,
    STABLE_PREFIX,
    ApproximateDpEvent,
    Event,
    PureDpEvent,
)
from distributed_privrl.privacy.laplace_tails import wrong_answer
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.prefix_costs import (
    OVERFLOW_SHARE,
    Variant,
    constants,
    overflow_cost,
)

SMALLEST_POOL = 4
STEP = 2.0**-20
"""What counts, threshold and noise are whole multiples of."""
_STEPS_OF_MARGIN = 4
"""Two for what discrete noise may be above continuous noise, the rest for rounding a threshold."""


@dataclass(frozen=True, kw_only=True)
class StablePrefixes:
    """Releases of the longest prefix that enough experts would have taken.

    Args:
        variant: ``tight``, or ``paper``: the printed constants, for comparison.
        experts: number m, public; those that are null are among them.
        minimum_probability: p_min, of each action where an expert counts.
        draws: trajectories T that are paid for, spare ones among them.
        max_length: most steps L of a trajectory.
        epsilon_draw: what it costs that the trajectory is an expert's.
        epsilon_threshold: what the threshold's noise costs.
        epsilon_query: what all queries' noise costs.
        margin: by which the threshold is above theta.
        failure: bound on the probability that the margin does not suffice for one query.
        release_pool: trajectories a of each expert that draws may use.
        first_trajectory: the first of them.

    Raises:
        ConfigError: a value is out of range, or nothing can ever be released.
        UnsafeError: margin and failure do not fit together, or draws run short too often.

    Privacy:
        Unit: an expert. Relation: ``policy_level``. Sensitivity: one expert moves each count by at
        most 1, all in one direction, and counts never grow along a prefix. Event, of one draw:
        ``pure_dp`` with `epsilon`, and ``approximate_dp`` with epsilon 0 for `draw_failure` and for
        this draw's part of `overflow`. See the module's proof. Noise is exact: integers. Theta is
        enlarged by ``PREFIX_ROUNDING`` for probabilities that are rounded.

    Reference: Expert-level DP, algorithms 1 and 2; Lyu, Su and Li 2017, algorithm 7 and theorem 5
        (sparse vector technique for monotone queries).
    """

    variant: Variant
    experts: int
    minimum_probability: float
    draws: int
    max_length: int
    epsilon_draw: float
    epsilon_threshold: float
    epsilon_query: float
    margin: float
    failure: float
    release_pool: int
    first_trajectory: int = 0

    def __post_init__(self) -> None:
        for name in ("epsilon_draw", "epsilon_threshold", "epsilon_query", "margin"):
            check_positive(name, getattr(self, name))
        _check_public(self.experts, self.minimum_probability, self.draws, self.max_length)
        check_positive("release_pool", self.release_pool)
        needed = self.least_count / self.minimum_probability
        if needed > self.experts:
            raise ConfigError(
                f"minimum_probability x experts = {self.minimum_probability * self.experts:g} is"
                f" below c_min = {self.least_count:.4g}: no prefix could ever be stable; give the"
                " filter more epsilon or fewer draws, or host more experts"
            )
        queries = self.epsilon_threshold + self.epsilon_query
        wrong = wrong_answer(self.margin, self.threshold_scale, self.query_scale)
        most = math.exp(-queries) * -math.expm1(-self.epsilon)
        if not wrong <= self.failure * (1 + 1e-9) <= most:
            raise UnsafeError(
                f"failure={self.failure:g} must lie between the margin's {wrong:g} and {most:g}:"
                " build the mechanism with stable_prefixes"
            )

    @property
    def epsilon(self) -> float:
        """What one draw costs, failures aside (2 epsilon' of the paper)."""
        return self.epsilon_draw + self.epsilon_threshold + self.epsilon_query  # theorem 5.3

    @property
    def least_count(self) -> float:
        """The count c_min from which on one expert more or less hardly changes a draw."""
        return -1 / math.expm1(-self.epsilon_draw)  # algorithm 2, line 3

    @property
    def stable_count(self) -> float:
        """The count theta from which on every next action's count is at least c_min."""
        return self.least_count / self.minimum_probability * (1 + PREFIX_ROUNDING)  # line 3

    @property
    def threshold(self) -> float:
        """What noisy counts are compared with, before its own noise."""
        return self.stable_count + self.margin + _STEPS_OF_MARGIN * STEP

    @property
    def threshold_scale(self) -> float:
        """Scale of the threshold's Laplace noise, drawn once a trajectory."""
        return 1 / self.epsilon_threshold

    @property
    def query_scale(self) -> float:
        """Scale of the Laplace noise of each count."""
        return (1 if self.variant == "tight" else 2) / self.epsilon_query

    @property
    def draw_failure(self) -> float:
        """Probability that a draw releases a prefix with a count below theta, at most."""
        return self.failure * (1 if self.variant == "tight" else self.max_length)

    @property
    def overflow(self) -> float:
        """What draws that run short cost of delta, all together."""
        fewest = min(self.experts, math.ceil(self.stable_count)) - 1
        return overflow_cost(self.draws, self.release_pool, fewest, self.epsilon)

    def draw_events(self) -> tuple[Event, ...]:
        """Return what one of `draws` draws is charged as.

        Fewer draws run short less than in proportion, so what R of them are charged covers them.
        """
        pure = PureDpEvent(epsilon=self.epsilon, derivation=self._derivation())
        failures = (self.draw_failure, self.overflow / self.draws)
        return pure, *(ApproximateDpEvent(epsilon=0.0, delta=one) for one in failures if one > 0)

    def events(self, draws: int | None = None) -> tuple[Event, ...]:
        """Return what ``draws`` draws are charged as; all that are paid for by default."""
        count = self.draws if draws is None else draws
        return tuple(event.model_copy(update={"count": count}) for event in self.draw_events())

    def facts(self) -> dict[str, Any]:
        """Return the constants in the paper's terms, for a plan: public."""
        return {
            **self._derivation(),
            "least_count": self.least_count,
            "threshold": self.threshold,
            "draw_epsilon": self.epsilon,
            "draw_failure": self.draw_failure,
            "overflow": self.overflow,
        }

    def stable_steps(
        self, counts: NDArray[np.float64], source: NoiseSource, *, tag: int = 0
    ) -> int:
        """Return how many steps of a drawn trajectory may be released.

        Args:
            counts: ``(K,)``, of its prefixes of 1 to K steps; K at most ``max_length``. Sums over
                experts that are exact: see `ExpertHost.prefix_counts`.
            source: draws the threshold's noise once, and each query's.
            tag: number of the draw; matters to sources for tests alone.

        Returns:
            k: queries 1 to k were answered "above", and query k + 1 "below", if there is one.

        Raises:
            ConfigError: a trajectory longer than ``max_length``.
        """
        if len(counts) > self.max_length:
            raise ConfigError(f"counts has {len(counts)} steps, max_length is {self.max_length}")
        if len(counts) == 0:
            return 0
        threshold = source.add_discrete_laplace(
            np.array([math.ceil(self.threshold / STEP)], np.int64),
            scale=self.threshold_scale / STEP,
            tag=2 * tag,
        )
        noisy = source.add_discrete_laplace(
            np.floor(counts / STEP).astype(np.int64),
            scale=self.query_scale / STEP,
            tag=2 * tag + 1,
        )
        below = noisy < threshold  # algorithm 1, lines 2 and 3
        return int(below.argmax()) if below.any() else len(counts)

    def _derivation(self) -> dict[str, str | int | float]:
        return {
            "mechanism": STABLE_PREFIX,
            "variant": self.variant,
            "experts": self.experts,
            "minimum_probability": self.minimum_probability,
            "draws": self.draws,
            "max_length": self.max_length,
            "release_pool": self.release_pool,
            "first_trajectory": self.first_trajectory,
            "epsilon_draw": self.epsilon_draw,
            "epsilon_threshold": self.epsilon_threshold,
            "epsilon_query": self.epsilon_query,
            "stable_count": self.stable_count,
            "margin": self.margin,
            "threshold_scale": self.threshold_scale,
            "query_scale": self.query_scale,
            "failure": self.failure,
            "noise": "discrete_laplace",
            "step": STEP,
        }


def stable_prefixes(
    *,
    epsilon: float,
    delta: float,
    experts: int,
    minimum_probability: float,
    draws: int,
    max_length: int,
    variant: Variant = "tight",
    release_pool: int | None = None,
) -> StablePrefixes:
    """Return the filter with the lowest threshold that ``draws`` draws within a budget allow.

    ``tight`` finds the largest epsilon of a draw by privacy loss distributions, and the split
    between draw, threshold and queries that gives the lowest threshold. ``paper`` uses the printed
    constants; its certified cost is below ``epsilon``, as its composition is loose.

    Args:
        epsilon: what all draws may cost.
        delta: likewise, failures included.
        experts: number m, public.
        minimum_probability: p_min.
        draws: T, spare ones included.
        max_length: L.
        variant: ``tight`` or ``paper``.
        release_pool: trajectories of each expert that draws may use; None: as few as make running
            short cost at most `OVERFLOW_SHARE` of delta, and at least `SMALLEST_POOL`.

    Raises:
        ConfigError: a value is out of range, or nothing can ever be released.
        UnsafeError: more draws than the pool allows.

    Warns:
        UserWarning: the threshold is above ``experts``: hardly anything will be released.

    Reference: Expert-level DP, algorithm 2, lines 2 and 3.
    """
    check_positive("epsilon", epsilon)
    if check_delta("delta", delta) == 0:
        raise ConfigError("delta must be above 0: wrong answers are paid from it")
    _check_public(experts, minimum_probability, draws, max_length)
    costs, margin, failure = constants(
        variant, epsilon, delta, draws=draws, max_length=max_length, probability=minimum_probability
    )
    found = StablePrefixes(
        variant=variant,
        experts=experts,
        minimum_probability=minimum_probability,
        draws=draws,
        max_length=max_length,
        epsilon_draw=costs[0],
        epsilon_threshold=costs[1],
        epsilon_query=costs[2],
        margin=margin,
        failure=failure,
        release_pool=release_pool or SMALLEST_POOL,
    )
    needed = found
    while needed.overflow > OVERFLOW_SHARE * delta:
        needed = replace(needed, release_pool=needed.release_pool + 1)
    if release_pool is not None and needed is not found:
        raise UnsafeError(
            f"draws={draws} is more than release_pool={release_pool} allows: some expert would be"
            f" drawn more often too likely for delta={delta:g}; take a pool of"
            f" {needed.release_pool}, or fewer draws"
        )
    if found.threshold > experts:
        warnings.warn(
            f"the threshold {found.threshold:.0f} is above experts={experts}: hardly anything will"
            " be released; give the filter more epsilon or fewer draws",
            stacklevel=2,
        )
    return needed


def _check_public(experts: int, probability: float, draws: int, max_length: int) -> None:
    check_positive("experts", experts)
    check_positive("draws", draws)
    check_positive("max_length", max_length)
    if max_length > LONGEST_PREFIX:
        raise ConfigError(
            f"max_length={max_length} is above {LONGEST_PREFIX}: probabilities in float32 would be"
            " rounded by more than the threshold allows for"
        )
    if not 0 < probability <= 0.5:
        raise ConfigError(f"minimum_probability must lie in (0, 1/2], got {probability!r}")
