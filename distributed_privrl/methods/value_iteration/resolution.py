"""What can be seen through the noise: the noise of a count against the visits it may count."""

import math
from dataclasses import dataclass
from typing import Any

from distributed_privrl.environments import tabular_problem
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_sensitivity import gram_sensitivity
from distributed_privrl.methods.value_iteration.linear_settings import Statistic, noise_multipliers
from distributed_privrl.methods.value_iteration.problem import feature_map, tabular_facts
from distributed_privrl.methods.value_iteration.sensitivity import tabular_sensitivities
from distributed_privrl.privacy.units import Relation


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """Public facts on one release.

    Args:
        count_noise: standard deviation of the noise of a count, in visits.
        visits: most visits that all units together have in one release; None: units not declared.
        cells: what they are spread over; None: not known before the data are opened.
        cell: what a cell is.
    """

    count_noise: float
    visits: float | None
    cells: int | None
    cell: str

    @property
    def mean_visits(self) -> float | None:
        """Visits that a cell has on average, at most."""
        return None if self.visits is None or self.cells is None else self.visits / self.cells

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows."""
        numbers = {"most_visits": self.visits, "mean_visits": self.mean_visits}
        return {"count_noise": self.count_noise, **numbers, "resolution": str(self)}

    def __str__(self) -> str:
        noise = f"a count has noise of {self.count_noise:.4g} visits (standard deviation)"
        if self.mean_visits is not None:
            return f"{noise}; a {self.cell} has {self.mean_visits:.4g} on average, at most"
        return noise if self.visits is None else f"{noise}; there are {self.visits:.6g} at most"


def tabular_resolution(
    config: ApviConfig, count_noise: float, *, units: int | None = None
) -> Resolution:
    """Return that of DP-APVI's counts.

    Args:
        config: of the run.
        count_noise: see `tabular_count_noise`.
        units: how many there are, where they were counted; None: as declared.
    """
    model, data = config.model, config.data
    mass = model.max_trajectories_per_unit * (model.horizon if model.pooled else 1)
    if data.max_length is not None:
        mass = min(mass, data.max_length)
    known = _units(config, units)
    return Resolution(
        count_noise=count_noise,
        visits=None if known is None else known * mass,
        cells=_tabular_cells(config),
        cell="state and action",
    )


def _units(config: ApviConfig | VapviConfig, counted: int | None) -> int | None:
    declared = config.data.units
    return counted if counted is not None or not isinstance(declared, int) else declared


def tabular_count_noise(config: ApviConfig, noise_multiplier: float) -> float:
    """Return the standard deviation of a count's noise, in visits.

    Args:
        config: of the run.
        noise_multiplier: of a release.
    """
    model = config.model
    sensitivities = tabular_sensitivities(
        Relation(config.privacy.relation),
        horizon=model.horizon,
        max_trajectories_per_unit=model.max_trajectories_per_unit,
        estimate_reward=model.reward == "estimated",
        pooled=model.pooled,
        visits=model.visits,
        max_rows_per_unit=config.data.max_length,
    )
    if config.training.mechanism == "laplace":
        return math.sqrt(2) * noise_multiplier * sensitivities.l1
    return noise_multiplier * sensitivities.l2


def _tabular_cells(config: ApviConfig) -> int | None:
    if config.model.facts is not None and not config.model.facts.is_file():
        return None  # the report of a run may be written where its files are not
    facts, environment = tabular_facts(config.model, config.data), config.data.environment
    problem = tabular_problem(environment) if environment is not None else None
    if problem is not None:
        states, actions = problem.states, problem.actions
    elif facts.rewards is not None:
        states, actions = facts.rewards.shape[-2:]
    else:
        return None
    return actions * (states if facts.clusters is None else int(facts.clusters.max()) + 1)


def linear_resolution(
    config: VapviConfig, count_noise: float, *, units: int | None = None
) -> Resolution:
    """Return that of the diagonal of DP-VAPVI's Gram matrix, where a visit adds at most 1 in all.

    Args:
        config: of the run.
        count_noise: see `linear_count_noise`.
        units: as in `tabular_resolution`.
    """
    known, cap = _units(config, units), config.model.max_trajectories_per_unit
    half = 0.5 if config.halves else 1.0
    return Resolution(
        count_noise=count_noise,
        visits=None if known is None else half * known * cap,
        cells=_linear_cells(config),
        cell="feature",
    )


def linear_count_noise(config: VapviConfig, noise_multiplier: float) -> float:
    """Return the largest standard deviation of the noise on the Gram matrix's diagonal.

    Args:
        config: of the run.
        noise_multiplier: of a time step.
    """
    model = config.model
    multipliers = noise_multipliers(
        config.shares(),
        noise_multiplier,
        halves=config.halves,
        reuse_gram=model.reuse_gram,
        weighs=model.regression == "vapvi",
    )
    relation, cap = Relation(config.privacy.relation), model.max_trajectories_per_unit
    return multipliers[Statistic.GRAM] * gram_sensitivity(relation, max_trajectories_per_unit=cap)


def _linear_cells(config: VapviConfig) -> int | None:
    model, data = config.model, config.data
    problem = tabular_problem(data.environment) if data.environment is not None else None
    if isinstance(model.features, str) and problem is not None:
        return feature_map(model, data, problem.states, problem.actions).dimension
    if isinstance(model.features, str) or not model.features.is_file():
        return None
    return FeatureMap.load(model.features).dimension
