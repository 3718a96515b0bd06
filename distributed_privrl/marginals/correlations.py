"""How every two columns of a row go together, by one number a pair: quadrant correlations.

So do each action and what follows it, and each column and how a trajectory ends.

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
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from distributed_privrl.marginals.column import TERMINATES, Column, Part
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation

MOST_SUMS = 2_000
"""Sums of answers that are measured; with more each would be lost in noise."""
_ASKED = 3
"""Categories of a column that are asked for at most, the most frequent first."""
_RARE = 0.01
"""Part of all weight that each answer to a question must have."""
_LEAST = 1e-12
_BLOCK = 100_000
"""Rows whose products are added up at once, so that a worker needs no memory for all of them."""
_ROW: tuple[Part, ...] = ("observation", "action", "reward", "end")
RULES = _ASKED, _RARE, _ROW
"""Of what is asked: sums of other questions are no answers to these."""


class Masses(Protocol):
    """What is known of the bins of a column."""

    @property
    def bin_masses(self) -> NDArray[np.float64]:
        """Estimated weight of each bin, ``(K,)``."""
        ...


class Known(Protocol):
    """What is known of all columns; see `bins.Bins`."""

    columns: TableColumns
    total: float
    followed: float

    @property
    def shapes(self) -> Sequence[Masses]:
        """Of each column."""
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
        followed: whether rows that nothing follows answer neither, as nobody knows what would have.
    """

    place: int
    answers: NDArray[np.int8]
    scores: NDArray[np.float64]
    told: float = 1.0
    shown: float = 1.0
    followed: bool = False


