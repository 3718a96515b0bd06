"""The plan of private rounds: Poisson-sampled clipped sums, calibrated to a budget."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import Field

from distributed_privrl.core.config import (
    PositiveFloat,
    PositiveInt,
    PrivacyConfig,
    RuntimeConfig,
    StrictModel,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.calibration import (
    SUM_SLACK,
    PrivateRound,
    calibrate_private_round,
)
from distributed_privrl.privacy.events import Event, charged_rounds
from distributed_privrl.privacy.sampling import slots_of_a_block
from distributed_privrl.privacy.units import (
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.plan import Plan, left_for_rounds

UNITS_A_BLOCK = 128
FEWEST_BLOCKS, MOST_BLOCKS = 4, 64
_CERTAINLY = 7  # a count's margin fails with probability 1e-3, seven of them with 1e-21
LARGEST_BLOCK = 500
SPARE_BLOCKS = 2


class RoundsConfig(StrictModel):
    """The private rounds of a run."""

    ROWS_AT_ONCE: ClassVar[int] = 512
    """Of a micro-batch, where ``runtime.micro_batch_rows`` does not say."""

    rounds: PositiveInt = Field(default=2000, description="private rounds (T)")
    expected_batch_size: PositiveInt = Field(
        default=4096, description="units that take part in a round on average (q x units)"
    )
    clip_norm: PositiveFloat = Field(default=1.0, description="L2 bound of a unit's vector (C)")
    spare: int | None = Field(
        default=None,
        ge=0,
        description="rounds paid for so that a crash does not end the run (default: two blocks)",
    )
    block_rounds: PositiveInt | None = Field(
        default=None, description="rounds reserved at once (default: a fortieth, at most 500)"
    )
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-3, schedule="cosine")

    @property
    def gradients_a_unit(self) -> int:
        """How often a unit's gradient is computed in a round."""
        return 1

    def rows_at_once(self, runtime: RuntimeConfig) -> int:
        """Return the rows of a micro-batch: as configured, else the method's own number."""
        return runtime.micro_batch_rows or self.ROWS_AT_ONCE

    @property
    def block(self) -> int:
        """Rounds reserved at once."""
        return self.block_rounds or min(LARGEST_BLOCK, math.ceil(self.rounds / 40))

    @property
    def spare_rounds(self) -> int:
        """Rounds paid for beyond the planned ones."""
        return SPARE_BLOCKS * self.block if self.spare is None else self.spare


