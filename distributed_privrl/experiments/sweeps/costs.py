"""What a sweep costs, before it starts: epsilon, minutes, disk; from public facts alone."""

from dataclasses import dataclass, field
from typing import Any

from distributed_privrl.core.config import NoisyCount, OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import plan_run, planned_events
from distributed_privrl.experiments.speeds import REFERENCE, stored_speeds, time_of
from distributed_privrl.experiments.sweeps.config import PrivateSelection, PublicSelection, Sweep
from distributed_privrl.experiments.sweeps.jobs import trial_world
from distributed_privrl.experiments.sweeps.points import Point, points_of, short_names
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.ledger.records import budget_line
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.encoders import foreseen_columns
from distributed_privrl.stages.plan import Plan
from distributed_privrl.stages.verdict import Grade

_NUMBER_BYTES = 4
_ASSUMED_COLUMNS = 20
_COPIES = 2.5
"""A release is kept as Parquet and for Minari, and its chunks until the run ends."""


@dataclass(frozen=True, kw_only=True)
class Pilot:
    """What the first trial takes on this machine, by short ones on public rows.

    Args:
        rows: that they were run on.
        fixed: CPU seconds of its run whatever rounds and steps are: reading, above all.
        growing: CPU seconds of its run that grow with them.
        judging: CPU seconds of its agents and its score.
        work: that its plan counts (`worked_seconds`); None: nobody counts it.
        spent: CPU seconds that the short ones took.
    """

    rows: str
    fixed: float
    growing: float
    judging: float
    work: float | None
    spent: float

    def minutes(self, work: float | None) -> float:
        """Return the minutes of a trial whose plan counts ``work``; None: as much."""
        times = work / self.work if work and self.work else 1.0
        return (self.fixed + self.growing * times + self.judging) / 60


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """A trial, as its plan has it.

    Args:
        values: of the axes, by short names.
        epsilon: that it may cost; None: it is not private.
        minutes: that it takes; None: nobody knows.
        verdict: of its plan; empty: it has none.
    """

    values: dict[str, Any]
    epsilon: float | None
    minutes: float | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class SweepCost:
    """What a sweep costs.

    Args:
        pays: who does.
        trials: those that are known; of a private selection none is.
        expected: number of trials, or its mean.
        epsilon: charged to the sensitive dataset in all; 0: nothing.
        delta: likewise.
        budget: the command that gives as much; empty: none is needed.
        minutes: of all trials, one after the other; None: nobody knows.
        gigabytes: on disk.
        pilot: that minutes and agents were measured by; None: minutes are estimates, agents left
            out.
    """

    pays: str
    trials: tuple[PlannedTrial, ...]
    expected: float
    epsilon: float
    delta: float
    budget: str
    minutes: float | None
    gigabytes: float
    pilot: Pilot | None = None
    notes: tuple[str, ...] = field(default=())

    def facts(self) -> dict[str, Any]:
        """Return all of it as JSON values."""
        pilot = None if self.pilot is None else vars(self.pilot)
        return {**vars(self), "trials": [vars(one) for one in self.trials], "pilot": pilot}


def cost_of(sweep: Sweep, store: DatasetStore, pilot: Pilot | None = None) -> SweepCost:
    """Return what a sweep costs; opens no data.

    Args:
        sweep: what is asked for.
        store: datasets, of which spaces alone are read; of a public sweep, the stand-in's.
        pilot: what a trial takes; None: it is estimated.

    Raises:
        ConfigError: a configuration is impossible, or what a private selection charges is not known
            before it.
        UnsafeError: no guarantee covers a configuration.
    """
    if isinstance(sweep.selection, PrivateSelection):
        return _of_private(sweep, sweep.selection, store, pilot)
    return _of_shown(sweep, store, pilot)


def worked_seconds(sweep: Sweep, store: DatasetStore) -> float | None:
    """Return what the plan of the first trial counts, as seconds; None: nobody knows.

    Args:
        sweep: whose trials are all seen.
        store: datasets, as of `cost_of`.
    """
    config = _as_planned(sweep, points_of(sweep)[0], store)
    return _worked(plan_run(config, store)) if isinstance(config.data.units, int) else None


