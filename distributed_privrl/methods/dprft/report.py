"""What a report says of the released texts."""

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.privacy.metrics import PublicValue


def text_sections(
    config: DprftConfig, path: Sourced[Path], _: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the section on the texts.

    Args:
        config: of the run.
        path: of the texts.

    Privacy: post-processing of the released texts.
    """
    texts = path.then(_read)
    training = config.training
    return [
        Section(
            title="What is in the texts",
            explanation="A language model was tuned by noisy votes of the documents, which it never"
            " read, and wrote these texts.",
            metrics=[
                Metric(name="texts", value=texts.value(len)),
                Metric(name="different texts", value=texts.value(lambda found: len(set(found)))),
                Metric(name="words of a text, median", value=texts.value(_median_words)),
                Metric(name="reward", value=PublicValue(config.model.reward)),
                Metric(name="steps", value=PublicValue(training.steps)),
                Metric(
                    name="texts scored a step",
                    value=PublicValue(training.prompts_per_step * training.samples),
                    explanation="at most: those that fail the gate are not scored",
                ),
            ],
        )
    ]


def _read(file: Path) -> list[str]:
    return [json.loads(line)["text"] for line in file.read_text().splitlines()]


def _median_words(texts: list[str]) -> float:
    return float(statistics.median(len(text.split()) for text in texts))
