"""What a unit says of a batch of synthetic texts: rules of votes, each with its sensitivity.

A rule makes of each document's scores a vector of whole numbers; a unit's vector is the mean of its
documents', rounded towards zero. Sums over units are exact in any order.
"""

import abc
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.dprft.similarity import RADIUS, Similarity
from distributed_privrl.privacy.units import Relation

SHARES = 2**20
"""Whole numbers of one vote that is divided."""
_TABLE_STEPS, _TABLE_END = 256, 20
_SHIFT = 2**8
"""Steps of a score that are one of a centred vote: squares of 2^17 in sums stay below 2^63."""


@dataclass(frozen=True, kw_only=True)
class VoteRule(abc.ABC):
    """From scores to votes.

    Args:
        similarity: whose scores it is given.
    """

    similarity: Similarity

    @property
    def each_sample(self) -> bool:
        """Whether each sample that is scored is charged, and not each query."""
        return False

    @property
    @abc.abstractmethod
    def unit(self) -> int:
        """Whole numbers of a vote of 1."""

    @abc.abstractmethod
    def sensitivity(self, relation: Relation) -> float:
        """Return how far one unit moves the sum of votes, in L2.

        Of one coordinate where `each_sample`, of the whole vector where not.
        """

    @abc.abstractmethod
    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the votes (N, B) of N documents for B texts, from their `Similarity.scores`."""


@dataclass(frozen=True, kw_only=True)
class ClippedVotes(VoteRule):
    """Scores themselves, clipped to [0, threshold]: the paper's.

    Args:
        threshold: tau.

    Raises:
        ConfigError: it is not in (0, 1].

    Privacy: a unit adds a number in [0, tau] to each text's sum, a null one 0: whatever the
        relation, it moves each by tau at most. Clipped above alone, a cosine of -1 would move it by
        1. Charged for each text scored.

    Reference: paper 003, figure 2, with the lower bound that it lacks.
    """

    threshold: float

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold must be in (0, 1], got {self.threshold}")
        if self.most < 1:
            raise ConfigError(
                f"model.threshold={self.threshold} is below the {1 / self.unit:.2g} that scores are"
                " rounded to: raise it"
            )

    @property
    def each_sample(self) -> bool:
        """Each sample is charged."""
        return True

    @property
    def unit(self) -> int:
        """Steps of a score of 1."""
        return self.similarity.steps

    @property
    def most(self) -> int:
        """Steps of the threshold."""
        return math.floor(self.threshold * self.unit)

    def sensitivity(self, relation: Relation) -> float:
        """Return the threshold in steps, under any relation."""
        return float(self.most)

    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return clipped scores."""
        return np.clip(scores, 0, self.most).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class SoftVotes(VoteRule):
    """One vote, divided by a softmax of scores over the batch.

    Args:
        temperature: difference of scores that divides a share by e.

    Raises:
        ConfigError: it is not above 0.

    Privacy: a unit's shares are not negative and add up to `SHARES` at most, so that their L2 norm
        is `SHARES` at most; two units' differ by sqrt(2) times that. Charged for each query,
        whatever its size. The exponential is read from a table, and the division is one of whole
        numbers: no other document changes a bit.
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    @property
    def unit(self) -> int:
        """Whole numbers of the vote."""
        return SHARES

    def sensitivity(self, relation: Relation) -> float:
        """Return the norm of a vote, or of the difference of two."""
        return SHARES * math.sqrt(relation.contributions)

    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return shares."""
        below = (scores.max(axis=1, keepdims=True) - scores).astype(np.float64)
        step = self.temperature * self.similarity.steps / _TABLE_STEPS
        table = np.floor(SHARES * np.exp(-np.arange(_TABLE_STEPS * _TABLE_END) / _TABLE_STEPS))
        places = np.minimum(below / step, len(table) - 1).astype(np.int64)
        weights = table.astype(np.int64)[places]
        shares: NDArray[np.int64] = weights * SHARES // weights.sum(axis=1, keepdims=True)
        return shares


@dataclass(frozen=True, kw_only=True)
class NearestVotes(VoteRule):
    """One vote for the nearest text, the first of equal ones.

    Privacy: as `SoftVotes`.

    Reference: Xie et al. 2024 (Aug-PE), algorithm 2.
    """

    @property
    def unit(self) -> int:
        """Whole numbers of the vote."""
        return SHARES

    def sensitivity(self, relation: Relation) -> float:
        """Return the norm of a vote, or of the difference of two."""
        return SHARES * math.sqrt(relation.contributions)

    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return the whole vote at one place of each row."""
        given = np.zeros(scores.shape, np.int64)
        given[np.arange(len(scores)), scores.argmax(axis=1)] = SHARES
        return given


@dataclass(frozen=True, kw_only=True)
class CentredVotes(VoteRule):
    """Scores less their mean over the batch, clipped in L2: training uses differences alone.

    Args:
        clip_norm: of a unit's vector, in units of the score.

    Raises:
        ConfigError: it is not in (0, 64].

    Privacy: a unit's vector has L2 norm `clip_norm` at most, and one step for rounding in float64;
        two units' differ by twice that. Charged for each query, whatever its size.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        if not 0 < self.clip_norm <= 64:
            raise ConfigError(f"clip_norm must be in (0, 64], got {self.clip_norm}")
        if self.most < 1:
            raise ConfigError(
                f"model.clip_norm={self.clip_norm} is below the {1 / self.unit:.2g} that votes are"
                " rounded to: raise it"
            )

    @property
    def unit(self) -> int:
        """Steps of a vote of 1."""
        return self.similarity.steps // _SHIFT

    @property
    def most(self) -> int:
        """Steps of the clip norm."""
        return math.floor(self.clip_norm * self.unit)

    def sensitivity(self, relation: Relation) -> float:
        """Return the clip norm in steps, and one for rounding; twice that for two units."""
        return float((self.most + 1) * relation.contributions)

    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return centred, clipped scores."""
        coarse = np.floor(scores / _SHIFT).astype(np.int64)
        size = scores.shape[1]
        centred = towards_zero(coarse * size - coarse.sum(axis=1, keepdims=True), np.array(size))
        squared = np.square(centred).sum(axis=1, keepdims=True)  # whole numbers: exact
        norm = np.sqrt(np.maximum(squared, 1).astype(np.float64))
        clipped = np.trunc(centred * (self.most / norm)).astype(np.int64)
        return np.where(squared > self.most**2, clipped, centred)


def towards_zero(sums: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``sums / counts``, rounded towards zero; counts are above 0 and broadcast."""
    return np.sign(sums) * (np.abs(sums) // counts)


def embedding_sensitivity(relation: Relation) -> float:
    """Return how far one unit moves the sum of rounded vectors, in L2: by `RADIUS`, or twice it."""
    return float(RADIUS * relation.contributions)
