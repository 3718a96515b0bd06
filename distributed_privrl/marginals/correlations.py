"""How every two columns of a row go together, by one number a pair: quadrant correlations.

Joint counts are few, and tell much of few pairs. Correlations are one number each, so that all
pairs can be measured at once: a weak relation between two columns that nobody counted together is
known, too. A column answers with yes or no whether its number lies above about its middle, whether
it is missing, or whether its category is a certain frequent one. Where halves lie follows from
released counts of single columns. How often two answers agree tells the correlation of the normal
scores of two numbers, if they go together as normal ones do.

Reference: Blomqvist 1950, "On a measure of dependence between two random variables" (the quadrant
correlation, and its relation to that of normal numbers).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.marginals.column import Column
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation

MOST_PAIRS = 2_000
"""Of questions whose correlations are measured; with more each would be lost in noise."""
_ASKED = 3
"""Categories of a column that are asked for at most, the most frequent first."""
_RARE = 0.01
"""Part of all weight that each answer to a question must have."""
_LEAST = 1e-12
_BLOCK = 100_000
"""Rows whose products are added up at once, so that a worker needs no memory for all of them."""
RULES = _ASKED, _RARE
"""Of what is asked: sums of other questions are no answers to these."""


class Masses(Protocol):
    """What is known of the bins of a column."""

    @property
    def bin_masses(self) -> NDArray[np.float64]:
        """Estimated weight of each bin, ``(K,)``."""
        ...


@dataclass(frozen=True, eq=False)
class Question:
    """What a row answers by one of its columns.

    Args:
        place: of the column.
        answers: ``(K,)`` int8 of rows in each of its bins: 1 for yes, -1 for no, 0 for neither.
        scores: ``(K,)`` of its bins: normal scores of a number, 0 where it is missing; else the
            answers.
        told: correlation of its answers with a normal number whose bins these are; 1: the column
            is nothing but its answers.
        shown: the same of its scores.
    """

    place: int
    answers: NDArray[np.int8]
    scores: NDArray[np.float64]
    told: float = 1.0
    shown: float = 1.0


def questions_of(columns: TableColumns, shapes: Sequence[Masses]) -> tuple[Question, ...]:
    """Return the questions to the columns of a row, as released counts of each of them divide it.

    Args:
        columns: of the table.
        shapes: of each column; released.

    Privacy: post-processing of released counts; no event.
    """
    return tuple(
        question
        for place in columns.of("observation", "action", "reward")
        for question in _to(columns[place], place, shapes[place].bin_masses)
    )


def _to(column: Column, place: int, masses: NDArray[np.float64]) -> list[Question]:
    """Return the questions to a column, each of which has two answers that are not rare."""
    total = masses.sum()
    if total <= 0:
        return []
    found = []
    if column.cells is None:
        frequent = np.argsort(-masses, kind="stable")[: _questions(column)]
        if column.size == 2:
            frequent = np.array([1])  # yes, of a flag
        found = [_plain(place, np.arange(len(masses)) == one) for one in frequent]
    else:
        values = len(masses) - column.gaps
        if values > 1 and masses[:values].sum() > 0:
            found.append(_halves(place, masses[:values], column.gaps))
        if column.gaps:
            found.append(_plain(place, np.arange(len(masses)) >= values))
    return [one for one in found if _least_share(one, masses) >= _RARE]


def _plain(place: int, yes: NDArray[np.bool_]) -> Question:
    answers = np.where(yes, 1, -1).astype(np.int8)
    return Question(place, answers, answers.astype(np.float64))


def _halves(place: int, masses: NDArray[np.float64], gaps: bool) -> Question:
    """Return the question whether a number lies above about its middle."""
    shares = masses / masses.sum()
    ends = shares.cumsum()[:-1]
    first = 1 + int(np.argmin(np.abs(ends - 0.5)))
    answers = np.where(np.arange(len(masses)) < first, -1, 1)
    nothing = np.zeros(int(gaps))
    if (shares > 0).sum() <= 2:
        told = np.append(answers, nothing)
        return Question(place, told.astype(np.int8), told)
    edges = norm.pdf(norm.ppf(np.concatenate([[0.0], ends, [1.0]])))
    lies = (edges[:-1] - edges[1:]) / np.maximum(shares, _LEAST)  # where a normal number lies
    scores = np.where(shares > 0, lies, 0.0)
    scores /= math.sqrt(shares @ scores**2)
    spread = math.sqrt(1 - (shares @ answers) ** 2)
    return Question(
        place,
        np.append(answers, nothing).astype(np.int8),
        np.append(scores, nothing),
        told=float(shares * lies @ answers / max(spread, _LEAST)),
        shown=float(shares * lies @ scores),
    )


def _least_share(question: Question, masses: NDArray[np.float64]) -> float:
    """Return the part of all weight that the rarer answer has."""
    return min(float(masses[question.answers == one].sum() / masses.sum()) for one in (-1, 1))


def _questions(column: Column) -> int:
    """Return how many questions a column has at most: public."""
    if column.cells is None:
        return min(column.size - 1, _ASKED)
    return 1 + column.gaps


def pairs_of(places: Sequence[int]) -> NDArray[np.int64]:
    """Return the pairs of questions whose correlations are measured, ``(H, 2)``.

    Questions to the same column have none.

    Args:
        places: the column of each question.

    Example:
        >>> pairs_of([0, 0, 3]).tolist()
        [[0, 2], [1, 2]]
    """
    first, second = np.triu_indices(len(places), 1)
    own = np.asarray(places, np.int64)
    pairs = np.stack([first, second], axis=1).astype(np.int64)
    return np.asarray(pairs[own[first] != own[second]])


def most_pairs(columns: TableColumns) -> int:
    """Return of how many pairs of questions the correlations are paid for: public."""
    places = [
        place
        for place in columns.of("observation", "action", "reward")
        for _ in range(_questions(columns[place]))
    ]
    return len(pairs_of(places))


def correlation_sensitivity(relation: Relation, pairs: int) -> float:
    """Return by how much one unit moves the sums of all pairs together, in L2.

    Its rows, which weigh `UNIT_WEIGHT` together at most, answer each pair of questions with a
    product of -1, 0 or 1. A unit that becomes another one may move a sum by twice as much.

    Args:
        relation: of neighbouring datasets.
        pairs: of questions.
    """
    return UNIT_WEIGHT * relation.contributions * math.sqrt(pairs)


def summed_products(
    rows: NDArray[np.int32],
    weights: NDArray[np.float64],
    questions: Sequence[Question],
    pairs: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Return the weighted sum of the products of two answers, of each pair ``(H,)``, exactly.

    Args:
        rows: bins ``(N, V)``.
        weights: ``(N,)`` whole numbers.
        questions: to the columns.
        pairs: of questions.
    """
    if not len(pairs):
        return np.empty(0, np.int64)
    sums = np.zeros((len(questions), len(questions)))
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        answers = answers_of(rows[block], questions)
        sums += (answers * weights[block, None]).T @ answers  # whole numbers below 2^53: exact
    return sums[pairs[:, 0], pairs[:, 1]].astype(np.int64)


