"""Schedules: what each step of a stage releases, in the order in which the ledger reserves steps.

A schedule is public and fixed before the first draw. The n-th step that is reserved spends its n-th
entry, whether it is done or lost in a crash.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import (
    EVENTS,
    Event,
    ParallelEvent,
    RepeatAndSelectEvent,
    charged_rounds,
    repeated,
)

Schedule = tuple[tuple[Event, ...], ...]
"""The events of each step."""

SCHEDULE = "schedule"
"""Key of a schedule in what a ledger keeps of rounds."""
_SCHEDULES: TypeAdapter[Schedule] = TypeAdapter(Schedule)


def same_each_step(events: Sequence[Event], steps: int) -> Schedule:
    """Return the schedule of ``steps`` steps that all release ``events``."""
    return (tuple(events),) * steps


def merged(schedule: Iterable[Sequence[Event]]) -> tuple[Event, ...]:
    """Return the events of all steps, equal ones as one with their counts added.

    They keep the order in which they first appear. A unit is in the same branch of equal
    `ParallelEvent`s in every step, see `repeated`.

    Example:
        >>> from distributed_privrl.privacy.events import GaussianEvent
        >>> loud, quiet = GaussianEvent(noise_multiplier=2.0), GaussianEvent(noise_multiplier=9.0)
        >>> [(one.noise_multiplier, one.count) for one in merged([[quiet], [loud], [quiet]])]
        [(9.0, 2), (2.0, 1)]
    """
    distinct: list[Event] = []
    counts: list[int] = []
    for event in (event for step in schedule for event in step):
        one, count = _counted(event)
        if one not in distinct:
            distinct.append(one)
            counts.append(0)
        counts[distinct.index(one)] += count
    return tuple(repeated(one, count) for one, count in zip(distinct, counts, strict=True))


def _counted(event: Event) -> tuple[Event, int]:
    """Return an event that happens once, and how often it does; without a count, as it is."""
    if isinstance(event, ParallelEvent | RepeatAndSelectEvent):
        return event, 1
    return event.model_copy(update={"count": 1}), event.count


def charged_schedule(
    schedule: Schedule,
    *,
    trajectories: tuple[int, int | None] | None = None,
    policies: str | None = None,
) -> dict[str, Any]:
    """Return what a ledger keeps of a run with a schedule.

    Where all steps are alike it is `charged_rounds` of one of them.

    Args:
        schedule: of all planned and spare steps, at least one.
        trajectories: see `charged_rounds`.
        policies: see `charged_rounds`.
    """
    first = schedule[0]
    kept = charged_rounds(first, trajectories=trajectories, policies=policies)
    if any(step != first for step in schedule):
        del kept["events"]
        kept[SCHEDULE] = _SCHEDULES.dump_python(schedule, mode="json")
    return kept


def reserved_events(kept: Mapping[str, Any], rounds: int) -> tuple[Event, ...]:
    """Return the events of the first ``rounds`` rounds of which a ledger keeps ``kept``.

    Args:
        kept: `charged_rounds`, or `charged_schedule`.
        rounds: reserved so far.

    Raises:
        ConfigError: the schedule has fewer steps.
    """
    if SCHEDULE not in kept:
        events = EVENTS.validate_python(kept["events"])
        return tuple(repeated(event, rounds) for event in merged([events]))
    return first_events(_SCHEDULES.validate_python(kept[SCHEDULE]), rounds)


def first_events(schedule: Schedule, rounds: int) -> tuple[Event, ...]:
    """Return the merged events of the first ``rounds`` steps.

    Raises:
        ConfigError: the schedule has fewer.
    """
    if rounds > len(schedule):
        raise ConfigError(f"the schedule has {len(schedule)} steps, {rounds} are asked for")
    return merged(schedule[:rounds])


def charged_events(kept: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return all events that an entry of a ledger keeps, of a release or of any round, as JSON."""
    if SCHEDULE in kept:
        return [event for step in kept[SCHEDULE] for event in step]
    return list(kept.get("events", (kept,)))
