"""A step of DP-RFT's tuning: how much of it the model writes, and how much it learns.

A GPT-2 of the default sizes, untrained so that its texts are as long as they may be, is tuned by
scores that cost no time: those of a run come beside (`python -m benchmarks.votes`).
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Result
from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.language import (
    SmallModelConfig,
    small_language,
    trained_tokenizer,
)
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import PpoConfig
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.public_text import excerpts, installed_documents
from distributed_privrl.text.stopping import StepMetrics


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        package: whose prose gives the tokenizer and the prompts.
        model: its sizes.
        config: of the tuning.
    """

    package: str
    model: SmallModelConfig
    config: PpoConfig


FULL = Size(package="scipy", model=SmallModelConfig(), config=PpoConfig(steps=6))
QUICK = Size(
    package="gymnasium",
    model=SmallModelConfig(vocabulary=384, context=48, width=16, layers=1, heads=1),
    config=PpoConfig(steps=2, prompts=2, most_tokens=8),
)


class FreeScores:
    """Scores that say nothing and cost no time."""

    def __init__(self) -> None:
        self._source = Streams(SEED).numpy("scores")

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return one number a text."""
        return self._source.normal(size=len(texts))


def run(quick: bool) -> Result:
    """Measure each step after the first."""
    size = QUICK if quick else FULL
    texts = [one.text for one in excerpts(installed_documents([size.package]), words=60)]
    language = small_language(
        trained_tokenizer(texts, config=size.model), config=size.model, streams=Streams(SEED)
    )
    trainer = PpoTrainer(
        language,
        FreeScores(),
        gate=Gate(most_repetition=1.0),
        prompts=[Prompt(text=" ".join(text.split()[:6])) for text in texts[:256]],
        config=size.config,
        streams=Streams(SEED),
    )
    seen, ends = list[StepMetrics](), [time.perf_counter()]

    def told(metrics: StepMetrics) -> None:
        seen.append(metrics)
        ends.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        trainer.train(Path(folder), report=told)
    seconds = np.diff(ends)
    cells = [
        {
            "step": one.step,
            "seconds": float(took),
            "share of writing": one.generation_share,
            "tokens a text": one.tokens,
        }
        for one, took in zip(seen[1:], seconds[1:], strict=True)
    ]
    share = statistics.median(one.generation_share for one in seen[1:])
    samples = size.config.prompts * size.config.samples
    return Result(
        cells=cells,
        ratios={"generation_share": share},
        notes=(
            f"{samples} texts a step of {size.config.most_tokens} tokens at most, by a GPT-2 of"
            f" {size.model.layers} layers of {size.model.width}; the first step is left out.",
        ),
    )


if __name__ == "__main__":
    harness.main("tuning_step", run)
