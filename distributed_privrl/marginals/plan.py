"""What a run of marginals releases and costs, from public facts alone."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from pydantic import Field

from distributed_privrl.core.config import PositiveInt, PrivacyConfig, Probability, StrictModel
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.marginals.correlations import MOST_SUMS, correlation_sensitivity
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.marginals.verdict import pairs_in_words, pairs_of, verdict_of
from distributed_privrl.marginals.workload import LARGEST_WEIGHT
from distributed_privrl.privacy.accounting import Accountant
from distributed_privrl.privacy.calibration import calibrate_schedule
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.schedules import Schedule, merged
from distributed_privrl.privacy.selection import ExponentialSelection
from distributed_privrl.privacy.units import (
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.release_plan import ReleasePlan

_FEWEST, _MOST = 0.3, 3.0
"""Joint counts a column."""
_PAIRS = 250
"""Pairs of columns that take as long for each choice as what is chosen."""
_CHOICES = 0.1, 0.2
"""Parts of the budget that choose joint counts: the least and the most."""
_SCORE_SPAN = 3
"""A cell's part of a score has slopes between -2 and 1 in the cell's count."""


class SelectionConfig(StrictModel):
    """How the budget is spent on columns, choices and joint counts."""

    TABLES_KEY: ClassVar[str] = "training.pretraining.marginals.selection.tables"
    """Where a configuration has the number of joint counts."""

    steps: PositiveInt = Field(
        default=3, description="times that a model is estimated and further joint counts are chosen"
    )
    tables: PositiveInt | None = Field(
        default=None,
        description="joint counts that are chosen and measured in all (default: by columns, units"
        " and epsilon)",
    )
    columns_share: Probability = Field(
        default=0.35, description="part of the budget that counts single columns"
    )
    choices_share: Probability | None = Field(
        default=None,
        description="part of the budget that chooses joint counts (default: .1, up to .2 the fewer"
        " units and the less epsilon there are)",
    )
    correlations_share: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="part of the budget that measures how every two columns of a row (observation,"
        " action, reward, end) go together, and each action and what follows it, by one number a"
        " pair; 0: none. With .15 weak relations are kept, too, that no joint count is spent on",
    )

    def ways(self) -> tuple[str, ...]:
        """Return how more relations are kept, as a plan says it."""
        key = self.TABLES_KEY.removesuffix("tables") + "correlations_share"
        return (f"measure how every two columns go together ({key}: .15)",)


@dataclass(frozen=True, kw_only=True)
class StepRelease:
    """What one step draws; noise and events come from here.

    Args:
        columns: of all single columns together; None: the step releases something else.
        vector: of one vector of integers: scores of pairs, their correlations, or joint counts that
            nobody chose.
        choices: of joint counts; None: it chooses none.
        tables: of each joint count that was chosen.
        count: joint counts that it measures, as far as they are known before.
    """

    columns: IntegerGaussianRelease | None = None
    vector: IntegerGaussianRelease | None = None
    choices: ExponentialSelection | None = None
    tables: IntegerGaussianRelease | None = None
    count: int = 0

    def __post_init__(self) -> None:
        paid = {one.count for one in (self.choices, self.tables) if one is not None}
        if sum((self.columns is not None, self.vector is not None, bool(paid))) != 1:
            raise UnsafeError("a step counts columns, releases a vector, or chooses joint counts")
        if paid and (paid != {self.count} or self.choices is None or self.tables is None):
            raise UnsafeError("a step chooses and releases equally many joint counts")

    @property
    def gaussian(self) -> IntegerGaussianRelease:
        """The one whose noise integers get."""
        (found,) = (one for one in (self.columns, self.vector, self.tables) if one is not None)
        return found

    @property
    def events(self) -> tuple[Event, ...]:
        """What the step is charged as."""
        choices = () if self.choices is None else (self.choices.event,)
        return (*choices, self.gaussian.event)


@dataclass(frozen=True, kw_only=True)
class MarginalsPlan(ReleasePlan):
    """A plan whose steps are objects: what the program draws by, and what is charged.

    Args:
        releases: of each step; empty without privacy.
        counts: joint counts that each step after the first one measures.
        cliques: joint counts that are measured whatever was released; empty: what was released
            decides.
        correlated: sums by which the second step measures how columns go together; 0: it does not.

    Raises:
        UnsafeError: the schedule charges something else than what is drawn.
    """

    releases: tuple[StepRelease, ...] = ()
    counts: tuple[int, ...] = ()
    cliques: tuple[Clique, ...] = ()
    correlated: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule != schedule_of(self.releases):
            raise UnsafeError("the schedule must charge what the steps' releases draw")
        if self.releases and self.counts != tuple(one.count for one in self.releases[1:]):
            raise UnsafeError("a step must choose as many joint counts as its releases pay for")


def integer_sensitivity(relation: Relation) -> float:
    """Return by how much one unit moves a joint count, in L2.

    One unit adds `UNIT_WEIGHT` to cells at most; a unit that becomes another one takes as much from
    some and gives as much to others, both at least zero: sqrt(2) times as much.
    """
    return UNIT_WEIGHT * math.sqrt(relation.contributions)


def score_span(relation: Relation) -> int:
    """Return the width of the interval in which one unit's changes of all scores lie.

    A unit that is added moves each score by -2 to 1 times `LARGEST_WEIGHT` `UNIT_WEIGHT`, one that
    is taken away by -1 to 2 times as much; see `scores.score`. One that becomes another does both.
    """
    return _SCORE_SPAN * LARGEST_WEIGHT * UNIT_WEIGHT * relation.contributions


def tables_in_all(config: SelectionConfig, *, columns: int, units: int, epsilon: float) -> int:
    """Return how many joint counts are measured: the more, the more units and epsilon there are.

    Args:
        config: says it, or leaves it to the others.
        columns: of the table.
        units: number of them.
        epsilon: of the stage.
    """
    if config.tables is not None:
        return config.tables
    each = _for_each_column(units, epsilon)
    return max(1, round(columns * min(max(each, _FEWEST), _MOST)))


def share_of_choices(config: SelectionConfig, *, units: int, epsilon: float) -> float:
    """Return the part of the budget that chooses joint counts.

    Among few units a relation stands out little from the noise of a choice between hundreds of
    joint counts, and what a bad choice measures is lost as a whole.

    Args:
        config: says it, or leaves it to the others.
        units: number of them.
        epsilon: of the stage.
    """
    if config.choices_share is not None:
        return config.choices_share
    least, most = _CHOICES
    each = _for_each_column(units, epsilon)
    left = (1 - config.columns_share) / 2  # few units are no reason to refuse a run
    return min(max(least / (2 * max(each, 1e-9)), least), most, left)


def _for_each_column(units: int, epsilon: float) -> float:
    """Return how many joint counts a column are worth measuring, without limits."""
    return 0.5 * math.log10(max(units * min(epsilon, 10.0) / 160, 1.0))


def marginals_plan(
    privacy: PrivacyConfig,
    config: SelectionConfig,
    *,
    unit: str,
    units: UnitCount,
    columns: int,
    columns_in_words: str = "",
    histograms: int,
    sizes: Sequence[int] = (),
    rows_per_unit: int = 1,
    sums: int = 0,
    epsilon: float | None,
    delta: float,
    assumed: bool = False,
    spent: float = 0.0,
) -> MarginalsPlan:
    """Return the plan: all columns, then correlations if asked for, then choices of joint counts.

    Args:
        privacy: relation and accountant.
        config: shares, steps and joint counts.
        unit: what one person contributes.
        units: how many there are.
        columns: of the table.
        columns_in_words: which part of a row they are of.
        histograms: of single columns, that a row has one entry in each of.
        sizes: cells or categories of each column, as far as is known.
        rows_per_unit: rows that a unit must have to weigh one.
        sums: of answers to questions, by which columns go together; see `correlations.most_sums`.
        epsilon: of the stage; None: without privacy.
        delta: of the stage.
        assumed: the dataset may have other columns, as far as is known.
        spent: epsilon that the run spends elsewhere.

    Raises:
        ConfigError: the shares leave nothing for joint counts, or no noise keeps the budget.
        UnsafeError: delta is not below 1/units.
    """
    about_epsilon = epsilon if epsilon else 10.0
    choices = share_of_choices(config, units=units.value, epsilon=about_epsilon)
    correlating = config.correlations_share
    if config.columns_share + choices + correlating >= 1:
        named = f", correlations_share={correlating:g}" if correlating else ""
        raise ConfigError(
            f"columns_share={config.columns_share:g}{named} and choices_share={choices:g}"
            " leave nothing for joint counts: lower them"
        )
    correlated = sums if correlating else 0
    if correlated > MOST_SUMS:
        raise ConfigError(
            f"correlations_share={correlating:g} measures {correlated} sums of answers,"
            f" and {MOST_SUMS} are the most that noise leaves anything of: leave out columns that"
            " nobody needs, or set it to 0"
        )
    total = tables_in_all(config, columns=columns, units=units.value, epsilon=about_epsilon)
    counts = ((0,) if correlated else ()) + _split(total, config.steps)
    about: dict[str, float] = {
        "columns_assumed" if assumed else "columns": columns,
        "joint_counts": total,
        "pairs_of_columns": pairs_of(columns),
        **({"correlations": correlated} if correlated else {}),
    }
    effort = Effort(joint_counts=total * (1 + pairs_of(columns) / _PAIRS))
    of_what = f"for an assumed table of {columns} columns" if assumed else f"of {columns} columns"
    of_what += f" ({columns_in_words})" if columns_in_words else ""
    steps = 1 + len(counts)
    if epsilon is None:
        return MarginalsPlan(
            units=units,
            budget=None,
            accountant=privacy.accountant,
            steps=steps,
            spare=0,
            counts=counts,
            correlated=correlated,
            details=about,
            effort=effort,
        )
    check_delta_for_units(delta, units)
    relation = Relation(privacy.relation)
    budget = PrivacyBudget(epsilon=epsilon, delta=delta, unit=unit, relation=relation)

    def releases(factor: float) -> tuple[StepRelease, ...]:
        shares = _Shares(config.columns_share, choices, correlating if correlated else 0.0)
        return _releases(shares, counts, relation, histograms, correlated, factor)

    drawn = calibrated(releases, budget, privacy.accountant)
    noise, spread, pairwise = _noise_facts(drawn), 0.0, ""
    if correlated:
        spread = in_units(drawn[1].gaussian.standard_deviation) / units.value
        about["correlation_noise"] = round(spread, 4)
        pairwise = f" and {correlated} correlations"
    return MarginalsPlan(
        units=units,
        budget=budget,
        accountant=privacy.accountant,
        spent=spent,
        steps=steps,
        spare=0,
        schedule=schedule_of(drawn),
        releases=drawn,
        counts=counts,
        correlated=correlated,
        details={**about, **noise},
        effort=effort,
        verdict=verdict_of(
            units.value,
            sizes,
            rows_per_unit=rows_per_unit,
            fewer=f"{config.TABLES_KEY}: {total // 2}" if total > 1 else "",
            counted=pairs_in_words(
                columns, total, ways=config.ways(), correlated=correlated, deviation=spread
            ),
            **noise,
        ),
        noise=f"Gaussian integers, {total} joint counts{pairwise} {of_what}",
    )


def _split(total: int, steps: int) -> tuple[int, ...]:
    """Return how many joint counts each step chooses: half, then half of the rest, and so on.

    Example:
        >>> _split(12, 3)
        (6, 3, 3)
    """
    counts, left = [], total
    for step in range(steps):
        count = left if step == steps - 1 else -(-left // 2)
        if count:
            counts.append(count)
        left -= count
    return tuple(counts)


class _Shares(NamedTuple):
    """Parts of the budget; the rest is that of joint counts."""

    columns: float
    choices: float
    correlations: float

    @property
    def tables(self) -> float:
        """Of joint counts."""
        return 1 - sum(self)


def _releases(
    shares: _Shares,
    counts: tuple[int, ...],
    relation: Relation,
    histograms: int,
    correlated: int,
    factor: float,
) -> tuple[StepRelease, ...]:
    """Return each step's releases at a factor of the noise.

    At factor 1 all add up to one Gaussian release of noise multiplier 1: a choice of epsilon e
    counts as e^2 / 4 of 1 / z^2, as zero-concentrated differential privacy has it.
    """
    total, sensitivity = sum(counts), integer_sensitivity(relation)
    steps = [column_release(relation, histograms=histograms, share=shares.columns, factor=factor)]
    if correlated:
        vector = IntegerGaussianRelease(
            sensitivity=correlation_sensitivity(relation, correlated),
            noise_multiplier=factor / math.sqrt(shares.correlations),
        )
        steps.append(StepRelease(vector=vector))
    for count in counts[bool(correlated) :]:
        choices = ExponentialSelection(
            span=score_span(relation),
            epsilon=2 * math.sqrt(shares.choices / total) / factor,
            count=count,
        )
        tables = IntegerGaussianRelease(
            sensitivity=sensitivity,
            noise_multiplier=factor * math.sqrt(total / shares.tables),
            count=count,
        )
        steps.append(StepRelease(choices=choices, tables=tables, count=count))
    return tuple(steps)


def calibrated(
    releases: Callable[[float], tuple[StepRelease, ...]],
    budget: PrivacyBudget,
    accountant: Accountant,
) -> tuple[StepRelease, ...]:
    """Return the releases of all steps with the least noise that a budget allows.

    Args:
        releases: of each step, by a factor of all noise.
        budget: of the stage.
        accountant: composes them.

    Raises:
        ConfigError: no noise keeps the budget.
    """

    def events(factor: float) -> tuple[Event, ...]:
        return merged(schedule_of(releases(factor)))

    return releases(calibrate_schedule(events, budget, accountant))


def schedule_of(releases: Sequence[StepRelease]) -> Schedule:
    """Return what each step is charged as."""
    return tuple(one.events for one in releases)


def column_release(
    relation: Relation, *, histograms: int, share: float, factor: float
) -> StepRelease:
    """Return the step that counts all columns.

    Args:
        relation: of neighbouring datasets.
        histograms: of single columns, that a row has one entry in each of.
        share: of the budget.
        factor: the noise multiplier of one release that has all of the budget.
    """
    columns = IntegerGaussianRelease(
        sensitivity=integer_sensitivity(relation) * math.sqrt(histograms),
        noise_multiplier=factor / math.sqrt(share),
    )
    return StepRelease(columns=columns)


def _noise_facts(releases: tuple[StepRelease, ...]) -> dict[str, float]:
    """Return the noise of a cell in units: what ``privrl plan`` says of it."""
    return {
        "column_noise_units": in_units(releases[0].gaussian.standard_deviation),
        "joint_noise_units": in_units(releases[-1].gaussian.standard_deviation),
    }


def in_units(deviation: float) -> float:
    """Return the deviation of a noise in units, as plans show it."""
    return round(deviation / UNIT_WEIGHT, 3)
