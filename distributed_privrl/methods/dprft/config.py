"""Configuration of `dprft` and `dp_fine_tuning`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from distributed_privrl.core.config import (
    FilesOutputConfig,
    PositiveFloat,
    PositiveInt,
    Probability,
    RunConfig,
    StrictModel,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.round_plan import RoundsConfig
from distributed_privrl.text.aug_pe_config import AugPeOptions
from distributed_privrl.text.ppo_config import PpoOptions
from distributed_privrl.text.public_text import PUBLIC_PACKAGES
from distributed_privrl.text.trl_config import TrlOptions, samples_at_once

Reward = Literal[
    "dp_votes", "dp_votes_soft", "dp_votes_centred", "dp_mean_embedding", "nearest_votes"
]

UNTUNED = "untuned.jsonl"
"""File of texts of the model before its training."""
OPTIONS: Mapping[str, type[PpoOptions] | type[TrlOptions] | type[AugPeOptions]] = {
    "ppo": PpoOptions,
    "grpo": TrlOptions,
    "rloo": TrlOptions,
    "aug_pe": AugPeOptions,
}
"""What `training.options` may hold, by `training.by`."""


class ProseConfig(StrictModel):
    """A small GPT-2, trained on prose of installed packages before anything is charged."""

    packages: tuple[str, ...] = Field(
        default=PUBLIC_PACKAGES,
        min_length=1,
        description="installed packages whose docstrings and manuals it learns",
    )
    steps: PositiveInt = Field(default=2000, description="gradient steps")
    batch: PositiveInt = Field(default=8, description="sequences of a step")
    learning_rate: PositiveFloat = Field(default=2e-3, description="at its highest")
    vocabulary: int = Field(default=4096, ge=300, description="most tokens of the tokenizer")
    context: int = Field(default=256, ge=16, description="most tokens of a prompt and its text")
    width: PositiveInt = Field(default=128, description="of the hidden states")
    layers: PositiveInt = Field(default=4, description="blocks")
    heads: PositiveInt = Field(default=4, description="attention heads; they divide width")
    excerpt_words: PositiveInt = Field(
        default=60, description="of a text that it learns, a few paragraphs of a module"
    )
    folder: Path | None = Field(
        default=None, description="where models are kept (default: the user's cache)"
    )

    @model_validator(mode="after")
    def _whole_heads(self) -> Self:
        if self.width % self.heads:
            raise ValueError("heads must divide width")
        return self


class LanguageConfig(StrictModel):
    """The language model."""

    language: str | ProseConfig = Field(
        description="folder of a causal language model of transformers, trained on public text, or"
        " its id on the hub, e.g. Qwen/Qwen2.5-3B-Instruct, if it was downloaded before; or a"
        " section that has a small one trained, e.g. {packages: [numpy, scipy]}"
    )


class VotesConfig(LanguageConfig):
    """The language model, and how documents vote on what it writes."""

    reward: Reward = Field(
        default="dp_votes",
        description="dp_votes: the paper's, charged a sample; dp_votes_soft and dp_votes_centred:"
        " charged a step; dp_mean_embedding: released once; nearest_votes: of training.by=aug_pe,"
        " charged a step",
    )
    threshold: Probability = Field(
        default=0.5, description="tau: similarities are clipped to [0, tau] (dp_votes)"
    )
    temperature: PositiveFloat = Field(
        default=0.1, description="similarity that divides a share by e (dp_votes_soft)"
    )
    clip_norm: PositiveFloat = Field(
        default=1.0, description="L2 norm of a unit's centred votes (dp_votes_centred)"
    )
    encoder: Literal["hashed", "minilm"] = Field(
        default="hashed",
        description="what makes vectors of texts: words, hashed; or a sentence encoder of the extra"
        " text, which knows synonyms",
    )
    dimension: PositiveInt = Field(
        default=384, description="numbers of the vector of a text; 384 for minilm"
    )
    structure_weight: float = Field(
        default=0.0,
        ge=0,
        le=16,
        description="of the divergences of turns that are taken off a similarity; 0: cosine alone",
    )


class PromptsConfig(StrictModel):
    """What the model is asked to write: public knowledge alone."""

    template: str = Field(default="prose", description="name of a template")
    file: Path | None = Field(
        default=None, description="YAML file of templates (default: those of the package)"
    )
    count: PositiveInt = Field(default=512, description="prompts that steps draw from")
    packages: tuple[str, ...] = Field(
        default=(),
        description="installed packages whose manuals give topics and keywords, for a template"
        " without stages (default: those of model.language, where it names packages)",
    )
    instruct: str | None = Field(
        default=None,
        description="folder, or id on the hub, of an instruct model that answers a template's"
        " stages",
    )


class WritingConfig(StrictModel):
    """What the model is asked to write, and which texts are good enough."""

    most_tokens: PositiveInt = Field(default=64, description="of a text")
    gate: bool = Field(
        default=True,
        description="whether texts must pass the template's gate to be scored or released; false:"
        " all that have a word do",
    )
    judge: str | None = Field(
        default=None,
        description="folder, or id on the hub, of an instruct model that the gate has rate texts;"
        " they need the template's least_rating (default: 6 of 10)",
    )
    instruct_dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="numbers of the judge and of prompts.instruct, which are not trained: bfloat16"
        " takes half the memory",
    )
    prompts: PromptsConfig = PromptsConfig()


class TuningConfig(WritingConfig):
    """What the votes are used for: the model is tuned, or texts evolve."""

    by: Literal["ppo", "grpo", "rloo", "aug_pe"] = Field(
        default="ppo",
        description="ppo: the model is tuned, by ours; grpo, rloo: by trl, for large models;"
        " aug_pe: the model stays, and texts are chosen by votes and varied, a step after the"
        " other",
    )
    steps: PositiveInt = Field(default=100, description="T: batches that are scored")
    prompts_per_step: PositiveInt = Field(default=64, description="prompts of a batch")
    samples: PositiveInt = Field(default=2, description="texts of a prompt")
    spare: int = Field(
        default=2, ge=0, description="further batches that are paid for, for answers a crash loses"
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="other settings of `text.ppo_config.PpoOptions`; of grpo and rloo those of"
        " `text.trl_config.TrlOptions`; of aug_pe those of `text.aug_pe_config.AugPeOptions`",
    )

    @field_validator("options")
    @classmethod
    def _known_options(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Return the options as what is tuned by has them; errors name the keys within."""
        if "by" not in info.data:  # wrong itself
            return value
        return OPTIONS[info.data["by"]].model_validate(value).model_dump(exclude_unset=True)

    @model_validator(mode="after")
    def _whole_parts(self) -> Self:
        if isinstance(self.settings, TrlOptions):
            asked = self.settings.minibatch
            samples_at_once(asked, prompts=self.prompts_per_step, samples=self.samples)
        return self

    @property
    def settings(self) -> PpoOptions | TrlOptions | AugPeOptions:
        """The options, with the defaults of those that are not given."""
        return OPTIONS[self.by].model_validate(self.options)


