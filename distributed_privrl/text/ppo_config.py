"""How a language model is tuned on scores, and how that ended."""

from dataclasses import dataclass, field

from distributed_privrl.core.errors import BudgetError
from distributed_privrl.text.stopping import StoppingRule


@dataclass(frozen=True, kw_only=True)
class PpoConfig:
    """How a language model is tuned.

    Args:
        steps: T: batches that are scored.
        prompts: of a step.
        samples: completions of a prompt; DP-RFT scores 64 prompts x 2.
        most_tokens: of a completion.
        temperature: of the draws; probabilities are those at temperature one.
        epochs: times that a step goes over its samples.
        minibatch: samples of a gradient step.
        learning_rate: of Adam.
        gradient_norm: largest norm of a gradient.
        clip_range: of the ratio of probabilities.
        value_clip_range: of a value.
        value_weight: of the values' loss.
        entropy_weight: of the entropy in the loss.
        discount: of rewards, a token.
        trace_decay: lambda of the advantages.
        kl_weight: price of a nat in the first step, and the least later, in units of a reward.
        kl_target: nats a token that the price steers towards; None: the price stays.
        kl_gain: how fast it follows.
        normalise: rewards of a step are brought to mean zero and variance one first, so that prices
            do not depend on the scale of scores and noise.
        checkpoint_every: steps between two checkpoints and checks of the public loss.
        stopping: limits of public signals.
    """

    steps: int = 100
    prompts: int = 64
    samples: int = 2
    most_tokens: int = 64
    temperature: float = 1.0
    epochs: int = 1
    minibatch: int = 64
    learning_rate: float = 1e-4
    gradient_norm: float = 1.0
    clip_range: float = 0.2
    value_clip_range: float = 0.5
    value_weight: float = 0.1
    entropy_weight: float = 0.0
    discount: float = 1.0
    trace_decay: float = 0.95
    kl_weight: float = 0.1
    kl_target: float | None = 0.1
    kl_gain: float = 0.25
    normalise: bool = True
    checkpoint_every: int = 10
    stopping: StoppingRule = field(default_factory=StoppingRule)


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
