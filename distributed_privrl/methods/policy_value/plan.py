"""What a run releases and costs, and what its noise leaves, from public facts alone."""

import math
from dataclasses import dataclass

from distributed_privrl.agents.options import settings_named
from distributed_privrl.agents.work import discrete_work
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.spaces import Space, part_width
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.methods.policy_value.sums import STEPS, clip_range, release_of_sums
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import TRANSITION, PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.plan import left_for_rounds
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.verdict import Grade, Verdict

HOPELESS_NOISE, LIMITED_NOISE = 0.5, 0.05
"""Deviation of the noise of a mean, as a share of the width of returns."""

STEPS_OF_UNIT = 3
"""Steps of a small network's training that take as long as a unit; measured with three stays."""


@dataclass(frozen=True, kw_only=True)
class ValuePlan(ReleasePlan):
    """One release of four sums.

    Args:
        release: what draws its noise; None without privacy.
    """

    release: DiscreteLaplaceRelease | None

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = () if self.release is None else ((self.release.event,),)
        if drawn != self.schedule:
            raise UnsafeError("schedule must charge what release draws")


def check_config(config: PolicyValueConfig) -> None:
    """Check units and keys against what a value needs, and the agent that is trained.

    Raises:
        ConfigError: a unit or key that has no meaning here; or no agent is called that, or an
            option of it is wrong.
    """
    if config.data.unit == TRANSITION:
        raise ConfigError(
            "data.unit=transition: what a policy earns is told by whole episodes; set data.unit to"
            " trajectory or to a column such as patient_id"
        )
    if config.data.bounds is not None or config.data.public:
        raise ConfigError(
            "data.bounds and data.public have no meaning for policy_value: leave them out;"
            " model.returns bounds returns, model.release names what the agent learns from"
        )
    if config.privacy.accountant != "pld":
        raise ConfigError(
            f"privacy.accountant={config.privacy.accountant}: one release is accounted exactly;"
            " leave it out"
        )
    settings_named(config.training.trainer, config.training.options)


def value_plan(config: PolicyValueConfig, units: UnitCount, *, spent: float) -> ValuePlan:
    """Return the plan for ``units``.

    Args:
        config: of the run.
        units: how many there are.
        spent: epsilon of what is released before.

    Raises:
        ConfigError: nothing is left of epsilon.
    """
    model, privacy = config.model, config.privacy
    details = {
        "trainer": config.training.trainer,
        "release": model.release,
        "returns": list(model.returns),
        "horizon": model.horizon,
    }
    if privacy.epsilon is None:
        return ValuePlan(
            units=units,
            budget=None,
            accountant="pld",
            steps=1,
            spare=0,
            details=details,
            release=None,
        )
    relation = Relation(privacy.relation)
    budget = PrivacyBudget(
        epsilon=left_for_rounds(privacy.epsilon, spent),
        delta=privacy.delta,
        unit=config.data.unit,
        relation=relation,
    )
    release = release_of_sums(budget.epsilon, relation)
    noise = noise_of_mean(release, units.value, model.returns)
    return ValuePlan(
        units=units,
        budget=budget,
        spent=spent,
        accountant="pld",
        steps=1,
        spare=0,
        schedule=same_each_step([release.event], 1),
        details={**details, "noise_of_value": float(f"{noise:.4g}")},
        noise=f"Laplace integers, deviation {noise:.4g} of a mean return",
        verdict=verdict_of(noise, model.returns),
        release=release,
    )


def plan_effort(config: PolicyValueConfig, units: int, spaces: tuple[Space, Space]) -> Effort:
    """Return the work of a run: of its agent's training, and of one pass over the units.

    How many rows were released, and a unit has, is not asked: they count little beside.

    Args:
        config: of the run.
        units: how many there are.
        spaces: of observations and actions.
    """
    training = config.training
    settings = settings_named(training.trainer, training.options)
    widths = (part_width(space) for space in spaces)
    of_step = discrete_work(training.trainer, settings, *widths)
    passes = Effort(learned_steps=STEPS_OF_UNIT * units)
    return Effort.of_steps(training.steps, settings.batch_size, of_step) + passes


def deviation_of(release: DiscreteLaplaceRelease) -> float:
    """Return the standard deviation of the noise of a sum, from above."""
    return math.sqrt(2) * release.scale


def noise_of_mean(
    release: DiscreteLaplaceRelease, units: int, returns: tuple[float, float]
) -> float:
    """Return the standard deviation of the noise of a mean return."""
    _, half = clip_range(returns)
    return half * deviation_of(release) / (units * STEPS)


def verdict_of(noise: float, returns: tuple[float, float]) -> Verdict:
    """Return what the noise leaves of a value.

    Args:
        noise: deviation of a mean return.
        returns: their public bounds.
    """
    low, high = returns
    share = noise / (high - low)
    reason = f"the noise of a mean return is {noise:.3g}, {share:.2%} of what returns may differ by"
    named = {"noise": noise, "noise_share": share}
    advice = "raise privacy.epsilon, or declare narrower model.returns if they are public"
    if share > HOPELESS_NOISE:
        return Verdict(grade=Grade.HOPELESS, reason=reason, advice=advice, figures=named)
    if share > LIMITED_NOISE:
        return Verdict(grade=Grade.LIMITED, reason=reason, advice=advice, figures=named)
    return Verdict(grade=Grade.FINE, reason=reason, figures=named)
