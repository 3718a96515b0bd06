"""How texts evolve; imports no torch."""

from typing import Literal

from pydantic import Field

from distributed_privrl.core.config import NotNegative, PositiveInt, Probability, StrictModel


class AugPeOptions(StrictModel):
    """What augmented private evolution may be told beside how much it writes."""

    blank_probability: Probability = Field(
        default=0.6,
        description="of a token, or word, that is written anew; DP-RFT, appendix E.1.1",
    )
    variation: Literal["rewrite", "fill"] = Field(
        default="rewrite",
        description="rewrite: blanks are drawn where they stand; fill: an instruct model is asked",
    )
    threshold: NotNegative = Field(
        default=0.0,
        description="votes below it count as none; 0 drops what noise alone made negative",
    )
    batch: PositiveInt = Field(default=128, description="texts that are written at once")


class AugPeConfig(AugPeOptions):
    """How texts evolve."""

    iterations: int = Field(default=10, ge=0, description="rounds of votes")
    population: PositiveInt = Field(default=512, description="texts that are voted for")
    most_tokens: PositiveInt = Field(default=64, description="of a text")
