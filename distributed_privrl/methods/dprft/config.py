"""Configuration of `dprft`."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from distributed_privrl.core.config import (
    FilesOutputConfig,
    PositiveFloat,
    PositiveInt,
    Probability,
    RunConfig,
    StrictModel,
)

Reward = Literal["dp_votes", "dp_votes_soft", "dp_votes_centred", "dp_mean_embedding"]


class VotesConfig(StrictModel):
    """The language model, and how documents vote on what it writes."""

    language: str = Field(
        description="folder of a causal language model of transformers, trained on public text"
    )
    reward: Reward = Field(
        default="dp_votes",
        description="dp_votes: the paper's, charged a sample; dp_votes_soft and dp_votes_centred:"
        " charged a step; dp_mean_embedding: released once",
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
    dimension: PositiveInt = Field(
        default=384, description="numbers of the hashed vector of a text"
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
        " without stages",
    )
    instruct: str | None = Field(
        default=None, description="folder of an instruct model that answers a template's stages"
    )


class TuningConfig(StrictModel):
    """Proximal policy optimisation on the rewards."""

    steps: PositiveInt = Field(default=100, description="T: batches that are scored")
    prompts_per_step: PositiveInt = Field(default=64, description="prompts of a batch")
    samples: PositiveInt = Field(default=2, description="texts of a prompt")
    spare: int = Field(
        default=2, ge=0, description="further batches that are paid for, for answers a crash loses"
    )
    most_tokens: PositiveInt = Field(default=64, description="of a text")
    prompts: PromptsConfig = PromptsConfig()
    options: dict[str, Any] = Field(
        default_factory=dict, description="other settings of `text.ppo_config.PpoConfig`"
    )


class TextsOutputConfig(FilesOutputConfig):
    """What the run releases."""

    about: ClassVar[str] = "texts like those of"

    size: PositiveInt = Field(description="synthetic texts")
    texts: str = Field(
        default="texts.jsonl",
        pattern=r"^[\w-][\w.-]*\.jsonl$",
        description="file of the texts in the run's folder",
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Name of the file."""
        return (self.texts,)


class DprftConfig(RunConfig):
    """A language model tuned by private votes, and texts that it writes."""

    method: Literal["dprft"] = "dprft"
    model: VotesConfig
    training: TuningConfig = TuningConfig()
    output: TextsOutputConfig
