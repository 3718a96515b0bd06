"""What follows from a declaration alone: what is refused, what a run would do and cost."""

from collections.abc import Sequence
from typing import TypeVar

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.ledger.records import ROUNDING
from distributed_privrl.stages.charging import COUNT, declared_units
from distributed_privrl.stages.method import DeclaredMethod
from distributed_privrl.stages.plan import Plan, left_for_rounds

WorldT = TypeVar("WorldT")


def check_declared(method: DeclaredMethod[WorldT]) -> None:
    """Check all that a configuration alone tells, before units are counted; opens no data.

    Raises:
        ConfigError: settings do not fit together, or what is released before the stages uses up
            epsilon, or is asked for without one.
        UnsafeError: no guarantee covers what is asked for, or releases share a name.
    """
    method.check_config()
    check_names(method)
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


def check_names(method: DeclaredMethod[WorldT], stages: Sequence[str] = ()) -> None:
    """Check that whatever is charged has an entry ``<run>/<name>`` of its own.

    Args:
        method: whose first releases they are.
        stages: entries of its stages; empty: the run's own.

    Raises:
        UnsafeError: two share one, one is the count's, or a name is empty or has a slash.
    """
    first = [one.name for one in method.first_releases()]
    names = [*first, *stages]
    if len(set(names)) < len(names) or COUNT in names:
        raise UnsafeError(
            f"stages share an entry of the ledger ({[COUNT, *names]}): name each differently"
        )
    if "" in first or any("/" in name for name in names):
        raise UnsafeError(f"{names}: entries of the ledger have a name, without a slash")


def check_sum(name: str, limit: float, parts: Sequence[float]) -> None:
    """Check that what a method declares stays within what its run may cost.

    Raises:
        ConfigError: the parts add up to more.
    """
    if (total := sum(parts)) > limit * (1 + ROUNDING):
        raise ConfigError(
            f"what the method declares costs {name} {total:g}, privacy.{name} is {limit:g}: its"
            " stages must share what the first releases leave"
        )


def plan_declared(method: DeclaredMethod[WorldT]) -> Plan:
    """Return what a run would do and cost; opens no data. Of several stages, the last one's plan.

    Raises:
        ConfigError: as `check_declared`, or the number of units is not declared or too small.
        UnsafeError: as `check_declared`, or delta is not below 1/units.
    """
    check_declared(method)
    return method.stages(None, declared_units(method.config.data))[-1].plan
