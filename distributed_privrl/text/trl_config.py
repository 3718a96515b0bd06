"""How trl tunes a language model; imports no torch."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from distributed_privrl.core.config import NotNegative, PositiveFloat, PositiveInt, StrictModel

_AT_ONCE = 16


class TrlOptions(StrictModel):
    """What GRPO and RLOO may be told beside how much they write."""

    epochs: PositiveInt = Field(default=1, description="times that a step goes over its samples")
    minibatch: PositiveInt | None = Field(
        default=None,
        description="samples that are computed at once; it divides those of a step (default: the"
        " largest power of two up to 16 that does)",
    )
    learning_rate: PositiveFloat = Field(default=1e-6, description="of AdamW")
    clip_range: PositiveFloat = Field(default=0.2, description="of the ratio of probabilities")
    kl_weight: NotNegative = Field(default=0.05, description="price of a nat")
    temperature: PositiveFloat = Field(default=1.0, description="of the draws")
    bf16: bool = Field(
        default=False, description="numbers of half the length, on a GPU that has them"
    )
    checkpoint_every: PositiveInt = Field(default=10, description="steps between two checkpoints")


class TrlConfig(TrlOptions):
    """How trl tunes a model."""

    algorithm: Literal["grpo", "rloo"] = "grpo"
    steps: PositiveInt = Field(default=100, description="batches that are scored")
    prompts: PositiveInt = Field(default=64, description="of a step")
    samples: PositiveInt = Field(default=2, description="completions of a prompt, two or more")
    most_tokens: PositiveInt = Field(default=512, description="of a completion")

    @model_validator(mode="after")
    def _whole_parts(self) -> Self:
        samples_at_once(self.minibatch, prompts=self.prompts, samples=self.samples)
        return self

    @property
    def at_once(self) -> int:
        """Samples that are computed at once."""
        return samples_at_once(self.minibatch, prompts=self.prompts, samples=self.samples)


def samples_at_once(minibatch: int | None, *, prompts: int, samples: int) -> int:
    """Return how many samples of a step are computed at once.

    Args:
        minibatch: as it was asked for; None: the largest power of two up to 16 that divides them.
        prompts: of a step.
        samples: of a prompt.

    Raises:
        ValueError: it does not divide the step's samples, or a prompt has one alone.
    """
    found = math.gcd(prompts * samples, _AT_ONCE) if minibatch is None else minibatch
    if prompts * samples % found or samples < 2:
        raise ValueError(
            f"minibatch {found} must divide the samples of a step, {prompts} prompts x {samples},"
            " and samples be two or more"
        )
    return found
