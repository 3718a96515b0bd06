"""Mistakes that one could make in votes on texts."""

from typing import Any

import numpy as np
import pytest

from distributed_privrl.methods.dprft import voter
from distributed_privrl.methods.dprft.comparison import TextComparer
from distributed_privrl.methods.dprft.releases import VoteRelease
from distributed_privrl.methods.dprft.votes import ClippedVotes
from distributed_privrl.rounds.queries import QueryServer
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.trl_training import GatedReward


def clipped_above_alone(patch: pytest.MonkeyPatch) -> None:
    """The paper's formula: a cosine of -1 moves a vote by twice the threshold."""

    def votes(self: ClippedVotes, scores: Any) -> Any:
        return np.minimum(scores, self.most).astype(np.int64)

    patch.setattr(ClippedVotes, "votes", votes)


def not_clipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ClippedVotes, "votes", lambda _, scores: scores.astype(np.int64))


def a_document_counts_twice(patch: pytest.MonkeyPatch) -> None:
    right = voter._of_units
    patch.setattr(voter, "_of_units", lambda *given: 2 * right(*given))


def noise_twice(patch: pytest.MonkeyPatch) -> None:
    """Each answer is the mean of two draws, which are charged as one."""
    right = VoteRelease.release

    def twice(self: VoteRelease, total: Any, source: Any, *, tag: int) -> Any:
        one, other = (right(self, total, source, tag=tag) for _ in range(2))
        return (one + other) // 2

    patch.setattr(VoteRelease, "release", twice)


def too_little_noise(patch: pytest.MonkeyPatch) -> None:
    """The noise of a step's sensitivity goes onto each sample, without the root of their number."""
    right = VoteRelease.release

    def less(self: VoteRelease, total: Any, source: Any, *, tag: int) -> Any:
        small = VoteRelease(
            noise_multiplier=self.noise_multiplier / np.sqrt(len(total)),
            sensitivity=self.sensitivity,
        )
        return right(small, total, source, tag=tag)

    patch.setattr(VoteRelease, "release", less)


def answers_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A retry draws new noise for a query that was answered."""
    patch.setattr(QueryServer, "stored", lambda *_, **__: None)


def a_query_is_charged_as_one(patch: pytest.MonkeyPatch) -> None:
    """A step is one round, as if its sums had noise for all of them."""
    right = QueryServer.answer

    def answer(self: QueryServer, query: str, arguments: Any, rounds: int) -> Any:
        return right(self, query, arguments, 1)

    patch.setattr(QueryServer, "answer", answer)
    patch.setattr(QueryServer, "_check_rounds", lambda *_: None)  # that it itself looks at


def evaluations_ask(patch: pytest.MonkeyPatch) -> None:
    """The trainer's evaluation passes are scored like its training."""
    right = GatedReward.__call__

    def call(self: GatedReward, **given: Any) -> Any:
        self.training = lambda: True
        return right(self, **given)

    patch.setattr(GatedReward, "__call__", call)


def all_texts_are_scored(patch: pytest.MonkeyPatch) -> None:
    """The gate is asked after scoring, and not before."""
    patch.setattr(Gate, "passes", lambda _, prompts, texts: np.ones(len(texts), bool))


def an_error_quotes_a_document(patch: pytest.MonkeyPatch) -> None:
    """What a worker cannot compare is told in its own words."""

    def compared(self: TextComparer) -> Any:
        raise ValueError(f"nothing to compare in {next(self._documents())!r}")

    patch.setattr(TextComparer, "compared", compared)
