"""The plan of noisy statistics: steps that each release statistics of all units."""

from dataclasses import dataclass
from typing import Any

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.schedules import Schedule, charged_schedule, first_events
from distributed_privrl.stages.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ReleasePlan(Plan):
    """Steps that each release statistics of all units; no sampling.

    Args:
        steps: planned steps.
        spare: further steps that are paid for, so that a crash does not end the run.
        schedule: the events of each step that may be reserved, planned or spare, in the order in
            which the ledger reserves them (`same_each_step` where they do not differ); empty
            without privacy. A step that is lost in a crash has spent its entry, and the next one
            takes the next.
        noise: the noise in words.

    Raises:
        UnsafeError: a budget and a schedule that does not charge every planned and spare step, or a
            schedule without a budget.
    """

    steps: int
    spare: int
    schedule: Schedule = ()
    noise: str = ""

    def __post_init__(self) -> None:
        entries = 0 if self.budget is None else self.max_rounds
        if len(self.schedule) != entries or not all(self.schedule):
            raise UnsafeError(
                f"schedule must charge each of {entries} planned and spare steps (none without a"
                f" budget), and has {sum(map(bool, self.schedule))}"
            )

    @property
    def rounds(self) -> int:
        """Planned steps."""
        return self.steps

    @property
    def max_rounds(self) -> int:
        """Planned and spare steps: what the ledger holds."""
        return self.steps + self.spare

    @property
    def block_rounds(self) -> int:
        """Each step is reserved on its own."""
        return 1

    @property
    def clip_norm(self) -> float | None:
        """A step's statistics have sensitivities of their own."""
        return None

    def events(self, rounds: int) -> tuple[Event, ...]:
        """Return the events of the first ``rounds`` steps that are reserved, equal ones as one.

        Raises:
            ConfigError: the plan is not private, or has fewer steps.
        """
        if not self.schedule:
            raise ConfigError("privacy.epsilon is null: a run without privacy has no event")
        return first_events(self.schedule, rounds)

    def charged(self, *, policies: str | None = None) -> dict[str, Any]:
        """Return what the ledger keeps: the schedule.

        Raises:
            ConfigError: the plan is not private, or no certificate could state its events.
        """
        self.events(self.max_rounds)  # refused here, and not when they are drawn
        return charged_schedule(self.schedule, trajectories=self.trajectories, policies=policies)

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units, rounds and cost."""
        return {**self.details, **({"noise": self.noise} if self.noise else {})}

    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""
        return self.noise or "exact statistics"
