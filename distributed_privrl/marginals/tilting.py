"""Draws of a model, chosen so that columns go together as released correlations say.

A model has what joint counts tell of few pairs of columns. Exponential tilting takes from it those
rows, or whole trajectories, more often in which two columns go together as they should: of all
distributions with the released correlations it is the one nearest to the model, and what is held
beside them, such as how often a column has each value, stays as the model has it.

References: Csiszar 1975 (I-divergence geometry); Hainmueller 2012 (entropy balancing).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from distributed_privrl.marginals.column import Part
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.correlations import Correlations, Masses, answers_of, scores_of

_GROUPS = 8
"""Groups of bins of a column, of which the tilted draws have as much as the model has."""
_HELD = 1e-3
"""By how much the tilted draws may miss what is held."""
_TIMES = (2, 3, 4, 6, 8)
"""Draws of the model for each one that is taken: as few as leave little weight over."""
_LEFT_OVER = 0.02
_MOST_STEPS, _CLOSE = 100, 1e-5
_STRETCHED = 1.5
"""How much more scores may be tilted for the same answers than normal numbers need."""
_SURE, _ALONE = 2.0, 3.0
"""Deviations by which all misses together, or one by itself, must stand out from noise."""


@dataclass(frozen=True, eq=False)
class Traits:
    """What is summed up over the rows of each draw of a model: a row, or a whole trajectory.

    Args:
        columns: of the table.
        correlations: that were released.
        held: of each column of a row, the group ``(K,)`` of each of its bins.
        unit_rows: ``(U,)`` rows of a unit of each class, about: so many weigh one.
        unit_place: column of the classes; None: there are none, and rows weigh alike.
    """

    columns: TableColumns
    correlations: Correlations
    held: tuple[tuple[int, NDArray[np.int64]], ...]
    unit_rows: NDArray[np.float64]
    unit_place: int | None

    @property
    def size(self) -> int:
        """How many numbers a draw has; see `of`."""
        groups = sum(int(one.max()) + 1 for _, one in self.held)
        return 2 * len(self.correlations.pairs) + 4 * len(self.correlations.questions) + groups + 2

    def of(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return the traits of rows of bins ``(N, V)``, ``(N, size)``.

        They are the products of two scores, then of two answers, then scores and answers and their
        squares, groups of bins, weights and rows.
        """
        weights = np.ones((len(rows), 1))
        if self.unit_place is not None:
            weights = (self.unit_rows[0] / self.unit_rows[rows[:, self.unit_place]])[:, None]
        questions = self.correlations.questions
        scores, answers = (of(rows, questions, self.columns) for of in (scores_of, answers_of))
        first, second = self.correlations.pairs.T
        parts = [one[:, first] * one[:, second] for one in (scores, answers)]
        parts += [scores, answers, scores**2, answers**2]
        for place, groups in self.held:
            parts.append(np.eye(int(groups.max()) + 1)[groups[rows[:, place]]])
        found = np.concatenate([*parts, np.ones((len(rows), 1))], axis=1) * weights
        return np.concatenate([found, np.ones((len(rows), 1))], axis=1).astype(np.float32)


def traits_of(
    columns: TableColumns, shapes: Sequence[Masses], correlations: Correlations
) -> Traits:
    """Return the traits that draws of a model are chosen by.

    Args:
        columns: of the table.
        shapes: of each column.
        correlations: that were released.
    """
    after: tuple[Part, ...] = () if columns.of("time") else ("next_observation",)
    held = tuple(
        (place, _groups(shapes[place].bin_masses))
        for place in columns.of("observation", "action", "reward", "end", "time", *after)
    )
    unit = next(iter(columns.of("unit")), None)
    rows = np.ones(1) if columns.unit_sizes is None else columns.unit_sizes.rows
    return Traits(columns, correlations, held, rows, unit)


