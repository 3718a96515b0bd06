"""How a language model is tuned on scores, and how that ended."""

from dataclasses import dataclass

from pydantic import Field

from distributed_privrl.core.config import (
    NotNegative,
    PositiveFloat,
    PositiveInt,
    Share,
    StrictModel,
)
from distributed_privrl.core.errors import BudgetError
from distributed_privrl.text.stopping import StoppingRule


class PpoOptions(StrictModel):
    """What proximal policy optimisation may be told beside how much it writes."""

    temperature: PositiveFloat = Field(
        default=1.0, description="of the draws; probabilities are those at temperature one"
    )
    epochs: PositiveInt = Field(default=1, description="times that a step goes over its samples")
    minibatch: PositiveInt = Field(default=64, description="samples of a gradient step")
    learning_rate: PositiveFloat = Field(default=1e-4, description="of Adam")
    gradient_norm: PositiveFloat = Field(default=1.0, description="largest norm of a gradient")
    clip_range: PositiveFloat = Field(default=0.2, description="of the ratio of probabilities")
    value_clip_range: PositiveFloat = Field(default=0.5, description="of a value")
    value_weight: NotNegative = Field(default=0.1, description="of the values' loss")
    entropy_weight: NotNegative = Field(default=0.0, description="of the entropy in the loss")
    discount: Share = Field(default=1.0, description="of rewards, a token")
    trace_decay: Share = Field(default=0.95, description="lambda of the advantages")
    kl_weight: NotNegative = Field(
        default=0.1,
        description="price of a nat in the first step, and the least later, in units of a reward",
    )
    kl_target: PositiveFloat | None = Field(
        default=0.1,
        description="nats a token that the price steers towards; null: the price stays",
    )
    kl_gain: float = Field(default=0.25, ge=0, le=5, description="how fast it follows")
    normalise: bool = Field(
        default=True,
        description="rewards of a step are brought to mean zero and variance one first, so that"
        " prices do not depend on the scale of scores and noise",
    )
    likelihood_weight: NotNegative = Field(
        default=0.0,
        description="how much the reward counts how likely a text was to the model before: in"
        " standard deviations of the scores, for one of the mean log-probability of a token",
    )
    checkpoint_every: PositiveInt = Field(
        default=10, description="steps between two checkpoints and checks of the public loss"
    )
    stopping: StoppingRule = Field(default=StoppingRule(), description="limits of public signals")


class PpoConfig(PpoOptions):
    """How a language model is tuned."""

    steps: PositiveInt = Field(default=100, description="T: batches that are scored")
    prompts: PositiveInt = Field(default=64, description="of a step")
    samples: PositiveInt = Field(
        default=2, description="completions of a prompt; DP-RFT scores 64 prompts x 2"
    )
    most_tokens: PositiveInt = Field(default=64, description="of a completion")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a training ended; its model lies in the folder ``model``.

    Args:
        steps: batches that the model has learned from.
        stopped: why it ended early, in words; empty where all steps were made.
        refusal: of the scorer, where the budget ended it.
    """

    steps: int
    stopped: str = ""
    refusal: BudgetError | None = None
