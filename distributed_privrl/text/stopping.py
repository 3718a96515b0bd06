"""When training ends before its time: by public signals alone."""

import math
from dataclasses import dataclass

from pydantic import Field

from distributed_privrl.core.config import (
    Finite,
    NotNegative,
    PositiveFloat,
    PositiveInt,
    Share,
    StrictModel,
)


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """What a step of training did.

    Args:
        step: counted from one.
        reward: mean of the samples' rewards, failed ones included; NaN where none passed.
        gate_rate: share of samples that passed the gate.
        kl: from the model before training, nats a token.
        kl_weight: price of a nat in this step.
        entropy: of the policy, nats a token.
        tokens: mean length of a completion.
        distinct: share of completions that no earlier one of the step equals.
        policy_loss: mean over the gradient steps.
        value_loss: mean over the gradient steps.
        generation_share: of the time that generation and updates took; scoring is left out.

    Privacy:
        Made of noisy answers (post-processing) and of public facts; nothing tells how long the
        scorer took.
    """

    step: int
    reward: float
    gate_rate: float
    kl: float
    kl_weight: float
    entropy: float
    tokens: float
    distinct: float
    policy_loss: float
    value_loss: float
    generation_share: float


class StoppingRule(StrictModel):
    """Limits of public signals, which tell of a collapsed language before any reader sees it.

    A limit that is null is none.
    """

    most_kl: PositiveFloat | None = Field(
        default=None, description="nats a token from the model before training"
    )
    least_entropy: NotNegative = Field(default=0.0, description="nats a token")
    least_gate_rate: Share = Field(default=0.0, description="share of samples that pass")
    least_distinct: Share = Field(default=0.0, description="share of samples that differ")
    most_loss_rise: Finite | None = Field(
        default=None,
        description="by how many nats a token the loss may rise on public text that the model has"
        " learned, where it is made of packages",
    )
    patience: PositiveInt = Field(
        default=3,
        description="steps in a row that must break a limit; the loss on public text need only"
        " once",
    )

    def broken(self, metrics: StepMetrics) -> str:
        """Return which limit a step breaks, in words; empty where none."""
        most_kl = math.inf if self.most_kl is None else self.most_kl
        limits = (
            ("kl", metrics.kl > most_kl, most_kl),
            ("entropy", metrics.entropy < self.least_entropy, self.least_entropy),
            ("gate_rate", metrics.gate_rate < self.least_gate_rate, self.least_gate_rate),
            ("distinct", metrics.distinct < self.least_distinct, self.least_distinct),
        )
        found = [
            f"{name} is {getattr(metrics, name):.3g}, its limit {limit:.3g}"
            for name, breaks, limit in limits
            if breaks
        ]
        return "; ".join(found)