def answers_of(rows: NDArray[np.int32], questions: Sequence[Question]) -> NDArray[np.float64]:
    """Return the answers of rows of bins ``(N, V)`` to each question, ``(N, Q)``."""
    found = [one.answers[rows[:, one.place]] for one in questions]
    return np.stack(found, axis=1).astype(np.float64)


def scores_of(rows: NDArray[np.int32], questions: Sequence[Question]) -> NDArray[np.float64]:
    """Return the scores of rows of bins ``(N, V)`` for each question, ``(N, Q)``."""
    return np.stack([one.scores[rows[:, one.place]] for one in questions], axis=1)


@dataclass(frozen=True, eq=False)
class Correlations:
    """Released correlations of the answers to two questions, and what they say of scores.

    Args:
        questions: to the columns.
        pairs: ``(H, 2)`` of questions.
        values: ``(H,)`` of the answers, as they were released.
        deviations: ``(H,)`` of the noise of each.
        stretch: ``(H,)``: how much more the correlation of scores is, if it is small and columns
            go together as normal numbers do.
        counted: ``(H,)``: pairs of columns that were counted together, too, so that more is known
            of them than that.
    """

    questions: tuple[Question, ...]
    pairs: NDArray[np.int64]
    values: NDArray[np.float64]
    deviations: NDArray[np.float64]
    stretch: NDArray[np.float64]
    counted: NDArray[np.bool_]


def released_correlations(
    questions: tuple[Question, ...],
    sums: NDArray[np.int64],
    deviation: float,
    shapes: Sequence[Masses],
    total: float,
    cliques: Iterable[Sequence[int]] = (),
) -> Correlations:
    """Return correlations from released sums of products.

    Args:
        questions: to the columns.
        sums: ``(H,)``, see `summed_products`, with noise.
        deviation: of the noise.
        shapes: of each column; released.
        total: weight of all rows; released.
        cliques: columns that were counted together.

    Two numbers whose normal scores have the correlation r are both in their upper halves, or both
    in their lower ones, so often that r = sin(pi q / 2) of the quadrant correlation q: pi / 2 times
    as much, if it is small.

    Privacy: post-processing of what was released; no event.
    """
    places = [one.place for one in questions]
    pairs = pairs_of(places)
    means, squares = np.zeros(len(questions)), np.zeros(len(questions))
    for index, one in enumerate(questions):
        masses = shapes[one.place].bin_masses
        means[index] = masses @ one.answers / masses.sum()
        squares[index] = masses @ one.answers.astype(np.float64) ** 2 / masses.sum()
    spreads = np.sqrt(np.maximum(squares - means**2, _LEAST))
    first, second = pairs.T
    scale = spreads[first] * spreads[second]
    values = np.clip((sums / total - means[first] * means[second]) / scale, -1, 1)
    told, shown = (
        np.array([getattr(one, name) for one in questions])[pairs].prod(axis=1)
        for name in ("told", "shown")
    )
    together = [set(clique) for clique in cliques]
    counted = [any({places[i], places[j]} <= one for one in together) for i, j in pairs]
    return Correlations(
        questions,
        pairs,
        values,
        deviation / total / scale,
        shown / told,
        np.array(counted, np.bool_),
    )
