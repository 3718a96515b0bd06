"""The scorer that training calls: texts in, noisy rewards out, the corpus unseen."""

import hashlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import UnsafeError, WorkerLostError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.methods.dprft.similarity import Rounded, Similarity
from distributed_privrl.methods.dprft.votes import NearestVotes, VoteRule
from distributed_privrl.text.scoring import Encoder
from distributed_privrl.text.turns import CELLS, turn_statistics

logger = logging.getLogger(__name__)
MEAN = "mean"
"""Name of the one query of a sum of vectors."""
_SERVER_RESTARTS = 3


class Queries:
    """Asks a `QueryServer`, and asks again where its process died.

    Args:
        server: a group with one.

    Privacy: post-processing. A query whose answer was kept gets the same again.
    """

    def __init__(self, server: WorkerGroup) -> None:
        self._server = server

    def ask(self, query: str, arguments: dict[str, Any], rounds: int) -> NDArray[np.int64]:
        """Return the answer to a query; see `QueryServer.answer`.

        Raises:
            BudgetError: what is left does not pay for it; nothing was drawn.
            WorkerLostError: the server died too often, or did not come back.
        """
        losses = 0
        while True:
            try:
                return self._asked(query, arguments, rounds)
            except WorkerLostError as lost:
                losses += 1
                if not lost.may_return or losses > _SERVER_RESTARTS:
                    raise
                logger.warning(
                    "the server died: it is built again from its last answer, and a query that it"
                    " was drawing is paid for anew"
                )
                self._server.wait_for_lost()

    def _asked(self, query: str, arguments: dict[str, Any], rounds: int) -> NDArray[np.int64]:
        answer: NDArray[np.int64] | None = self._server.call("stored", {"query": query})[0]
        if answer is not None:
            return answer
        asked = {"query": query, "arguments": arguments, "rounds": rounds}
        found: NDArray[np.int64] = self._server.call("answer", asked)[0]
        return found


class _Scorer(ABC):
    """What scorers share.

    Args:
        queries: where answers come from.
        encoder: of the voters.
        similarity: of the voters.
        units: public number of units; scores are means over them.
    """

    def __init__(
        self, queries: Queries, encoder: Encoder, similarity: Similarity, units: int
    ) -> None:
        self._queries, self._encoder = queries, encoder
        self._similarity, self._units = similarity, units

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return one noisy reward a text, (B,), in order; see `text.scoring.Scorer`.

        No text, no query. The same texts in the same order get the same answer, wherever a trainer
        was stopped.

        Raises:
            BudgetError: what is left does not pay for B answers; nothing was drawn.
        """
        return self._scores(texts) if texts else np.zeros(0)

    @abstractmethod
    def _scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return rewards of texts, at least one."""

    def _rounded(self, texts: Sequence[str]) -> Rounded:
        structure = self._similarity.structure_weight
        turns = turn_statistics(texts) if structure else np.zeros((len(texts), CELLS))
        return self._similarity.synthetic(self._encoder.encode(texts), turns)


class VoteScorer(_Scorer):
    """Rewards are noisy sums of votes on the very texts, divided by the number of units.

    Args:
        queries: of a server whose workers are voters of the rule.
        encoder: see `_Scorer`.
        rule: of votes.
        units: see `_Scorer`.

    Privacy: post-processing of the server's answers; a query costs as many rounds as it has texts
        where the rule charges each, or one.
    """

    def __init__(self, queries: Queries, encoder: Encoder, rule: VoteRule, units: int) -> None:
        super().__init__(queries, encoder, rule.similarity, units)
        self._rule = rule

    def _scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        arguments = {"synthetic": self._rounded(texts)}
        rounds = len(texts) if self._rule.each_sample else 1
        answer = self._queries.ask(_name_of(texts), arguments, rounds)
        return answer / (self._rule.unit * self._units)

    def nearest_votes(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the noisy number of votes for each text, (B,); see `text.scoring.NearestVotes`.

        Raises:
            BudgetError: as `score`.
            UnsafeError: the rule is another one.
        """
        if not isinstance(self._rule, NearestVotes):
            raise UnsafeError("these voters do not vote for the nearest text: build them so")
        return self.score(texts) * self._units


class MeanScorer(_Scorer):
    """Rewards are products with the noisy mean of the corpus' vectors, which is released once.

    The mean cosine of a text is its product with the mean of all vectors, so that texts cost
    nothing after that (PRIVACY.md, section 9).

    Privacy: post-processing of one answer: a Gaussian release of a sum of vectors.
    """

    def _scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        total = self._queries.ask(MEAN, {}, 1)
        vectors = self._rounded(texts).vectors.astype(np.float64)
        products: NDArray[np.float64] = vectors @ total.astype(np.float64)
        return products / (self._similarity.steps * self._units)


def _name_of(texts: Sequence[str]) -> str:
    """Return a query's name: a digest of its texts, which are public, in order."""
    digest = hashlib.sha256()
    for text in texts:
        coded = text.encode("utf-8", "surrogatepass")
        digest.update(len(coded).to_bytes(8, "big") + coded)
    return digest.hexdigest()