def _of_shown(sweep: Sweep, store: DatasetStore, pilot: Pilot | None) -> SweepCost:
    public = isinstance(sweep.selection, PublicSelection)
    configs = [(point, _as_planned(sweep, point, store)) for point in points_of(sweep)]
    trials = [_planned(point, config, store, pilot) for point, config in configs]
    privacy = [config.privacy for _, config in configs]
    paid = [one for one in privacy if one.epsilon is not None and not public]
    total = sum(one.epsilon for one in paid if one.epsilon is not None)
    delta = sum(one.delta for one in paid)
    minutes = [one.minutes for one in trials]
    return SweepCost(
        pays=sweep.selection.pays,
        trials=tuple(trials),
        expected=len(trials),
        epsilon=total,
        delta=delta,
        budget=_budget(sweep.base, total, delta) if total else "",
        minutes=None if None in minutes else sum(one for one in minutes if one is not None),
        gigabytes=sum(_gigabytes(config, store) for _, config in configs),
        pilot=pilot,
    )


def _of_private(
    sweep: Sweep, selection: PrivateSelection, store: DatasetStore, pilot: Pilot | None
) -> SweepCost:
    config = sweep.base
    event = selection.count.event(planned_events(config, store))
    cost = epsilon(
        (event,),
        delta=config.privacy.delta,
        relation=Relation(config.privacy.relation),
        accountant="rdp",
    )
    plan = plan_run(config, store)
    minutes = _minutes(config, plan, pilot)
    return SweepCost(
        pays=selection.pays,
        trials=(),
        expected=selection.mean,
        epsilon=cost,
        delta=config.privacy.delta,
        budget=_budget(config, cost, config.privacy.delta),
        minutes=None if minutes is None else minutes * selection.mean,
        gigabytes=_gigabytes(config, store),
        pilot=pilot,
        notes=(
            f"one run costs {plan.epsilon(plan.max_rounds):.4g} by itself; the number of trials is"
            f" drawn, {selection.mean:g} on average, and nobody learns it",
        ),
    )


def _as_planned(sweep: Sweep, point: Point, store: DatasetStore) -> RunConfig:
    """Return a trial's configuration; in a public sweep the stand-in is its dataset by name."""
    config, selection = trial_world(sweep, point, store), sweep.selection
    if not isinstance(selection, PublicSelection):
        return config
    data = config.data.model_copy(update={"sensitive": selection.stand_in})
    return config.model_copy(update={"data": data})


def _planned(
    point: Point, config: RunConfig, store: DatasetStore, pilot: Pilot | None
) -> PlannedTrial:
    values = {short: point.values[path] for path, short in short_names(point.values).items()}
    if not isinstance(config.data.units, int):
        if config.data.units is None or not isinstance(config.data.units, NoisyCount):
            raise ConfigError("data.units is not declared: a sweep needs it, or {epsilon: E}")
        return PlannedTrial(
            values=values,
            epsilon=config.privacy.epsilon,
            minutes=None if pilot is None else pilot.minutes(None),
            verdict="",
        )
    plan = plan_run(config, store)
    grade = Grade.FINE if plan.verdict is None else plan.verdict.grade
    return PlannedTrial(
        values=values,
        epsilon=config.privacy.epsilon,
        minutes=_minutes(config, plan, pilot),
        verdict="" if plan.verdict is None else str(grade),
    )


def _minutes(config: RunConfig, plan: Plan, pilot: Pilot | None) -> float | None:
    """Return the minutes of a trial, agents left out where there is no pilot."""
    if pilot is not None:
        return pilot.minutes(_worked(plan))
    if plan.effort is None:
        return None
    return time_of(config, plan.effort, stored_speeds()).minutes


def _worked(plan: Plan) -> float | None:
    """Return the seconds of what a plan counts, without a process's start."""
    if plan.effort is None:
        return None
    speeds = stored_speeds() or REFERENCE
    return speeds.seconds(plan.effort) - speeds.start


def _gigabytes(config: RunConfig, store: DatasetStore) -> float:
    """Return about how much a trial keeps on disk."""
    if not isinstance(config.output, OutputConfig):
        return 0.01
    known = foreseen_columns(config.data, store)
    if known is None:
        return _COPIES * config.output.size * _ASSUMED_COLUMNS * _NUMBER_BYTES / 1e9
    observed, acted = part_width(known.observation_space), part_width(known.action_space)
    columns = 2 * observed + acted + 3
    return _COPIES * config.output.size * columns * _NUMBER_BYTES / 1e9


def _budget(config: RunConfig, epsilon: float, delta: float) -> str:
    data = config.data
    relation = Relation(config.privacy.relation)
    return budget_line(data.sensitive, data.unit, relation, (epsilon, delta))
