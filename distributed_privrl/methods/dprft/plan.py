"""What the votes cost, and what draws their noise, from public facts alone."""

from dataclasses import dataclass, replace
from typing import Any

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.methods.dprft.config import DprftConfig, ProseConfig, TextConfig
from distributed_privrl.methods.dprft.effort import plan_effort
from distributed_privrl.methods.dprft.releases import VoteRelease, embedding_release, vote_release
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.votes import (
    CentredVotes,
    ClippedVotes,
    NearestVotes,
    SoftVotes,
    VoteRule,
)
from distributed_privrl.privacy.schedules import same_each_step
from distributed_privrl.privacy.units import (
    TRAJECTORY,
    TRANSITION,
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.plan import left_for_rounds
from distributed_privrl.stages.release_plan import ReleasePlan
from distributed_privrl.stages.verdict import Grade, Verdict
from distributed_privrl.text.minilm import MiniLmEncoder
from distributed_privrl.text.ppo_config import PpoOptions

PUBLIC_LANGUAGE = "public_language_model_and_prompts"
"""What the guarantee assumes: neither saw the corpus."""
NOT_JUDGED = Verdict(
    grade=Grade.NOT_JUDGED,
    reason="of texts of models that were tuned by noisy votes or in private rounds, those of small"
    " models were measured: votes brought them nearer to documents than the untuned model's, and"
    " cost some of the language; rounds brought little (docs/dprft.md#measured). What the private"
    " report says of yours decides (docs/dprft.md#texts-beside-real-ones)",
)
"""Nobody stops a run of whose worth nothing is known."""


@dataclass(frozen=True, kw_only=True)
class VotePlan(ReleasePlan):
    """Rounds of votes: samples that are scored, queries, or one sum of vectors.

    Args:
        release: what draws their noise; None without privacy.
    """

    release: VoteRelease | None

    def __post_init__(self) -> None:
        super().__post_init__()
        drawn = () if self.release is None else (self.release.event,)
        if any(step != drawn for step in self.schedule):
            raise UnsafeError("schedule must charge what release draws")

    @property
    def block_rounds(self) -> int:
        """A query reserves its own; what is left in the end is reserved at once."""
        return self.max_rounds


def check_corpus_keys(config: TextConfig) -> None:
    """Refuse what has no meaning for a corpus, and texts too long for a model that is made here.

    Raises:
        ConfigError: a unit or key.
    """
    if config.data.unit in (TRANSITION, TRAJECTORY):
        raise ConfigError(
            f"data.unit={config.data.unit}: a corpus has documents; set data.unit to document, or"
            " to the column that says who wrote them"
        )
    unused = [
        f"data.{name}"
        for name in ("bounds", "public", "environment", "max_length")
        if getattr(config.data, name)
    ]
    if unused:
        raise ConfigError(f"{' and '.join(unused)}: no meaning for {config.method}, leave out")
    if isinstance(config.model.language, ProseConfig):
        check_room(config, config.model.language.context)


def check_room(config: TextConfig, context: int) -> None:
    """Refuse texts that leave a prompt no room.

    Args:
        config: of the run.
        context: tokens that the model takes.

    Raises:
        ConfigError: they are as long as that.
    """
    if config.training.most_tokens >= context:
        raise ConfigError(
            f"training.most_tokens={config.training.most_tokens}: the model takes {context} tokens,"
            f" a prompt's too; set it to {context - 1} or less"
        )


def check_config(config: DprftConfig) -> None:
    """Refuse what has no meaning here.

    Raises:
        ConfigError: a unit or key.
    """
    check_corpus_keys(config)
    if config.privacy.accountant != "pld":
        raise ConfigError(
            f"privacy.accountant={config.privacy.accountant}: Gaussian releases are accounted"
            " exactly; leave it out"
        )
    if config.model.reward == "dp_mean_embedding" and config.model.structure_weight:
        raise ConfigError(
            "model.structure_weight: the mean of vectors knows no turns; leave it out, or take"
            " another reward"
        )
    _check_choices(config)
    _check_watched(config)
    rule_of(config)


def _check_watched(config: DprftConfig) -> None:
    settings = config.training.settings
    if (
        isinstance(settings, PpoOptions)
        and settings.stopping.most_loss_rise is not None
        and not isinstance(config.model.language, ProseConfig)
    ):
        raise ConfigError(
            "training.options.stopping.most_loss_rise: nothing tells which public text"
            f" model.language={config.model.language} has learned; leave it out, set another limit"
            " of stopping, or have the model made of packages"
        )


def _check_choices(config: DprftConfig) -> None:
    model, numbers, evolves = config.model, MiniLmEncoder.dimension, config.training.by == "aug_pe"
    if evolves != (model.reward == "nearest_votes"):
        raise ConfigError(
            f"training.by={config.training.by} with model.reward={model.reward}: aug_pe and"
            " nearest_votes belong together; set both or neither"
        )
    if model.encoder == "minilm" and model.dimension != numbers:
        raise ConfigError(
            f"model.dimension={model.dimension}: vectors of minilm have {numbers} numbers; leave"
            " it out"
        )


def rule_of(config: DprftConfig) -> VoteRule | None:
    """Return the rule of votes; None: the sum of vectors is released.

    Raises:
        ConfigError: a value is out of range.
    """
    model, similarity = config.model, similarity_of(config)
    if model.reward == "dp_votes":
        return ClippedVotes(similarity=similarity, threshold=model.threshold)
    if model.reward == "dp_votes_soft":
        return SoftVotes(similarity=similarity, temperature=model.temperature)
    if model.reward == "dp_votes_centred":
        return CentredVotes(similarity=similarity, clip_norm=model.clip_norm)
    if model.reward == "nearest_votes":
        return NearestVotes(similarity=similarity)
    return None


def similarity_of(config: DprftConfig) -> Similarity:
    """Return how texts are compared."""
    model = config.model
    return Similarity(dimension=model.dimension, structure_weight=model.structure_weight)


def rounds_of(config: DprftConfig) -> tuple[int, int]:
    """Return planned and spare rounds: samples, queries, or the one sum."""
    training, rule = config.training, rule_of(config)
    if rule is None:
        return 1, 0
    each = training.prompts_per_step * training.samples if rule.each_sample else 1
    return training.steps * each, training.spare * each


def vote_plan(config: DprftConfig, units: UnitCount, *, spent: float) -> VotePlan:
    """Return the plan for ``units``.

    Args:
        config: of the run.
        units: how many there are.
        spent: epsilon of what is released before.

    Raises:
        ConfigError: nothing is left of epsilon.
        UnsafeError: delta is not below 1/units.
    """
    privacy, (rounds, spare) = config.privacy, rounds_of(config)
    samples = config.training.prompts_per_step * config.training.samples
    details: dict[str, Any] = {
        "reward": config.model.reward,
        "steps": config.training.steps,
        "samples_per_step": samples,
    }
    effort = plan_effort(config, units.value)
    if privacy.epsilon is None:
        return VotePlan(
            units=units,
            budget=None,
            accountant="pld",
            steps=rounds,
            spare=spare,
            details=details,
            effort=effort,
            release=None,
        )
    check_delta_for_units(privacy.delta, units)
    budget = PrivacyBudget(
        epsilon=left_for_rounds(privacy.epsilon, spent),
        delta=privacy.delta,
        unit=config.data.unit,
        relation=Relation(privacy.relation),
    )
    rule, verdict = rule_of(config), NOT_JUDGED
    if rule is None:
        release, noise = embedding_release(budget=budget), "Gaussian integers, on a sum of vectors"
    else:
        release = vote_release(rule, budget=budget, rounds=rounds + spare)
        share = release.standard_deviation / (rule.unit * units.value)
        details["noise_of_reward"] = float(f"{share:.4g}")
        noise = f"Gaussian integers, deviation {share:.4g} of a reward ({_range(config)})"
        verdict = replace(NOT_JUDGED, figures={"noise_of_reward": share})
    return VotePlan(
        units=units,
        budget=budget,
        spent=spent,
        accountant="pld",
        steps=rounds,
        spare=spare,
        schedule=same_each_step([release.event], rounds + spare),
        details=details,
        assumptions=(PUBLIC_LANGUAGE,),
        noise=noise,
        verdict=verdict,
        effort=effort,
        release=release,
    )


def _range(config: DprftConfig) -> str:
    """Return in words how large rewards are without noise."""
    model, training = config.model, config.training
    texts = training.prompts_per_step * training.samples
    if model.reward == "dp_votes":
        return f"which lies between 0 and {model.threshold:g}"
    if model.reward == "dp_votes_centred":
        return f"those of a step's {texts} texts have a norm of {model.clip_norm:g} at most"
    return f"those of a step's {texts} texts sum up to 1"
