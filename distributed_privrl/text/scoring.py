"""What training asks of those who hold texts that it must not read."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Scorer(Protocol):
    """Scores synthetic texts against a corpus that never leaves its holders."""

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return one noisy reward a text, in order.

        Args:
            texts: B synthetic texts, at least one, each of which passed the public gate.

        Raises:
            BudgetError: what is left does not pay for B answers; nothing was drawn.

        Privacy:
            Each text is charged (PRIVACY.md section 9), by whoever implements this. The same texts
            asked again, by a trainer that was stopped before it kept the answer, must get the same
            answer or a refusal, never a fresh draw.
        """
        ...


class NearestVotes(Protocol):
    """Counts whose nearest synthetic text each text of a corpus is, the corpus unseen."""

    def nearest_votes(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return a noisy number of votes for each text, in order; noise may make it negative.

        Args:
            texts: B synthetic texts, at least one.

        Raises:
            BudgetError: what is left does not pay for the histogram; nothing was drawn.

        Privacy:
            The histogram is charged by whoever implements this; see `Scorer.score`.
        """
        ...


class Encoder(Protocol):
    """Turns texts into vectors."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return ``(B, D)``, each row of norm one, or zero where a text says nothing."""
        ...
