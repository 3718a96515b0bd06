"""How many steps of votes a run takes, and what they cost, from public facts alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from distributed_privrl.agents.work import StepWork
from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.pate_gan.config import (
    AdversaryConfig,
    AnyPateGanConfig,
    PrePateGanConfig,
    VotingConfig,
)
from distributed_privrl.methods.pate_gan.votes import MAKERS, VoteRelease, affordable, least_noise
from distributed_privrl.models.sizes import dense_weights
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import (
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.encoders import check_bounds_named
from distributed_privrl.stages.plan import left_for_rounds
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.verdict import Grade, Verdict

FEWEST_BLOCKS = 4
"""Blocks that teachers are computed in, where the configuration names no other number."""


@dataclass(frozen=True, kw_only=True)
class VotePlan(ReleasePlan):
    """Steps that each release noisy counts of votes.

    Args:
        votes: counts of a step.
        teachers: that vote.
        release: what draws the noise; None without privacy.
    """

    votes: int
    teachers: int
    release: VoteRelease | None

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = () if self.release is None else self.release.events(self.votes)
        if any(step != drawn for step in self.schedule):
            raise UnsafeError("schedule must charge what release draws, once a sample")

    def check_runtime(self, runtime: RuntimeConfig) -> None:
        """Refuse more workers than there are blocks of teachers."""
        self.blocks_for(runtime)

    def blocks_for(self, runtime: RuntimeConfig) -> int:
        """Return how many blocks teachers are computed in, whoever computes them.

        Raises:
            ConfigError: there are more workers than blocks, or more blocks than teachers.
        """
        blocks = runtime.blocks or min(FEWEST_BLOCKS, self.teachers)
        if not runtime.most_workers <= blocks <= self.teachers:
            raise ConfigError(
                f"runtime.workers={runtime.most_workers}, blocks of teachers {blocks},"
                f" model.teachers={self.teachers}: none may be above the next; lower the first, or"
                " set runtime.blocks"
            )
        return blocks


def check_config(config: AnyPateGanConfig) -> None:
    """Refuse what the configuration alone tells.

    Raises:
        ConfigError: settings do not fit together.
    """
    check_bounds_named(config.data)
    if config.privacy.accountant != "pld":
        raise ConfigError(
            f"privacy.accountant={config.privacy.accountant}: Renyi DP does not know integer"
            " Laplace noise; leave it out"
        )
    if config.runtime.pretrained is not None:
        raise ConfigError("runtime.pretrained: pate_gan keeps no pre-training; leave it out")


def votes_plan(config: AnyPateGanConfig, units: UnitCount, *, spent: float) -> VotePlan:
    """Return the plan for ``units``: as many steps as what is left of epsilon pays for.

    Args:
        config: of the run.
        units: how many there are.
        spent: epsilon of what is released before.

    Raises:
        ConfigError: nothing is left of epsilon, or it does not pay for a step.
        UnsafeError: delta is not below 1/units.
    """
    model, training, privacy = config.model, config.training, config.privacy
    details: dict[str, Any] = {
        "teachers": model.teachers,
        "votes_per_step": training.votes_per_step,
    }
    if privacy.epsilon is None:
        return VotePlan(
            units=units,
            budget=None,
            accountant="pld",
            steps=training.most_steps,
            spare=0,
            details=details,
            votes=training.votes_per_step,
            teachers=model.teachers,
            release=None,
        )
    check_delta_for_units(privacy.delta, units)
    budget = PrivacyBudget(
        epsilon=left_for_rounds(privacy.epsilon, spent),
        delta=privacy.delta,
        unit=config.data.unit,
        relation=Relation(privacy.relation),
    )
    release, paid = _noise(training, model.teachers, budget)
    steps = paid - training.spare
    if steps < 1:
        raise ConfigError(
            f"privacy.epsilon={privacy.epsilon:g} pays for {paid} steps of"
            f" {training.votes_per_step} votes, and {training.spare + 1} are needed at least"
            f" (training.spare={training.spare}): raise model.teachers, training.noise_share or"
            " privacy.epsilon, or lower training.votes_per_step or training.spare"
        )
    votes = steps * training.votes_per_step
    return VotePlan(
        units=units,
        budget=budget,
        spent=spent,
        accountant="pld",
        steps=steps,
        spare=training.spare,
        schedule=same_each_step(release.events(training.votes_per_step), paid),
        details={**details, "votes": votes, "noise_of_share": _rounded(release, model.teachers)},
        noise=release.in_words,
        verdict=verdict_of(votes, release.deviation / model.teachers),
        votes=training.votes_per_step,
        teachers=model.teachers,
        release=release,
    )


def _rounded(release: VoteRelease, teachers: int) -> float:
    return float(f"{release.deviation / teachers:.4g}")


def _noise(training: VotingConfig, teachers: int, budget: PrivacyBudget) -> tuple[VoteRelease, int]:
    """Return the noise of a count, and how many steps of votes it pays for.

    The noise is what is asked for, or less where the budget pays for more steps than are asked
    for: nothing of it is left over. Of two kinds the one that pays for more steps is taken, then
    the one of less noise.
    """
    names = MAKERS if training.noise == "cheaper" else (training.noise,)
    offers = []
    for make in map(MAKERS.__getitem__, names):
        release = make(training.noise_share * teachers, budget.relation)
        votes, most = training.votes_per_step, training.most_steps + training.spare
        paid = affordable(release, budget, votes=votes, most=most)
        if paid == most:
            release = least_noise(make, budget, most * votes)
        offers.append((release, paid))
    return max(offers, key=lambda offer: (offer[1], -offer[0].deviation))


def verdict_of(votes: int, noise: float) -> Verdict:
    """Return what a plan says of the votes that are left.

    Args:
        votes: that are released.
        noise: deviation of a noisy share of votes.
    """
    return Verdict(
        grade=Grade.NOT_JUDGED,
        reason=f"{votes} noisy votes, each with noise of {noise:.3g} of all teachers: what a"
        " generator learns from so many was measured on one table, and was of no use there"
        " (benchmarks/results/utility_tables_pate_gan.md)",
        figures={"votes": votes, "noise_of_share": noise},
    )


def plan_effort(config: AnyPateGanConfig, steps: int, width: int) -> Effort:
    """Return the work of a run.

    Args:
        config: of the run.
        steps: of votes.
        width: numbers of an encoded row.
    """
    training, sizes = config.training, _weights(config.model, width)
    blocks = config.runtime.blocks or min(FEWEST_BLOCKS, config.model.teachers)
    teachers = StepWork(networks=blocks, weights=config.model.teachers * sizes["teacher"])
    student = StepWork(networks=1, weights=sizes["teacher"])
    maker = StepWork(networks=2, weights=sizes["teacher"] + sizes["generator"])
    effort = Effort(drawn_rows=config.output.size * sizes["generator"])
    for count, rows, work in (
        (training.teacher_steps, 2 * training.teacher_batch, teachers),
        (training.student_steps, training.student_batch, student),
        (training.generator_steps, training.generator_batch, maker),
    ):
        effort += Effort.of_steps(steps * count, rows, work)
    if isinstance(config, PrePateGanConfig):
        public = config.training.pretraining
        for work, rows in ((student, 2 * public.batch_size), (maker, public.batch_size)):
            effort += Effort.of_steps(public.steps, rows, work)
    copies = 4 * 4 * config.model.teachers * sizes["teacher"]  # float32: gradient, two moments
    return effort + Effort(memory=copies)


def _weights(model: AdversaryConfig, width: int) -> Mapping[str, int]:
    judged = (width, *(model.discriminator_width,) * model.discriminator_layers, 1)
    made = (model.latent, *(model.generator_width,) * model.generator_layers, width)
    return {"teacher": dense_weights(judged), "generator": dense_weights(made)}
