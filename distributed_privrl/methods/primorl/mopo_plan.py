"""What a run of MOPO would do: no noise, no cost, and nobody who expects privacy."""

from dataclasses import dataclass
from typing import Any

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.primorl.config import MopoConfig
from distributed_privrl.stages.charging import declared_units
from distributed_privrl.stages.round_plan import RoundPlan


def check_mopo(config: MopoConfig) -> None:
    """Check that nobody expects privacy.

    Raises:
        ConfigError: ``privacy.epsilon`` is a number.
    """
    if config.privacy.epsilon is not None:
        raise ConfigError(
            "mopo is the reference without privacy: set privacy.epsilon to null, or method to"
            " primorl"
        )


@dataclass(frozen=True, kw_only=True)
class MinibatchPlan(RoundPlan):
    """Gradient steps on shuffled rows: nothing is drawn by coins, and nothing is charged."""

    def check_runtime(self, runtime: RuntimeConfig) -> None:
        """Refuse nothing: rows are not divided into blocks."""

    @property
    def max_rounds(self) -> int:
        """Planned steps."""
        return self.rounds

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units and steps."""
        return {"batch_rows": self.config.expected_batch_size}

    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""
        return f"{self.config.expected_batch_size} rows a member and step"


def plan_minibatches(config: MopoConfig) -> MinibatchPlan:
    """Return the plan of MOPO; opens no data.

    Raises:
        ConfigError: the number of units is not declared.
    """
    return MinibatchPlan(
        units=declared_units(config.data),
        sampling_probability=1.0,
        config=config.training,
        budget=None,
        mechanism=None,
        accountant=config.privacy.accountant,
    )
