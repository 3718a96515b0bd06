"""The paper's constants of DP-VAPVI; those that work are the defaults of its configuration."""

import math
from typing import Literal

from distributed_privrl.core.checks import check_positive
from distributed_privrl.methods.value_iteration.linear_settings import Pessimism, Ridge


def published_ridge(penalty: float = 1.0) -> Ridge:
    """Return lambda I + E / 2 I, and nothing else: no projection, so that a shift may fail.

    E is the bound that the noise of all matrices keeps with probability 1 - failure, `noise_shift`;
    the paper's own constants of E = O~(sqrt(H d / rho)) are in an appendix.

    Args:
        penalty: lambda; the theorem lets it be anything below kappa.

    Reference: DP-VAPVI, algorithm 2, lines 2, 4 and 9.
    """
    return Ridge(projection=False, shift=True, penalty=penalty)


def theory_pessimism(
    method: Literal["vapvi", "pevi"],
    *,
    dimension: int,
    horizon: int,
    rho: float | None = None,
    coverage: float = 1.0,
) -> Pessimism:
    """Return the penalty of the theorems, with what their O~ hides (logarithms too) taken as 1.

    D = H^2 L / kappa + H^4 E sqrt(d) / kappa^(3/2) + 2 H^3 sqrt(d), L = sqrt(H^3 d / rho),
    E = sqrt(H d / rho); the last term alone without privacy. It exceeds H for all but huge K, and
    every value is then 0. PEVI has D = 0.

    Args:
        method: vapvi or pevi.
        dimension: d.
        horizon: H.
        rho: of zCDP; None: without privacy.
        coverage: kappa, smallest eigenvalue of E[phi phi^T] over the time steps; public or assumed.

    Raises:
        ConfigError: rho or coverage is not above zero.

    Reference: DP-VAPVI, theorem 4.1; Yin et al. 2022, theorem 3.2; Jin et al. 2021, theorem 4.4.
    """
    if method == "pevi":
        return Pessimism(constant=1.0)
    offset = 2 * horizon**3 * math.sqrt(dimension)
    if rho is not None:
        check_positive("rho", rho)
        kappa = check_positive("coverage", coverage)
        noise_of_sums = math.sqrt(horizon**3 * dimension / rho)
        noise_of_grams = math.sqrt(horizon * dimension / rho)
        offset += horizon**2 * noise_of_sums / kappa
        offset += horizon**4 * noise_of_grams * math.sqrt(dimension) / kappa**1.5
    return Pessimism(constant=1.0, offset=offset)  # D of algorithm 2, line 2
