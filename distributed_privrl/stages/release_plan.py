"""The plan of noisy statistics: steps that each release statistics of all units."""

from dataclasses import dataclass
from typing import Any

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.events import Event, repeated
from distributed_privrl.stages.plan import Plan


@dataclass(frozen=True, kw_only=True)
class ReleasePlan(Plan):
    """Steps that each release statistics of all units; no sampling.

    Args:
        steps: planned steps.
        spare: further steps that are paid for, so that a crash does not end the run.
        step_events: what one step releases; empty without privacy.
        noise: the noise in words.
    """

    steps: int
    spare: int
    step_events: tuple[Event, ...] = ()
    noise: str = ""

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
        """Return the events of ``rounds`` steps.

        Raises:
            ConfigError: the plan is not private.
        """
        if not self.step_events:
            raise ConfigError("privacy.epsilon is null: a run without privacy has no event")
        return tuple(repeated(event, rounds) for event in self.step_events)

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units, rounds and cost."""
        return {**self.details, **({"noise": self.noise} if self.noise else {})}

    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""
        return self.noise or "exact statistics"