def questions_of(columns: TableColumns, shapes: Sequence[Masses]) -> tuple[Question, ...]:
    """Return the questions to a row and to what follows, as released counts of columns divide it.

    Args:
        columns: of the table.
        shapes: of each column; released.

    Privacy: post-processing of released counts; no event.
    """
    return tuple(
        replace(question, followed=columns.only_followed([place]))
        for place in _asked(columns)
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
        if column.size == 2 or column.part == "end":
            frequent = np.arange(1, column.size)  # yes, of a flag; how a trajectory ends
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


def _asked(columns: TableColumns) -> tuple[int, ...]:
    """Return the columns that have questions: of a row, and what follows where there are actions.

    What a column becomes goes with itself so strongly that joint counts tell of it.
    """
    after: tuple[Part, ...] = ("next_observation",) if columns.of("action") else ()
    return columns.of(*_ROW, *after)


def pairs_of(columns: TableColumns, places: Sequence[int]) -> NDArray[np.int64]:
    """Return the pairs of questions whose correlations are measured, ``(H, 2)``.

    They are of every two columns of a row, and of each action and what follows. Questions to the
    same column have none.

    Args:
        columns: of the table.
        places: the column of each question, in order.
    """
    own = np.asarray(places, np.int64)
    after, acts = (
        np.array([columns[place].part == part for place in places], np.bool_)
        for part in ("next_observation", "action")
    )
    first, second = np.triu_indices(len(places), 1)
    within = (own[first] != own[second]) & ~after[first] & ~after[second]
    follows = (acts[first] & after[second]) | (after[first] & acts[second])
    pairs = np.stack([first, second], axis=1).astype(np.int64)
    return np.asarray(pairs[within | follows])


def untold_of(columns: TableColumns, places: Sequence[int]) -> NDArray[np.int64]:
    """Return the questions of whose answers no count of a single column tells, ``(M,)``.

    They are those to what follows: counts of what was before stand for its own.

    Args:
        columns: of the table.
        places: the column of each question.
    """
    after = [columns[place].part == "next_observation" for place in places]
    return np.flatnonzero(after)


def most_sums(columns: TableColumns) -> int:
    """Return how many sums of answers are paid for: public; see `summed_answers`."""
    asked: dict[tuple[Part, int], tuple[int, int]] = {}
    for place in _asked(columns):
        own = columns[place].part, columns[place].place  # two codings of one are alternatives
        asked[own] = max(asked.get(own, (0, 0)), (_questions(columns[place]), place))
    places = [place for questions, place in asked.values() for _ in range(questions)]
    return len(pairs_of(columns, places)) + len(untold_of(columns, places))


def correlation_sensitivity(relation: Relation, sums: int) -> float:
    """Return by how much one unit moves all sums of answers together, in L2.

    Its rows, which weigh `UNIT_WEIGHT` together at most, answer each question, and each pair of
    them by a product, with -1, 0 or 1. A unit that becomes another one may move a sum by twice as
    much.

    Args:
        relation: of neighbouring datasets.
        sums: of answers, and of products of two.
    """
    return UNIT_WEIGHT * relation.contributions * math.sqrt(sums)


def summed_answers(
    rows: NDArray[np.int32],
    weights: NDArray[np.float64],
    questions: Sequence[Question],
    columns: TableColumns,
) -> NDArray[np.int64]:
    """Return weighted sums of the products of two answers, then of some answers alone, exactly.

    ``(H + M,)``: of each pair (`pairs_of`), and of each question of which nothing else tells
    (`untold_of`). Where there are no pairs, there is nothing.

    Args:
        rows: bins ``(N, V)``.
        weights: ``(N,)`` whole numbers.
        questions: to the columns.
        columns: of the table.
    """
    places = [one.place for one in questions]
    pairs, untold = pairs_of(columns, places), untold_of(columns, places)
    if not len(pairs):
        return np.empty(0, np.int64)
    products, alone = np.zeros((len(questions), len(questions))), np.zeros(len(questions))
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        answers = answers_of(rows[block], questions, columns)
        weighted = answers * weights[block, None]  # whole numbers below 2^53: sums are exact
        products += weighted.T @ answers
        alone += weighted.sum(axis=0)
    found = np.concatenate([products[pairs[:, 0], pairs[:, 1]], alone[untold]])
    return found.astype(np.int64)


def answers_of(
    rows: NDArray[np.int32], questions: Sequence[Question], columns: TableColumns
) -> NDArray[np.float64]:
    """Return the answers of rows of bins ``(N, V)`` to each question, ``(N, Q)``."""
    found = np.stack([one.answers[rows[:, one.place]] for one in questions], axis=1)
    return _where_followed(found.astype(np.float64), rows, questions, columns)


def scores_of(
    rows: NDArray[np.int32], questions: Sequence[Question], columns: TableColumns
) -> NDArray[np.float64]:
    """Return the scores of rows of bins ``(N, V)`` for each question, ``(N, Q)``."""
    found = np.stack([one.scores[rows[:, one.place]] for one in questions], axis=1)
    return _where_followed(found, rows, questions, columns)


def _where_followed(
    found: NDArray[np.float64],
    rows: NDArray[np.int32],
    questions: Sequence[Question],
    columns: TableColumns,
) -> NDArray[np.float64]:
    """Return answers or scores ``(N, Q)``, 0 to questions of what nobody saw."""
    unseen = ~columns.followed(rows)
    asked = np.array([one.followed for one in questions])
    if unseen.any() and asked.any():
        found[np.ix_(unseen, asked)] = 0.0
    return found


@dataclass(frozen=True, eq=False)
class Correlations:
    """Released correlations of the answers to two questions, and what they say of scores.

    Args:
        questions: to the columns.
        pairs: ``(H, 2)`` of questions.
        values: ``(H,)`` of the answers, as they were released; where rows that nothing follows
            answer neither, those are among them.
        deviations: ``(H,)`` of the noise of each.
        stretch: ``(H,)``: how much more the correlation of scores is, if it is small and columns
            go together as normal numbers do.
        counted: ``(H,)``: pairs of columns that were counted together, too, so that more is known
            of them than that.
        among: ``(2, H)``: values and deviations in the rows alone that can answer, for reports.
    """

    questions: tuple[Question, ...]
    pairs: NDArray[np.int64]
    values: NDArray[np.float64]
    deviations: NDArray[np.float64]
    stretch: NDArray[np.float64]
    counted: NDArray[np.bool_]
    among: NDArray[np.float64]


def released_correlations(
    questions: tuple[Question, ...],
    sums: NDArray[np.int64],
    deviation: float,
    bins: Known,
    cliques: Iterable[Sequence[int]] = (),
) -> Correlations:
    """Return correlations from released sums of answers.

    Args:
        questions: to the columns.
        sums: ``(H + M,)``, see `summed_answers`, with noise.
        deviation: of the noise.
        bins: what is known of each column; released.
        cliques: columns that were counted together.

    Two numbers whose normal scores have the correlation r are both in their upper halves, or both
    in their lower ones, so often that r = sin(pi q / 2) of the quadrant correlation q: pi / 2 times
    as much, if it is small.

    Privacy: post-processing of what was released; no event.
    """
    places = [one.place for one in questions]
    pairs, untold = pairs_of(bins.columns, places), untold_of(bins.columns, places)
    means, squares = np.zeros(len(questions)), np.zeros(len(questions))
    parts = np.ones(len(questions))
    for index, one in enumerate(questions):
        masses = bins.shapes[one.place].bin_masses
        parts[index] = bins.followed / bins.total if one.followed else 1.0
        means[index] = masses @ one.answers / masses.sum()
        squares[index] = parts[index] * (masses @ one.answers.astype(np.float64) ** 2)
        squares[index] /= masses.sum()
    found = sums / bins.total
    products, alone = found[: len(pairs)], found[len(pairs) :]
    means[untold] = np.clip(alone, -squares[untold], squares[untold])
    beside = (np.isin(pairs, untold) * means[pairs[:, ::-1]] ** 2).sum(axis=1)
    noise = deviation / bins.total * np.sqrt(1 + beside)  # of a mean, too, where it is one of these
    everywhere = _correlated(products, noise, means[pairs], squares[pairs])
    part = parts[pairs].min(axis=1)
    followed = _followed_means(questions, pairs, products, means, bins)
    own = np.where(part[:, None] < 1, followed[pairs], means[pairs])
    among = _correlated(products / part, noise / part, own, (squares / parts)[pairs])
    told, shown = (
        np.array([getattr(one, name) for one in questions])[pairs].prod(axis=1)
        for name in ("told", "shown")
    )
    together = [set(clique) for clique in cliques]
    counted = [any({places[i], places[j]} <= one for one in together) for i, j in pairs]
    return Correlations(
        questions,
        pairs,
        *everywhere,
        shown / told,
        np.array(counted, np.bool_),
        np.stack(among),
    )


def _followed_means(
    questions: Sequence[Question],
    pairs: NDArray[np.int64],
    products: NDArray[np.float64],
    means: NDArray[np.float64],
    bins: Known,
) -> NDArray[np.float64]:
    """Return the mean answers ``(Q,)`` of the rows that something follows.

    How columns go with ends tells those of a row. Where no end was asked for, they are rare.
    """
    share = bins.followed / bins.total
    found = np.array(
        [mean / share if one.followed else mean for one, mean in zip(questions, means, strict=True)]
    )
    for (one, other), product in zip(pairs.tolist(), products, strict=True):
        end = questions[other]
        if bins.columns[end.place].part != "end" or end.answers[TERMINATES] != 1:
            continue
        if not questions[one].followed:
            goes_on = (means[one] - product) / 2  # yes: it terminates, no: it does not
            found[one] = np.clip(goes_on / share, -1, 1)
    return found


def _correlated(
    products: NDArray[np.float64],
    noise: NDArray[np.float64],
    means: NDArray[np.float64],
    squares: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the correlations of pairs of answers ``(H,)``, and the deviations of their noise.

    Args:
        products: mean product of two answers, ``(H,)``.
        noise: of the products, ``(H,)``.
        means: of both answers, ``(H, 2)``.
        squares: of both, likewise.
    """
    scale = np.sqrt(np.maximum(squares - means**2, _LEAST)).prod(axis=1)
    return np.clip((products - means.prod(axis=1)) / scale, -1, 1), noise / scale
