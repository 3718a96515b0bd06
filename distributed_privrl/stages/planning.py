"""What follows from a declaration alone: what is refused, what a run would do and cost."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.ledger.records import ROUNDING
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.asked_measures import check_measures
from distributed_privrl.stages.charging import COUNT, declared_units
from distributed_privrl.stages.method import DeclaredMethod, StagePlan
from distributed_privrl.stages.plan import Plan, left_for_rounds

WorldT = TypeVar("WorldT")
UNIT_COUNTS = (100, 1_000, 10_000, 100_000, 1_000_000)
"""Numbers of units that a plan is made for where none is declared."""


@dataclass(frozen=True, kw_only=True)
class PlanOfUnits:
    """What a run would be with so many units.

    Args:
        units: how many there might be.
        plan: of the run's last stage; None: it would be refused.
        refused: why.
    """

    units: int
    plan: Plan | None
    refused: str = ""


def check_declared(method: DeclaredMethod[WorldT]) -> None:
    """Check all that a configuration alone tells, before units are counted; opens no data.

    Raises:
        ConfigError: settings do not fit together, or what is released before the stages uses up
            epsilon, or is asked for without one.
        UnsafeError: no guarantee covers what is asked for, or releases share a name.
    """
    method.check_config()
    check_measures(method.config)
    _check_names(method)
    epsilon = method.config.privacy.epsilon
    if epsilon is not None:
        left_for_rounds(epsilon, method.spent, _keys(method))
    elif method.charged_before:
        raise ConfigError(
            f"privacy.epsilon is null, so nothing can be found with noise: give"
            f" {' and '.join(_keys(method))} public values, or leave them out"
        )


def _check_here(method: DeclaredMethod[WorldT], store: DatasetStore | None) -> None:
    """Check a declaration, and what it asks of the sensitive dataset's columns, if that is here.

    Args:
        method: that declares a run.
        store: of its datasets (default: Minari's folder).

    Raises:
        ConfigError: as `check_declared`, or the dataset knows no such unit, or no column that the
            public report's counts are of.
        UnsafeError: as `check_declared`.

    Privacy: columns' names are declared, and public; see `DatasetInfo`. No row is read.
    """
    check_declared(method)
    here, data = DatasetStore() if store is None else store, method.config.data
    if here.holds(data.sensitive):
        here.check_unit(data.sensitive, data.unit)
        check_measures(method.config, here)


def _keys(method: DeclaredMethod[WorldT]) -> list[str]:
    """Return the configuration's keys that ask for what is found with noise."""
    named = {first.name: first.key for first in method.all_first_releases()}
    return [named.get(name, "data.units") for name in method.charged_before]


def _check_names(method: DeclaredMethod[WorldT], stages: Sequence[str] = ()) -> None:
    """Check that whatever is charged has an entry ``<run>/<name>`` of its own.

    Args:
        method: whose first releases they are.
        stages: entries of its stages; empty: the run's own.

    Raises:
        UnsafeError: two share one, one is the count's, or a name is empty or has a slash.
    """
    first = [one.name for one in method.all_first_releases()]
    names = [*first, *stages]
    if len(set(names)) < len(names) or COUNT in names:
        raise UnsafeError(
            f"stages share an entry of the ledger ({[COUNT, *names]}): name each differently"
        )
    if "" in first or any("/" in name for name in names):
        raise UnsafeError(f"{names}: entries of the ledger have a name, without a slash")


def _check_sum(name: str, limit: float, parts: Sequence[float]) -> None:
    """Check that what a method declares stays within what its run may cost.

    Raises:
        ConfigError: the parts add up to more.
    """
    if (total := sum(parts)) > limit * (1 + ROUNDING):
        raise ConfigError(
            f"what the method declares costs {name} {total:g}, privacy.{name} is {limit:g}: its"
            " stages must share what the first releases leave"
        )


def declared_stages(
    method: DeclaredMethod[WorldT], world: WorldT | None, units: UnitCount
) -> tuple[StagePlan, ...]:
    """Return the stages, each with an entry of its own, and with a budget if the run is private.

    Args:
        method: that declares them.
        world: as in `DeclaredMethod.stages`.
        units: how many there are.

    Raises:
        ConfigError: they cost more than the run may, or there are too many workers.
        UnsafeError: a stage would draw under nothing that was charged, or under another's charge.
    """
    return _checked(method, method.stages(world, units))


def _checked(
    method: DeclaredMethod[WorldT], declared: Sequence[StagePlan]
) -> tuple[StagePlan, ...]:
    stages, privacy = tuple(declared), method.config.privacy
    private = privacy.epsilon is not None
    for stage in stages:
        stage.plan.check_runtime(method.config.runtime)
        if (stage.plan.budget is not None) != private:
            raise UnsafeError(
                f"stage {stage.name} has {'no' if private else 'a'} budget, and privacy.epsilon is"
                f" {'a number' if private else 'null'}: plan all stages with privacy, or none"
            )
    _check_names(method, [stage.entry for stage in stages])
    if privacy.epsilon is not None:
        budgets = [one.plan.budget for one in stages if one.plan.budget is not None]
        _check_sum("epsilon", privacy.epsilon, [method.spent, *(one.epsilon for one in budgets)])
        _check_sum("delta", privacy.delta, [one.delta for one in budgets])
    return stages


def plan_declared(method: DeclaredMethod[WorldT], store: DatasetStore | None = None) -> Plan:
    """Return what a run would do and cost; opens no data. Of several stages, the last one's plan.

    Args:
        method: that declares them.
        store: datasets, of which a plan reads the declared spaces and columns, if they are here
            (default: Minari's folder).

    Raises:
        ConfigError: as `check_declared` and `declared_stages`, the sensitive dataset is here and
            knows no such unit, or the number of units is not declared or too small.
        UnsafeError: as `check_declared` and `declared_stages`, delta is not below 1/units, or there
            is no stage.
    """
    _check_here(method, store)
    return _foreseen(method, store, declared_units(method.config.data))


def planned_events(
    method: DeclaredMethod[WorldT], store: DatasetStore | None = None
) -> tuple[Event, ...]:
    """Return all events that a run may be charged for, spare rounds among them; opens no data.

    Args:
        method: that declares the run.
        store: as in `plan_declared`.

    Raises:
        ConfigError: as `plan_declared`; or the run is not private, or finds something with noise
            before its stages, whose events are known only then.
        UnsafeError: as `plan_declared`.
    """
    _check_here(method, store)
    if method.charged_before:
        raise ConfigError(
            f"{' and '.join(_keys(method))}: found with noise, so what a run costs is not known"
            " before it: give public values, or leave them out"
        )
    units = declared_units(method.config.data)
    stages = _checked(method, method.foreseen_stages(store, units))
    return tuple(event for one in stages for event in one.plan.events(one.plan.max_rounds))


def plans_by_units(
    method: DeclaredMethod[WorldT],
    store: DatasetStore | None = None,
    counts: Sequence[int] = UNIT_COUNTS,
) -> tuple[PlanOfUnits, ...]:
    """Return what a run would be for several numbers of units, none of them declared.

    Args:
        method: that declares the run.
        store: as in `plan_declared`.
        counts: numbers of units.

    Raises:
        ConfigError: as `check_declared`, or the sensitive dataset is here and knows no such unit.
        UnsafeError: as `check_declared`.

    Privacy: the numbers are given, and no dataset is counted.
    """
    _check_here(method, store)
    found = []
    for count in counts:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of a delta that is not chosen yet
                plan = _foreseen(method, store, UnitCount(value=count, source="declared"))
        except (ConfigError, UnsafeError) as error:
            found.append(PlanOfUnits(units=count, plan=None, refused=str(error)))
        else:
            found.append(PlanOfUnits(units=count, plan=plan))
    return tuple(found)


def _foreseen(method: DeclaredMethod[WorldT], store: DatasetStore | None, units: UnitCount) -> Plan:
    stages = _checked(method, method.foreseen_stages(store, units))
    if not stages:
        raise UnsafeError(
            f"method {method.config.method} declares no stage: it would release nothing"
        )
    return stages[-1].plan
