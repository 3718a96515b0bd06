"""What a report says of the value of a policy."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.privacy.metrics import PublicValue

NORMAL_95 = 1.96


def value_sections(
    config: PolicyValueConfig, path: Sourced[Path], _: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the section on the value.

    Args:
        config: of the run.
        path: of the figures.

    Privacy: post-processing of the released figures.
    """
    figures = path.then(lambda file: dict(json.loads(file.read_text())))

    def number(name: str) -> Callable[[dict[str, Any]], float]:
        return lambda found: float(found[name])

    def interval(name: str, error: str) -> Callable[[dict[str, Any]], str]:
        def text(found: dict[str, Any]) -> str:
            middle, reach = found[name], NORMAL_95 * found[error]
            return f"{middle - reach:.4g} to {middle + reach:.4g}"

        return text

    value, gain = "value of the policy", "gain over who acted"
    return [
        Section(
            title="What the policy would earn",
            explanation="An agent was trained on released rows. A doubly robust estimate says what"
            " it would have earned in each real episode; all that it needs was fitted on released"
            " rows, each person's mean was clipped, and the mean over people got noise. Intervals"
            " are of that noise and of chance in who was recorded; how far the agent acts unlike"
            " those who were recorded, and so where the estimate rests on the released rows alone,"
            " the agreement says.",
            metrics=[
                Metric(
                    name="value of the policy",
                    value=figures.value(number(value)),
                    explanation="mean undiscounted return of an episode; beside it: of who acted",
                    reference=figures.value(number("return of who acted")),
                ),
                Metric(
                    name="value of the policy, 95 % interval",
                    value=figures.value(interval(value, "standard error of the value")),
                    explanation="normal approximation",
                ),
                Metric(
                    name="gain over who acted", value=figures.value(number(gain)), explanation=""
                ),
                Metric(
                    name="gain over who acted, 95 % interval",
                    value=figures.value(interval(gain, "standard error of the gain")),
                    explanation="an interval that holds 0 shows no gain",
                ),
                Metric(
                    name="noise of a mean",
                    value=figures.value(number("noise of a mean")),
                    explanation="standard deviation",
                ),
                Metric(
                    name="agreement",
                    value=figures.value(number("agreement")),
                    explanation="share of the released rows in which the agent would have done the"
                    " same",
                ),
                Metric(name="agent", value=PublicValue(config.training.trainer)),
                Metric(name="trained on", value=PublicValue(config.model.release)),
            ],
        )
    ]
