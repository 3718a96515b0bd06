"""What a report says of the released texts."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.dprft.comparison import read_texts
from distributed_privrl.methods.dprft.config import (
    DprftConfig,
    FineTuningConfig,
    TextConfig,
    TuningConfig,
)
from distributed_privrl.privacy.metrics import PublicValue


def text_sections(
    config: TextConfig, path: Sourced[Path], _: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the section on the texts.

    Args:
        config: of the run.
        path: of the texts.

    Privacy: post-processing of the released texts.
    """
    texts = path.then(read_texts)
    how, figures = _training(config)
    return [
        Section(
            title="What is in the texts",
            explanation=f"A language model was {how}, and wrote these texts.",
            metrics=[
                Metric(name="texts", value=texts.value(len)),
                Metric(name="different texts", value=texts.value(lambda found: len(set(found)))),
                Metric(name="words of a text, median", value=texts.value(_median_words)),
                *figures,
            ],
        )
    ]


def _training(config: TextConfig) -> tuple[str, list[Metric]]:
    """Return in words how the model was trained, and public figures of it."""
    training = config.training
    if isinstance(config, FineTuningConfig):
        rounds = Metric(name="rounds", value=PublicValue(config.training.rounds))
        units = PublicValue(config.training.expected_batch_size)
        batch = Metric(name="units of a round, on average", value=units)
        return "fine-tuned on the documents in private rounds", [rounds, batch]
    assert isinstance(config, DprftConfig)
    assert isinstance(training, TuningConfig)
    scored = PublicValue(training.prompts_per_step * training.samples)
    at_most = "at most: those that fail the gate are not scored"
    return "tuned by noisy votes of the documents, which it never read", [
        Metric(name="reward", value=PublicValue(config.model.reward)),
        Metric(name="steps", value=PublicValue(training.steps)),
        Metric(name="texts scored a step", value=scored, explanation=at_most),
    ]


def _median_words(texts: list[str]) -> float:
    return float(statistics.median(len(text.split()) for text in texts))
