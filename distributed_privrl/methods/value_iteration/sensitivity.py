"""How far one unit moves the counts of DP-APVI, for each relation."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.value_iteration.step_noise import StepNoise
from distributed_privrl.privacy.units import Relation

Visits: TypeAlias = Literal["every", "first"]


@dataclass(frozen=True, kw_only=True)
class TabularSensitivities:
    """Sensitivities of one release of counts, and how many releases a run makes.

    Args:
        l1: largest L1 distance between the vectors of neighbouring datasets.
        l2: largest L2 distance.
        releases: vectors released: one a time step, or one in all when steps are pooled.
    """

    l1: float
    l2: float
    releases: int

    def gaussian(self, rho: float) -> StepNoise:
        """Return noise for ``rho``-zCDP in all: variance = releases l2^2 / (2 rho).

        Raises:
            ConfigError: ``rho`` is not above zero.

        Reference: DP-VAPVI, lemma 2.6 and equation 2 (sigma^2 = 2 H / rho).
        """
        return StepNoise(
            noise_multiplier=math.sqrt(self.releases / (2 * check_positive("rho", rho)))
        )

    def laplace(self, epsilon: float) -> StepNoise:
        """Return noise for ``epsilon``-DP in all: scale = releases l1 / epsilon.

        Raises:
            ConfigError: ``epsilon`` is not above zero.

        Reference: DP-VAPVI, section 3, "Apply Laplace Mechanism" (scale 4 H / epsilon).
        """
        noise_multiplier = self.releases / check_positive("epsilon", epsilon)
        return StepNoise(noise_multiplier=noise_multiplier, law="laplace")


def tabular_sensitivities(
    relation: Relation,
    *,
    horizon: int,
    max_trajectories_per_unit: int = 1,
    estimate_reward: bool = False,
    pooled: bool = False,
    visits: Visits = "every",
    max_rows_per_unit: int | None = None,
) -> TabularSensitivities:
    """Return the sensitivities of (counts of pairs, counts of successors[, reward sums]).

    A unit adds a non-negative vector u of L1 norm at most M to each family: at time step h one
    cell a trajectory, so M = m; pooled over time steps, M = m H; and never more than its rows, so
    that M <= L. No cell gets more than B: M where every visit counts; m where a trajectory's first
    visit to a pair counts alone, which adds at most 1 to one successor of the pair, to the pair
    and to its reward sum. ``|u|_2^2`` is convex in u, hence largest where as many cells as possible
    hold B: with M = q B + r, r < B, it is at most N = q B^2 + r^2. That is M^2 for every visit and
    m^2 H for first ones (L aside), reached by m trajectories of the same H pairs. Adding or
    removing the unit, or making it null, moves a family by |u|: M in L1, N in squared L2.
    Replacing u by v moves it by |u - v|, at most 2 M in L1 and |u|^2 + |v|^2 <= 2 N in squared L2
    (u and v have no negative entries), reached by two units in different cells. One pair of units
    reaches the bound in all families at once.

    Args:
        relation: ``replace_one``, ``add_or_remove`` or ``replace_with_null``.
        horizon: H, time steps.
        max_trajectories_per_unit: m.
        estimate_reward: sums of rewards, scaled to [0, 1], are a third family.
        pooled: counts are summed over time steps and released once.
        visits: ``every``, or ``first``: a trajectory's first to each pair of state and action.
        max_rows_per_unit: L, of all trajectories of a unit together; None: no cap.

    Raises:
        ConfigError: a number is not above zero, or visits are neither.
        UnsafeError: a relation for which nothing is derived.

    Privacy:
        Unit: whatever owns trajectories of which at most m, and at most L rows, count. Sensitivity:
        as derived above. Event: none; `TabularSensitivities.gaussian` and ``laplace`` make the
        releases.

    Reference: DP-VAPVI, theorem 3.3: with two families, replace-one and m = 1 the H vectors of
    one run have squared L2 sensitivity 4 H and L1 sensitivity 4 H in total.
    """
    check_positive("horizon", horizon)
    check_positive("max_trajectories_per_unit", max_trajectories_per_unit)
    if visits not in ("every", "first"):
        raise ConfigError(f"visits must be every or first, got {visits!r}")
    if relation is Relation.POLICY_LEVEL:
        raise UnsafeError(
            "relation='policy_level' protects experts, not trajectories: use replace_one,"
            " add_or_remove or replace_with_null"
        )
    mass = max_trajectories_per_unit * (horizon if pooled else 1)
    if max_rows_per_unit is not None:
        mass = min(mass, int(check_positive("max_rows_per_unit", max_rows_per_unit)))
    cell = mass if visits == "every" else min(mass, max_trajectories_per_unit)
    full, rest = divmod(mass, cell)
    squared = full * cell**2 + rest**2
    moved = relation.contributions * (3 if estimate_reward else 2)
    return TabularSensitivities(
        l1=float(moved * mass), l2=math.sqrt(moved * squared), releases=1 if pooled else horizon
    )
