"""Augmented private evolution: an untuned model's texts, chosen by noisy votes and varied.

Reference: Xie et al., "Differentially private synthetic data via foundation model APIs 2: text"
(2024), algorithm 1, as DP-RFT, section 4.2 and appendix E.1.1, compares with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_probability
from distributed_privrl.core.errors import BudgetError, ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.aug_pe_config import AugPeConfig
from distributed_privrl.text.generation import FREE, generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.scoring import NearestVotes

BLANK = "_"
_FILL = (
    "You are required to fill in the blanks with more details for the input text in a professional"
    " tone. If there is no blanks, please output the original text. Please fill in the blanks in"
    " the following sentences: {masked} and your answer MUST be exactly {words} words."
)
"""DP-RFT, table 8."""


class Variation(Protocol):
    """Writes texts that are like others."""

    def __call__(
        self, prompts: Sequence[Prompt], texts: Sequence[str], streams: Streams
    ) -> list[str]:
        """Return one variation a text.

        Args:
            prompts: that the texts were written for.
            texts: B.
            streams: public randomness of this call.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Evolved:
    """Where an evolution ended.

    Args:
        texts: the population.
        prompts: of each text's ancestor.
        iterations: votes that it has learned from.
        refusal: of the voters, where the budget ended it.
    """

    texts: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    iterations: int
    refusal: BudgetError | None = None


def evolve(
    language: Language,
    votes: NearestVotes,
    *,
    prompts: Sequence[Prompt],
    vary: Variation,
    config: AugPeConfig,
    streams: Streams,
) -> Evolved:
    """Return a population whose ancestors were chosen by votes, each varied once an iteration.

    Args:
        language: untuned, and it stays so.
        votes: asked once an iteration, about the whole population.
        prompts: public ones; each begins as many texts as any other.
        vary: the variation.
        config: how.
        streams: public randomness.

    Raises:
        ConfigError: there are no prompts.
    """
    if not prompts:
        raise ConfigError("prompts must hold at least one, got none")
    own = [prompts[row % len(prompts)] for row in range(config.population)]
    texts = _written(language, own, config, streams.child("first"))
    for iteration in range(config.iterations):
        try:
            found = votes.nearest_votes(texts)
        except BudgetError as refusal:
            return Evolved(
                texts=tuple(texts), prompts=tuple(own), iterations=iteration, refusal=refusal
            )
        generator = streams.numpy(f"survivors {iteration}")
        rows = survivors(found, config.population, config.threshold, generator)
        own, texts = [own[row] for row in rows], [texts[row] for row in rows]
        texts = vary(own, texts, streams.child(f"variation {iteration}"))
    return Evolved(texts=tuple(texts), prompts=tuple(own), iterations=config.iterations)


def survivors(
    votes: NDArray[np.float64], count: int, threshold: float, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Draw rows in proportion to their votes, each as near to its share as whole numbers allow.

    Where no votes are left after the threshold, all rows are as likely.

    Args:
        votes: noisy (B,).
        count: of the rows.
        threshold: votes below it count as none.
        generator: of the draw (systematic sampling).
    """
    kept = np.where(votes > threshold, votes, 0.0)
    shares = kept / kept.sum() if kept.sum() > 0 else np.full(len(votes), 1 / len(votes))
    marks = (np.arange(count) + generator.random()) / count
    found = np.searchsorted(np.cumsum(shares), marks, side="right")
    return np.minimum(found, int(np.flatnonzero(shares)[-1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class RewrittenBlanks:
    """Variation for models that follow no instructions: blanks are drawn where they stand.

    Tokens of the text are kept or blanked; the model reads the prompt and what stands before a
    blank, and draws it.

    Args:
        language: the model.
        most_tokens: of a text.
        blank_probability: of a token; DP-RFT, appendix E.1.1.
        batch: texts that are written at once.
    """

    language: Language
    most_tokens: int
    blank_probability: float
    batch: int

    def __post_init__(self) -> None:
        check_probability("blank_probability", self.blank_probability)

    def __call__(
        self, prompts: Sequence[Prompt], texts: Sequence[str], streams: Streams
    ) -> list[str]:
        """See `Variation`."""
        blanks, written = streams.numpy("blanks"), list[str]()
        generator = torch.Generator().manual_seed(streams.integer("tokens"))
        for start in range(0, len(texts), self.batch):
            rows = slice(start, start + self.batch)
            given = [
                [FREE if blanks.random() < self.blank_probability else token for token in one]
                for one in self.language.encode(texts[rows])
            ]
            drawn = generate(
                self.language,
                [prompt.text for prompt in prompts[rows]],
                most_tokens=self.most_tokens,
                generator=generator,
                given=given,
            )
            written += drawn.texts
        return written


@dataclass(frozen=True, kw_only=True, eq=False)
class FilledBlanks:
    """Variation by an instruct model, asked to fill in the blanks of a text, as the paper's is.

    Args:
        language: the model.
        most_tokens: of a text.
        blank_probability: of a word; DP-RFT, appendix E.1.1.
        batch: texts that are written at once.
        request: with the places ``{masked}`` and ``{words}``.
    """

    language: Language
    most_tokens: int
    blank_probability: float
    batch: int
    request: str = _FILL

    def __post_init__(self) -> None:
        check_probability("blank_probability", self.blank_probability)

    def __call__(
        self, prompts: Sequence[Prompt], texts: Sequence[str], streams: Streams
    ) -> list[str]:
        """See `Variation`; what the texts were written for does not matter here."""
        blanks, written = streams.numpy("blanks"), list[str]()
        generator = torch.Generator().manual_seed(streams.integer("tokens"))
        asked = [
            self.request.format(
                masked=" ".join(
                    BLANK if blanks.random() < self.blank_probability else word
                    for word in text.split()
                ),
                words=len(text.split()),
            )
            for text in texts
        ]
        for start in range(0, len(asked), self.batch):
            drawn = generate(
                self.language,
                asked[start : start + self.batch],
                most_tokens=self.most_tokens,
                generator=generator,
            )
            written += drawn.texts
        return written


def _written(
    language: Language, prompts: Sequence[Prompt], config: AugPeConfig, streams: Streams
) -> list[str]:
    generator, texts = torch.Generator().manual_seed(streams.integer("tokens")), list[str]()
    for start in range(0, len(prompts), config.batch):
        texts += generate(
            language,
            [prompt.text for prompt in prompts[start : start + config.batch]],
            most_tokens=config.most_tokens,
            generator=generator,
        ).texts
    return texts
