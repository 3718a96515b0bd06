"""The plan of a stage: what it does and what it costs, from public facts alone."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from distributed_privrl.core.config import PrivacyConfig, RuntimeConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.verdict import Verdict


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """What a run will do and cost; public facts only.

    Args:
        units: number of units, declared or counted with noise.
        budget: what the rounds may cost; None without privacy.
        accountant: that calibrated it.
        trajectories: of each unit that the run may read: the first, and the one after the last
            (None: whatever follows); None: all, and nobody asks.
        spent: epsilon of what is released before the rounds.
        assumptions: what the guarantee assumes beside the noise source's own assumptions.
        details: what ``privrl plan`` shows of the method; public facts.
        verdict: what is left of the data under the noise; None: nobody has worked it out.
        effort: how much work it is, of the stages before it, too; None: nobody has worked it out.
    """

    units: UnitCount
    budget: PrivacyBudget | None
    accountant: Literal["pld", "rdp"]
    trajectories: tuple[int, int | None] | None = None
    spent: float = 0.0
    assumptions: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    verdict: Verdict | None = None
    effort: Effort | None = None

    def check_runtime(self, runtime: RuntimeConfig) -> None:  # noqa: B027
        """Refuse machines that it cannot be carried out on, before anything is charged.

        Raises:
            ConfigError: workers would have nothing to do.
        """

    @property
    @abstractmethod
    def rounds(self) -> int:
        """Planned rounds."""

    @property
    @abstractmethod
    def max_rounds(self) -> int:
        """Planned and spare rounds: what the ledger holds."""

    @property
    @abstractmethod
    def block_rounds(self) -> int:
        """Rounds reserved at once."""

    @property
    @abstractmethod
    def clip_norm(self) -> float | None:
        """L2 bound of a unit's vector, where there is one for all of them."""

    @abstractmethod
    def events(self, rounds: int) -> tuple[Event, ...]:
        """Return the events of the first ``rounds`` rounds that are reserved.

        Raises:
            ConfigError: the plan is not private.
        """

    @abstractmethod
    def charged(self, *, policies: str | None = None) -> dict[str, Any]:
        """Return what the ledger keeps of all planned and spare rounds: what each one releases.

        Args:
            policies: digest of the policies that the run hosts.

        Raises:
            ConfigError: the plan is not private.
        """

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units, rounds and cost."""

    @abstractmethod
    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""

    def epsilon(self, rounds: int, *, certified: bool = False) -> float:
        """Return the epsilon of ``rounds`` rounds and of what is released before them.

        It is at the plan's delta, and infinite without privacy.
        """
        return self.spent + self.epsilon_of_rounds(rounds, certified=certified)

    def epsilon_of_rounds(self, rounds: int, *, certified: bool = False) -> float:
        """Return the epsilon of ``rounds`` rounds alone."""
        if self.budget is None:
            return math.inf
        if rounds == 0:
            return 0.0
        return epsilon(
            self.events(rounds),
            delta=self.budget.delta,
            relation=self.budget.relation,
            accountant=self.accountant,
            certified=certified,
        )


def check_relation(privacy: PrivacyConfig) -> None:
    """Check that private rounds are accounted for under the run's relation.

    Raises:
        UnsafeError: the relation is ``replace_one``.
    """
    if privacy.epsilon is not None and Relation(privacy.relation) is Relation.REPLACE_ONE:
        raise UnsafeError(
            "privacy.relation=replace_one is not accounted for by private rounds: choose"
            " replace_with_null or add_or_remove"
        )


def left_for_rounds(epsilon: float, spent: float, keys: Sequence[str] = ()) -> float:
    """Return what is left of epsilon for the stages.

    Args:
        epsilon: of the run.
        spent: epsilon of what is released before them.
        keys: of the configuration, that ask for it.

    Raises:
        ConfigError: nothing is left.
    """
    if epsilon <= spent:
        named = f", for {' and '.join(keys)}" if keys else ""
        raise ConfigError(
            f"privacy.epsilon={epsilon:g} is used up by what is released before the rounds"
            f" ({spent:g} together{named}): raise it or lower them"
        )
    return epsilon - spent