def _groups(masses: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return groups of neighbouring bins of about the same weight, ``(K,)`` from 0."""
    if len(masses) <= _GROUPS:
        return np.arange(len(masses))
    middle = (masses.cumsum() - masses / 2) / masses.sum()
    found = np.minimum((middle * _GROUPS).astype(np.int64), _GROUPS - 1)
    return np.asarray(np.unique(found, return_inverse=True)[1], np.int64)


@dataclass(frozen=True, eq=False)
class Tilt:
    """How likely each draw of a model is taken.

    Args:
        features: turns the traits of draws into what is weighed.
        slopes: ``(F,)`` of the features.
        offset: of the logarithm of a draw's weight.
        times: draws of the model for each one that is taken.
    """

    features: Callable[[NDArray[np.float32]], NDArray[np.float64]]
    slopes: NDArray[np.float64]
    offset: float
    times: int

    def weights(self, traits: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return how often each draw ``(N, size)`` is taken, 1 on average over the model."""
        logs = self.offset + self.features(traits) @ self.slopes
        return np.asarray(np.exp(np.minimum(logs, math.log(self.times))))

    def chosen(
        self, traits: NDArray[np.float32], count: int, random: np.random.Generator
    ) -> NDArray[np.int64]:
        """Return the places of ``count`` different draws, in order.

        Args:
            traits: ``(N, size)`` of ``times`` as many draws.
            count: that are taken.
            random: public.
        """
        shares = _shares(self.weights(traits), count)
        order = random.permutation(len(shares))
        cumulated = shares[order].cumsum()
        aims = (random.random() + np.arange(count)) * (cumulated[-1] / count)
        places = np.minimum(np.searchsorted(cumulated, aims, side="right"), len(shares) - 1)
        taken = np.zeros(len(shares), np.bool_)
        taken[order[places]] = True
        missing = count - int(taken.sum())
        if missing:  # by rounding
            rest = np.flatnonzero(~taken)
            taken[rest[np.argsort(-shares[rest], kind="stable")[:missing]]] = True
        return np.flatnonzero(taken)


def block_sizes(count: int, most: int) -> list[int]:
    """Return how many draws are taken at once, ``most`` or the rest.

    Example:
        >>> block_sizes(25, 10)
        [10, 10, 5]
    """
    return [min(most, count - start) for start in range(0, count, most)]


def _shares(weights: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return how likely each draw is taken, at most 1, so that ``count`` are on average."""
    shares = weights * (count / weights.sum())
    for _ in range(50):
        over = shares >= 1
        left = count - over.sum()
        rest = shares[~over].sum()
        if not over.any() or rest <= 0 or abs(left - rest) < 1e-9 * count:
            break
        shares = np.where(over, 1.0, shares * (left / rest))
    return np.asarray(np.minimum(shares, 1.0))


@dataclass(frozen=True, eq=False)
class _Moments:
    """What some draws have on average.

    Args:
        means: ``(size,)`` of their traits, in those of a row.
        correlations: that were released.
    """

    means: NDArray[np.float64]
    correlations: Correlations

    def of(self, *, answers: bool) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the correlations ``(H,)`` of scores, or of answers, and products of deviations.

        Where such a product is 0, the correlation is, too.
        """
        pairs, questions = self.correlations.pairs, len(self.correlations.questions)
        start = 2 * len(pairs) + answers * questions
        own, squares = (
            self.means[start + shift : start + shift + questions] for shift in (0, 2 * questions)
        )
        spreads = np.sqrt(np.maximum(squares - own**2, 0.0))
        scale = spreads[pairs[:, 0]] * spreads[pairs[:, 1]]
        together = self._products(answers=answers) - own[pairs[:, 0]] * own[pairs[:, 1]]
        return np.divide(together, scale, out=np.zeros(len(pairs)), where=scale > 0), scale

    def with_correlations(self, values: NDArray[np.float64], *, answers: bool) -> NDArray[Any]:
        """Return the means of products ``(H,)`` that would have correlations ``(H,)``."""
        now, scale = self.of(answers=answers)
        return self._products(answers=answers) + (values - now) * scale

    def _products(self, *, answers: bool) -> NDArray[np.float64]:
        pairs = len(self.correlations.pairs)
        return self.means[answers * pairs : (answers + 1) * pairs]


def fitted_tilt(traits: Traits, draws: NDArray[np.float32]) -> Tilt | None:
    """Return the tilt by which draws of a model have the released correlations.

    A correlation is believed as far as noise lets it: the more, the farther it alone, or all of
    them together, miss by more than noise does. Columns that were counted together are tilted by
    their answers, and keep what was counted beside. Others are tilted by their scores, as much as
    it takes their answers to have the released correlation.

    Args:
        traits: see `Traits`.
        draws: ``(M, size)`` traits of many draws of the model.

    Returns:
        The tilt; None: nothing is to be tilted.

    Privacy: post-processing of what was released; no event.
    """
    correlations, pairs = traits.correlations, len(traits.correlations.pairs)
    means = draws.mean(axis=0, dtype=np.float64)
    weight, rows = means[-2], means[-1]
    model = _Moments(means / weight, correlations)
    (answers, scale), (scores, spread) = model.of(answers=True), model.of(answers=False)
    missed = correlations.values - answers
    clear = _how_clear(missed, correlations.deviations, scale * spread)
    believed = np.flatnonzero(clear)
    if not len(believed):
        return None
    counted = correlations.counted[believed]
    used = np.append(np.where(counted, pairs, 0) + believed, np.arange(2 * pairs, len(means) - 2))

    def features(some: NDArray[np.float32], aims: NDArray[np.float64]) -> NDArray[np.float64]:
        weights = some[:, -2:-1].astype(np.float64)
        lengths = np.column_stack([weights[:, 0] / weight - 1, some[:, -1] / rows - 1])
        return np.concatenate([(some[:, used] - aims[used] * weights) / weight, lengths], axis=1)

    def aimed(stretch: NDArray[np.float64]) -> NDArray[np.float64]:
        wanted = np.clip(scores + stretch * missed, -1, 1)
        by_scores = model.with_correlations(wanted, answers=False)
        by_answers = model.with_correlations(correlations.values, answers=True)
        return np.concatenate([by_scores, by_answers, model.means[2 * pairs :]])

    stretch, top = correlations.stretch, _TIMES[-1]
    aims = aimed(stretch)
    matrix = features(draws, aims)
    ridge = np.full(matrix.shape[1], _HELD**2)
    ridge[: len(believed)] = matrix[:, : len(believed)].var(axis=0).mean() / clear[believed]
    slopes, offset = _solved(matrix, ridge, top, np.zeros(matrix.shape[1]), 0.0)
    if not counted.all():
        weights = np.exp(np.minimum(matrix @ slopes + offset, math.log(top)))
        tilted = _Moments(weights @ draws / (weights @ draws[:, -2]), correlations)
        moved = tilted.of(answers=True)[0] - answers
        shifted = tilted.of(answers=False)[0] - scores
        found = np.divide(shifted, moved, out=np.zeros_like(moved), where=moved != 0)
        sure = np.abs(moved) > _ALONE * correlations.deviations
        stretch = np.where(sure, np.clip(found, 0.0, _STRETCHED * stretch), stretch)
        aims = aimed(stretch)
        matrix = features(draws, aims)
        slopes, offset = _solved(matrix, ridge, top, slopes, offset)
    weights = np.exp(np.minimum(matrix @ slopes + offset, math.log(top)))
    over = [float(np.maximum(weights - times, 0).mean()) for times in _TIMES]
    times = next(times for times, left in zip(_TIMES, over, strict=True) if left < _LEFT_OVER)
    if times < top:
        slopes, offset = _solved(matrix, ridge, times, slopes, offset)
    return Tilt(lambda some: features(some, aims), slopes, offset, times)


def _how_clear(
    missed: NDArray[np.float64], noise: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return by how much the model may really miss each pair ``(H,)``; 0: by nothing.

    Args:
        missed: by the model, noise among it.
        noise: its deviations, in whose squares the answer is, as a variance.
        scale: 0 where answers do not vary, and nothing can be learned.
    """
    vary = scale > 0
    if not vary.any():
        return np.zeros(len(missed))
    shares = (missed / noise) ** 2
    excess = float(shares[vary].mean()) - 1
    common = excess if excess > _SURE * math.sqrt(2 / vary.sum()) else 0.0
    own = np.where(shares > _ALONE**2, np.maximum(shares - 1, common), common)
    return np.where(vary, own, 0.0)


def _solved(
    matrix: NDArray[np.float64],
    ridge: NDArray[np.float64],
    most: float,
    slopes: NDArray[np.float64],
    offset: float,
) -> tuple[NDArray[np.float64], float]:
    """Return the slopes and the offset of the weights nearest to 1 with which features are 0.

    Weights are ``min(most, exp(offset + features @ slopes))``: the dual of minimising their
    relative entropy, which is convex in slopes and offset.

    Args:
        matrix: features ``(M, F)``.
        ridge: ``(F,)`` how much less than the features each slope is to be believed.
        most: weight of a draw at most.
        slopes: where to begin.
        offset: where to begin.
    """
    top, count = math.log(most), len(matrix)

    def dual(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        own, start = point[:-1], point[-1]
        logs = matrix @ own + start
        weights = np.exp(np.minimum(logs, top))
        value = np.where(logs <= top, weights, most * (logs - top + 1)).mean() - start
        value += 0.5 * float(ridge @ own**2)
        slope = weights @ matrix / count + ridge * own
        return float(value), np.append(slope, weights.mean() - 1)

    def curvature(point: NDArray[np.float64]) -> NDArray[np.float64]:
        logs = matrix @ point[:-1] + point[-1]
        weights = np.where(logs <= top, np.exp(np.minimum(logs, top)), 0.0) / count
        weighted = matrix * weights[:, None]
        found = np.empty((len(point), len(point)))
        found[:-1, :-1] = weighted.T @ matrix + np.diag(ridge)
        found[-1, :-1] = found[:-1, -1] = weighted.sum(axis=0)
        found[-1, -1] = weights.sum()
        return found

    found = minimize(
        dual,
        np.append(slopes, offset),
        jac=True,
        hess=curvature,
        method="trust-exact",
        options={"maxiter": _MOST_STEPS, "gtol": _CLOSE, "initial_trust_radius": 10.0},
    )
    return found.x[:-1], float(found.x[-1])
