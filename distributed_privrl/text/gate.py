"""What a text must satisfy before it is scored, by public facts alone: its prompt and itself.

Reference: DP-RFT, section 3.2: similarity alone is easily hacked, so samples that do not answer
their prompt get no reward.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt

Judge = Callable[[Prompt, str], float]
"""Rates a completion of a prompt from 1 to 10, by these two alone."""
FailureReward = Literal["zero", "below"]

_STANDARD_DEVIATIONS = 3.0
_RATING = """# Instruction
Please act as an impartial judge and evaluate the quality of the response provided by an AI \
assistant to the user instruction displayed below. Your evaluation should consider factors such \
as the helpfulness, relevance, depth, creativity, and level of detail of the response. Be as \
objective as possible. Only respond the rating number from 1 to 10. Do not include any other text \
or explanation in your response.
[Instruction]
{instruction}
[The Start of Assistant's Response]
{response}
[The End of Assistant's Response]
[Rating]
"""
"""DP-RFT, table 6."""


@dataclass(frozen=True, kw_only=True)
class Gate:
    """Rules and a judge, all of which a text must pass.

    Args:
        length_within: most words by which a text may miss the length that its prompt names; None:
            no matter. Prompts that name none are not held to it.
        least_words: that a text has.
        turn: regular expression that each line must match from its start, e.g. ``"User: |Assistant:
            "``; None: no format.
        most_repetition: largest share of a text's three-word sequences that one of them may be.
        judge: rates prompt and completion; None: nobody does.
        least_rating: of the judge.
        failed: reward of a text that fails: ``zero``, as in the paper, or ``below``: the mean minus
            three standard deviations of those that passed, since noise often puts a good text's
            score below zero.

    Raises:
        ConfigError: ``turn`` is no regular expression.
    """

    length_within: int | None = None
    least_words: int = 1
    turn: str | None = None
    most_repetition: float = 0.25
    judge: Judge | None = None
    least_rating: float = 6.0
    failed: FailureReward = "zero"

    def __post_init__(self) -> None:
        try:
            re.compile(self.turn or "")
        except re.error as error:
            raise ConfigError(f"turn {self.turn!r} is no regular expression: {error}") from error

    def passes(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> NDArray[np.bool_]:
        """Tell which texts may be scored (B,); the judge sees only what the rules let through."""
        pairs = zip(prompts, texts, strict=True)
        return np.array([self._passes(prompt, text) for prompt, text in pairs], dtype=bool)

    def rewards(
        self, scores: NDArray[np.float64], passed: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Return the reward of every sample (B,).

        Args:
            scores: of those that passed, in order.
            passed: (B,).
        """
        low = 0.0
        if self.failed == "below" and len(scores):
            low = float(scores.mean() - _STANDARD_DEVIATIONS * scores.std())
        rewards = np.full(len(passed), low)
        rewards[passed] = scores
        return rewards

    def _passes(self, prompt: Prompt, text: str) -> bool:
        words = text.split()
        if len(words) < max(1, self.least_words):
            return False
        missed = 0 if prompt.words is None else abs(len(words) - prompt.words)
        if self.length_within is not None and missed > self.length_within:
            return False
        if self.turn and not all(re.match(self.turn, line) for line in text.splitlines() if line):
            return False
        if repetition(words) > self.most_repetition:
            return False
        return self.judge is None or self.judge(prompt, text) >= self.least_rating


def repetition(words: Sequence[str]) -> float:
    """Return the share of three-word sequences that the most frequent one has; 0 if none recurs.

    Example:
        >>> repetition("so it goes so it goes so it goes".split())
        0.42857142857142855
        >>> repetition("each word is another one".split())
        0.0
    """
    counts = Counter(zip(words, words[1:], words[2:], strict=False))
    most = max(counts.values(), default=0)
    return most / counts.total() if most > 1 else 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class InstructJudge:
    """A local instruct model that rates as the paper's judge does; an answer without a number is 0.

    Args:
        language: e.g. `Language.load` of a folder.
    """

    language: Language

    def __call__(self, prompt: Prompt, text: str) -> float:
        """Return the rating, 1 to 10, or 0."""
        asked = _RATING.format(instruction=prompt.text, response=text)
        answer = generate(
            self.language,
            [asked],
            most_tokens=4,
            generator=torch.Generator(),
            temperature=1e-4,
        ).texts[0]
        found = re.search(r"\d+(\.\d+)?", answer)
        rating = float(found.group()) if found else 0.0
        return rating if 1 <= rating <= 10 else 0.0
