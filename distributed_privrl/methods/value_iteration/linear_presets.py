"""Constants of DP-VAPVI: those of the theory, and those that work."""

import dataclasses
import math
from typing import Literal

from distributed_privrl.core.checks import check_positive
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    Pessimism,
    Shares,
)


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
    every value is then 0: see `practical`. PEVI has D = 0.

    Args:
        method: vapvi or pevi.
        dimension: d.
        horizon: H.
        rho: of zCDP; None: without privacy.
        coverage: kappa, smallest eigenvalue of E[phi phi^T] over the time steps; public or assumed.

    Raises:
        ConfigError: rho or coverage is not above zero.

    Reference: paper 002, theorem 4.1; Yin et al. 2022, theorem 3.2; Jin et al. 2021, theorem 4.4.
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
    return Pessimism(constant=1.0, offset=offset)


def practical(settings: LinearSettings) -> LinearSettings:
    """Return ``settings`` with the choices that did best on the synthetic linear MDPs.

    Values are centred, which lowers the sensitivity of the targets from 2 (H - h + 1) to 1 and the
    spread of the next values; the ridge matches the noise; the variance statistics get little of
    the budget; no split; C = .3 (c = .001 for pevi) and D = 0. None of it weakens the guarantee.

    Args:
        settings: ``pool_grams`` helps further where the data's law hardly changes with time.
    """
    return dataclasses.replace(
        settings,
        split=False,
        centre_values=True,
        ridge=dataclasses.replace(settings.ridge, projection=True, noise_factor=2.0),
        shares=Shares(
            variance_gram=0.03,
            squares=0.03,
            values=0.03,
            gram=0.1 if settings.pool_grams else 0.3,
        ),
        pessimism=Pessimism(constant=0.3 if settings.method == "vapvi" else 0.001),
    )
