"""When training ends before its time: by public signals alone."""

from dataclasses import dataclass


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


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """Limits of public signals, which tell of a collapsed language before any reader sees it.

    Args:
        most_kl: nats a token from the model before training.
        least_entropy: nats a token.
        least_gate_rate: share of samples that pass.
        least_distinct: share of samples that differ.
        most_loss_rise: by how many nats a token the loss on public text may rise.
        patience: steps in a row that must break a limit; the loss on public text need only once.
    """

    most_kl: float = float("inf")
    least_entropy: float = 0.0
    least_gate_rate: float = 0.0
    least_distinct: float = 0.0
    most_loss_rise: float = float("inf")
    patience: int = 3

    def broken(self, metrics: StepMetrics) -> str:
        """Return which limit a step breaks, in words; empty where none."""
        limits = (
            ("kl", metrics.kl > self.most_kl, self.most_kl),
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
