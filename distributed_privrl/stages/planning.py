"""What follows from a declaration alone: what is refused, what a run would do and cost."""

from typing import TypeVar

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.stages.charging import declared_units
from distributed_privrl.stages.method import DeclaredMethod
from distributed_privrl.stages.plan import Plan, left_for_rounds

WorldT = TypeVar("WorldT")


def check_declared(method: DeclaredMethod[WorldT]) -> None:
    """Check all that a configuration alone tells, before units are counted; opens no data.

    Raises:
        ConfigError: settings do not fit together, or what is released before the stages uses up
            epsilon, or is asked for without one.
        UnsafeError: no guarantee covers what is asked for.
    """
    method.check_config()
    epsilon = method.config.privacy.epsilon
    if epsilon is not None:
        left_for_rounds(epsilon, method.spent, _keys(method))
    elif method.charged_before:
        raise ConfigError(
            f"privacy.epsilon is null, so nothing can be found with noise: give"
            f" {' and '.join(_keys(method))} public values, or leave them out"
        )


def _keys(method: DeclaredMethod[WorldT]) -> list[str]:
    """Return the configuration's keys that ask for what is found with noise."""
    named = {first.name: first.key for first in method.first_releases()}
    return [named.get(name, "data.units") for name in method.charged_before]


def plan_declared(method: DeclaredMethod[WorldT]) -> Plan:
    """Return what a run would do and cost; opens no data. Of several stages, the last one's plan.

    Raises:
        ConfigError: as `check_declared`, or the number of units is not declared or too small.
        UnsafeError: as `check_declared`, or delta is not below 1/units.
    """
    check_declared(method)
    return method.stages(None, declared_units(method.config.data))[-1].plan
