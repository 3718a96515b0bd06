"""Configuration of `pate_gan` and `pre_pate_gan`."""

from typing import Literal, Self

from pydantic import Field, model_validator

from distributed_privrl.core.config import (
    OutputConfig,
    PositiveFloat,
    PositiveInt,
    RunConfig,
    StrictModel,
)
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.stages.coding import CodingConfig


class AdversaryConfig(CodingConfig):
    """The teachers, the student and the generator."""

    teachers: PositiveInt = Field(
        default=15,
        description="discriminators that each learn from units of their own: twice as many answer"
        " four times as many questions, by half as many units each",
    )
    generator_layers: PositiveInt = Field(default=3, description="hidden layers of the generator")
    generator_width: PositiveInt = Field(default=141, description="width of each of them")
    discriminator_layers: PositiveInt = Field(
        default=2, description="hidden layers of each teacher and of the student"
    )
    discriminator_width: PositiveInt = Field(default=113, description="width of each of them")
    latent: PositiveInt = Field(default=32, description="normal numbers that a row is made of")


class DrawConfig(StrictModel):
    """Drawing the release."""

    chunk_rows: PositiveInt = Field(default=65_536, description="rows drawn at once")


class VotingConfig(StrictModel):
    """Votes, and what is learned between them."""

    noise: Literal["cheaper", "laplace", "gaussian"] = Field(
        default="cheaper",
        description="noise on each count of votes; the paper's is laplace; cheaper: whichever pays"
        " for more votes",
    )
    noise_share: PositiveFloat = Field(
        default=1.0,
        description="standard deviation of the noise on a count, as a share of the teachers; less"
        " noise is added where epsilon pays for more than most_steps",
    )
    votes_per_step: PositiveInt = Field(
        default=16, description="generated rows that teachers vote on in a step"
    )
    most_steps: PositiveInt = Field(
        default=1000,
        description="steps at most; as many are taken as epsilon pays for, if they are fewer",
    )
    spare: int = Field(
        default=1, ge=0, description="steps paid for so that a crash does not end the run"
    )
    labels: Literal["share", "majority"] = Field(
        default="share",
        description="what the student learns of a row: the noisy share of votes, or, as in the"
        " paper, what most votes say",
    )
    teacher_steps: PositiveInt = Field(default=10, description="gradient steps of teachers a step")
    teacher_batch: PositiveInt = Field(
        default=64, description="rows of its own, and as many generated ones, a teacher learns from"
    )
    student_steps: PositiveInt = Field(default=20, description="gradient steps of the student")
    student_batch: PositiveInt = Field(default=64, description="voted rows of each of them")
    memory: PositiveInt = Field(
        default=50, description="last steps whose voted rows the student learns from"
    )
    generator_steps: PositiveInt = Field(default=10, description="gradient steps of the generator")
    generator_batch: PositiveInt = Field(default=128, description="generated rows of each of them")
    optimiser: OptimiserConfig = OptimiserConfig(learning_rate=1e-3, beta1=0.5, ema_decay=0.99)
    sampling: DrawConfig = DrawConfig()


class PateGanConfig(RunConfig):
    """PATE-GAN: private synthetic transitions."""

    method: Literal["pate_gan"] = "pate_gan"
    model: AdversaryConfig = AdversaryConfig()
    training: VotingConfig = VotingConfig()
    output: OutputConfig


class PublicGameConfig(StrictModel):
    """Pre-training of the generator and the student on public rows, as an ordinary GAN."""

    steps: PositiveInt = Field(default=5000, description="gradient steps of each")
    batch_size: PositiveInt = Field(
        default=256, description="public rows, and as many generated ones, of a step"
    )


class TaughtVotingConfig(VotingConfig):
    """The same, after public pre-training."""

    pretraining: PublicGameConfig = PublicGameConfig()


class PrePateGanConfig(RunConfig):
    """PATE-GAN whose generator and student are pre-trained on public transitions."""

    method: Literal["pre_pate_gan"] = "pre_pate_gan"
    model: AdversaryConfig = AdversaryConfig()
    training: TaughtVotingConfig = TaughtVotingConfig()
    output: OutputConfig

    @model_validator(mode="after")
    def _has_public_rows(self) -> Self:
        if not self.data.public:
            raise ValueError(
                "data.public is empty: pre_pate_gan learns from public rows first; name a public"
                " dataset, or take method pate_gan"
            )
        return self


AnyPateGanConfig = PateGanConfig | PrePateGanConfig