class TextsOutputConfig(FilesOutputConfig):
    """What the run releases."""

    about: ClassVar[str] = "texts like those of"

    size: PositiveInt = Field(description="synthetic texts")
    texts: str = Field(
        default="texts.jsonl",
        pattern=r"^[\w-][\w.-]*\.jsonl$",
        description="file of the texts in the run's folder",
    )
    untuned: int = Field(
        default=200,
        ge=0,
        description="texts of the model before its training, to hold the others against, in"
        f" {UNTUNED}; no more than size; 0: none",
    )

    @field_validator("texts")
    @classmethod
    def _check_texts(cls, texts: str) -> str:
        if texts == UNTUNED:
            raise ValueError(f"{UNTUNED} holds texts of the model before: name another file")
        return texts

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, that of the texts first."""
        return (self.texts, UNTUNED) if self.untuned else (self.texts,)


class FineTuningRounds(RoundsConfig, WritingConfig):
    """Private rounds of fine-tuning, and what the model then writes."""

    rounds: PositiveInt = Field(default=200, description="private rounds (T)")
    expected_batch_size: PositiveInt = Field(
        default=256, description="units that take part in a round on average (q x units)"
    )
    optimiser: OptimiserConfig = OptimiserConfig(
        learning_rate=1e-3, schedule="cosine", ema_decay=0.0
    )


class TextConfig(RunConfig):
    """A run that ends in texts of a language model."""

    model: LanguageConfig
    training: WritingConfig
    output: TextsOutputConfig


class FineTuningConfig(TextConfig):
    """A language model fine-tuned on a corpus in private rounds, and texts that it writes."""

    method: Literal["dp_fine_tuning"] = "dp_fine_tuning"
    model: LanguageConfig
    training: FineTuningRounds = FineTuningRounds()


class DprftConfig(TextConfig):
    """A language model tuned by private votes, and texts that it writes."""

    method: Literal["dprft"] = "dprft"
    model: VotesConfig
    training: TuningConfig = TuningConfig()