@dataclass(frozen=True, kw_only=True)
class RoundPlan(Plan):
    """Private rounds of Poisson-sampled clipped sums.

    Args:
        sampling_probability: of each unit, each round (q).
        config: the rounds.
        mechanism: the calibrated round; None without privacy.
        curiosity_rate: share of an expected batch that is the model's own samples, not units.
        after: what comes before the rounds, in words that end the summary.
    """

    sampling_probability: float
    config: RoundsConfig
    mechanism: PrivateRound | None
    curiosity_rate: float = 0.0
    after: str = ""

    @property
    def rounds(self) -> int:
        """Planned rounds."""
        return self.config.rounds

    @property
    def max_rounds(self) -> int:
        """Planned and spare rounds: what the ledger holds."""
        return self.config.rounds + self.config.spare_rounds

    @property
    def block_rounds(self) -> int:
        """Rounds reserved at once."""
        return self.config.block

    @property
    def clip_norm(self) -> float | None:
        """L2 bound of a unit's vector (C); None without privacy."""
        return None if self.mechanism is None else self.mechanism.clip_norm

    def check_runtime(self, runtime: RuntimeConfig) -> None:
        """Refuse more workers than there are blocks; see `blocks_for`."""
        self.blocks_for(runtime)

    def blocks_for(self, runtime: RuntimeConfig) -> int:
        """Return how many blocks slots are divided into: as configured, else by the batch.

        It does not depend on how many workers there are, so that parameters do not either.

        Raises:
            ConfigError: there are more workers than blocks.
        """
        by_batch = self.config.expected_batch_size // UNITS_A_BLOCK
        blocks = runtime.blocks or min(max(by_batch, FEWEST_BLOCKS), MOST_BLOCKS)
        if runtime.most_workers > blocks:
            raise ConfigError(
                f"runtime.workers={runtime.most_workers} is above the {blocks} blocks that units"
                " are divided into: lower it, or set runtime.blocks to as many or more"
            )
        return blocks

    def least_slots(self, blocks: int) -> int:
        """Return how many slots each block has at least, empty ones included.

        Where a unit may be removed, an expert's policy too, an empty slot takes its place; where it
        becomes null, it keeps its own.
        """
        if self.mechanism is None or self.mechanism.relation is Relation.REPLACE_WITH_NULL:
            return 0
        return slots_of_a_block(self.units.value + _CERTAINLY * self.units.margin, blocks)

    @property
    def expected_units(self) -> float:
        """The fixed public denominator of a round: units on average, and samples of the model."""
        return float(self.config.expected_batch_size)

    @property
    def skip_trajectories(self) -> int:
        """First trajectories of each unit that the rounds do not read."""
        return 0 if self.trajectories is None else self.trajectories[0]

    @property
    def samples(self) -> int:
        """The model's own samples that take part in a round, after the noise."""
        return round(self.curiosity_rate * self.config.expected_batch_size)

    def events(self, rounds: int) -> tuple[Event, ...]:
        """Return the event of ``rounds`` rounds.

        Raises:
            ConfigError: the plan is not private.
        """
        if self.mechanism is None:
            raise ConfigError("privacy.epsilon is null: a run without privacy has no event")
        return (self.mechanism.event(rounds),)

    def charged(self, *, policies: str | None = None) -> dict[str, Any]:
        """Return what the ledger keeps: all rounds release the same.

        Raises:
            ConfigError: the plan is not private.
        """
        return charged_rounds(self.events(1), trajectories=self.trajectories, policies=policies)

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units, rounds and cost."""
        config = self.config
        facts = {
            "expected_batch_size": config.expected_batch_size,
            "sampling_probability": self.sampling_probability,
            "unit_gradients": config.rounds * config.expected_batch_size * config.gradients_a_unit,
        }
        if self.curiosity_rate:
            facts["curiosity_rate"] = self.curiosity_rate
        if self.mechanism is not None:
            facts["clip_norm"] = self.mechanism.clip_norm
            facts["noise_multiplier"] = self.mechanism.noise_multiplier
        return {**facts, **self.details}

    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""
        mechanism = self.mechanism
        noise = "" if mechanism is None else f", noise multiplier {mechanism.noise_multiplier:.4g}"
        units = round((1 - self.curiosity_rate) * self.config.expected_batch_size)
        return f"on average {units} units a round{noise}{self.after}"


def make_plan(
    privacy: PrivacyConfig,
    rounds: RoundsConfig,
    *,
    unit: str,
    units: UnitCount,
    spent: float = 0.0,
    curiosity_rate: float = 0.0,
    sum_slack: float = SUM_SLACK,
) -> RoundPlan:
    """Calibrate the noise so that planned and spare rounds together stay within the budget.

    Args:
        privacy: the run's bound on (epsilon, delta).
        rounds: the run's rounds.
        unit: what one person contributes.
        units: how many there are.
        spent: epsilon that the run spends elsewhere (`DeclaredMethod.spent`).
        curiosity_rate: share of an expected batch that is the model's own samples (p): units are
            sampled, and charged, with (1 - p) times the probability.
        sum_slack: see `PrivateRound`; 0 for updates that round each unit's vector by itself.

    Raises:
        ConfigError: the expected batch is larger than the number of units, or epsilon is used up.
        UnsafeError: delta is not below 1/units.
    """
    probability = (1 - curiosity_rate) * rounds.expected_batch_size / units.value
    if probability > 1:
        raise ConfigError(
            f"training.expected_batch_size={rounds.expected_batch_size} is above"
            f" data.units={units.value}: lower it"
        )
    if privacy.epsilon is None:
        return RoundPlan(
            units=units,
            sampling_probability=probability,
            config=rounds,
            budget=None,
            mechanism=None,
            accountant=privacy.accountant,
            curiosity_rate=curiosity_rate,
        )
    check_delta_for_units(privacy.delta, units)
    budget = PrivacyBudget(
        epsilon=left_for_rounds(privacy.epsilon, spent),
        delta=privacy.delta,
        unit=unit,
        relation=Relation(privacy.relation),
    )
    mechanism = calibrate_private_round(
        budget=budget,
        sampling_probability=probability,
        rounds=rounds.rounds + rounds.spare_rounds,
        clip_norm=rounds.clip_norm,
        accountant=privacy.accountant,
        sum_slack=sum_slack,
    )
    return RoundPlan(
        units=units,
        sampling_probability=probability,
        config=rounds,
        budget=budget,
        mechanism=mechanism,
        accountant=privacy.accountant,
        curiosity_rate=curiosity_rate,
        spent=spent,
    )
