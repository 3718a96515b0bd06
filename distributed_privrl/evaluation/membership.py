"""Membership attack by loss: are rows that trained a model told from rows that did not?

Nothing here is a private release: scores of sensitive rows and all that is made of them belong
into ``private/``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.core.checks import check_positive, check_probability
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation.neighbours import ALPHA
from distributed_privrl.evaluation.roc import (
    ROUNDING,
    Roc,
    by_falling_score,
    rates_of,
    roc_curve,
)

FALSE_POSITIVE_RATES = (0.01, 0.1)
CONFIDENCE = 0.99
_DRAWN_AT_ONCE = 100


class TrainedModel(Protocol):
    """What the attacks on a trained model share."""

    @property
    def settings(self) -> tuple[str, ...]:
        """What each of the S losses of a row is, e.g. a noise level."""
        ...

    @property
    def rounds(self) -> int:
        """How many rounds the model was trained on sensitive rows."""
        ...


class LossAttack(TrainedModel, Protocol):
    """A trained model that lets itself be attacked: the port that a method implements.

    Privacy: losses of sensitive rows are raw private data: they go to ``private/`` alone.
    """

    def losses(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return the losses ``(N, S)`` of N transitions; NaN for rows that training leaves out."""
        ...


@runtime_checkable
class TextAttack(TrainedModel, Protocol):
    """The same port, of a model of texts: the rows of a corpus stand for documents.

    Privacy: as `LossAttack`.
    """

    def text_losses(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the losses ``(N, S)`` of N documents; NaN for those that training leaves out."""
        ...


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A figure with a confidence interval.

    Args:
        value: the figure.
        low: lower end.
        high: upper end.
        chance: what guessing gives.
    """

    value: float
    low: float
    high: float
    chance: float


@dataclass(frozen=True, kw_only=True, eq=False)
class AttackFigures:
    """How well the attack tells members from non-members.

    Args:
        area: under the ROC curve.
        p_value: of an area that large, from permutations of groups between the sides.
        true_positive_rates: by false-positive rate; None where there are too few groups of
            non-members to know it: one of them alone is a larger share.
        roc: the curve.
        members: number of members scored.
        non_members: number of non-members scored.
        member_groups: that the members come from.
        non_member_groups: that the non-members come from.
    """

    area: Estimate
    p_value: float
    true_positive_rates: Mapping[float, Estimate | None]
    roc: Roc
    members: int
    non_members: int
    member_groups: int
    non_member_groups: int

    def fires(self) -> bool:
        """Say whether the area is above that of guessing by more than chance explains.

        The interval alone does not tell: of few groups a bootstrap makes one that is too narrow, of
        one group a side a single point.
        """
        return self.area.low > self.area.chance and self.p_value <= ALPHA


def attack_figures(
    members: NDArray[np.float64],
    non_members: NDArray[np.float64],
    *,
    generator: np.random.Generator,
    member_groups: NDArray[np.integer] | None = None,
    non_member_groups: NDArray[np.integer] | None = None,
    confidence: float = CONFIDENCE,
    resamples: int = 1000,
    permutations: int = 1999,
) -> AttackFigures:
    """Return area and true-positive rates with intervals, and the area's p value.

    The area's interval is a percentile bootstrap over groups (rows of one trajectory or person are
    drawn together). The p value compares the area with what it is after the names "member" and
    "non-member" were permuted over groups: it is exact, however few they are, where groups of both
    sides are alike but for their names. The interval of a true-positive rate is the wider, on each
    side, of the bootstrap and of Clopper and Pearson's interval at the threshold found, as if a
    group were one row: a bootstrap never leaves 0 or 1, and rows of a group are no independent
    witnesses.

    Args:
        members: (N,) scores, higher meaning "member".
        non_members: (M,) scores.
        generator: source of the resampling.
        member_groups: (N,) which rows belong together; None: each row is a group of its own.
        non_member_groups: (M,).
        confidence: of each interval.
        resamples: number of resamples.
        permutations: number of permutations.

    Raises:
        ConfigError: no scores on a side, one that is not finite, or a number out of range.

    Reference: Matsumoto, Miura, Yanai, "Membership inference attacks against diffusion models"
    (2023); PrivORL, section IX-D and appendix H-C.
    """
    check_probability("confidence", confidence)
    check_positive("resamples", resamples)
    check_positive("permutations", permutations)
    roc = roc_curve(members, non_members)
    order, ends = by_falling_score(np.concatenate([members, non_members]))
    sides = [
        _group_numbers(scores, groups)
        for scores, groups in ((members, member_groups), (non_members, non_member_groups))
    ]
    areas, rates = [], []
    for count in _parts(resamples):
        drawn = [_resampled(numbers, count, generator) for numbers in sides]
        true, false = rates_of(*_weights(drawn, order), ends)
        areas.append(np.trapezoid(true, false, axis=1))
        rates.append(
            [np.where(false <= at + ROUNDING, true, 0).max(axis=1) for at in FALSE_POSITIVE_RATES]
        )
    spread = np.concatenate(rates, axis=1)
    groups = [int(numbers.max()) + 1 for numbers in sides]
    return AttackFigures(
        area=_estimate(roc.area, np.concatenate(areas), confidence, chance=0.5),
        p_value=_permutation_p_value(members, non_members, sides, permutations, generator),
        true_positive_rates={
            at: _with_exact(
                _estimate(roc.true_positive_rate(at), spread[i], confidence, chance=at),
                groups[0],
                confidence,
            )
            if at * groups[1] >= 1 - ROUNDING
            else None
            for i, at in enumerate(FALSE_POSITIVE_RATES)
        },
        roc=roc,
        members=len(members),
        non_members=len(non_members),
        member_groups=groups[0],
        non_member_groups=groups[1],
    )


def by_group(
    losses: NDArray[np.float64], groups: NDArray[np.integer]
) -> tuple[NDArray[np.float64], NDArray[np.integer]]:
    """Return the mean loss ``(G, S)`` of each group's rows ``(N, S)``, and the groups (G,).

    Example:
        >>> by_group(np.array([[1.0], [3.0], [5.0]]), np.array([7, 7, 4]))[0].tolist()
        [[5.0], [2.0]]
    """
    names, numbers = np.unique(groups, return_inverse=True)
    totals = np.zeros((len(names), losses.shape[1]))
    np.add.at(totals, numbers, losses)
    return totals / np.bincount(numbers)[:, None], names


def exact_interval(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Return Clopper and Pearson's interval of a probability.

    Args:
        successes: how many of the trials.
        trials: how many in all, one at least.
        confidence: of the interval.

    Example:
        >>> low, high = exact_interval(0, 10, 0.95)
        >>> low, round(high, 4)
        (0.0, 0.3085)
    """
    tail = (1 - confidence) / 2
    low = stats.beta.ppf(tail, successes, trials - successes + 1) if successes else 0.0
    high = stats.beta.isf(tail, successes + 1, trials - successes) if successes < trials else 1.0
    return float(low), float(high)


def _group_numbers(
    scores: NDArray[np.float64], groups: NDArray[np.integer] | None
) -> NDArray[np.int64]:
    if groups is None:
        return np.arange(len(scores))
    if groups.shape != scores.shape:
        raise ConfigError(f"groups must be {scores.shape} like the scores, got {groups.shape}")
    numbers: NDArray[np.int64] = np.unique(groups, return_inverse=True)[1]
    return numbers


def _resampled(
    numbers: NDArray[np.int64], count: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return how often each row is drawn, (count, N), when whole groups are drawn."""
    groups = int(numbers.max()) + 1
    drawn = generator.multinomial(groups, np.full(groups, 1 / groups), size=count)
    weights: NDArray[np.float64] = drawn[:, numbers].astype(np.float64)
    return weights


def _permutation_p_value(
    members: NDArray[np.float64],
    non_members: NDArray[np.float64],
    sides: list[NDArray[np.int64]],
    permutations: int,
    generator: np.random.Generator,
) -> float:
    """Return how often groups that are named anew give an area at least as large.

    Ranks of rows in both sides together do not depend on the names, so an area follows from the
    sums of ranks (ties halved, so sums are exact) and the sizes of the groups named members.
    """
    ranks = stats.rankdata(np.concatenate([members, non_members]))
    own = int(sides[0].max()) + 1
    numbers = np.concatenate([sides[0], sides[1] + own])
    rank_sums, sizes = np.bincount(numbers, weights=ranks), np.bincount(numbers)

    def areas(named: NDArray[np.bool_]) -> NDArray[np.float64]:
        taken = named @ sizes.astype(np.float64)
        wins = named @ rank_sums - taken * (taken + 1) / 2
        found: NDArray[np.float64] = wins / (taken * (len(ranks) - taken))
        return found

    named = np.arange(len(sizes)) < own
    observed = areas(named[None])[0]
    above = 0
    for count in _parts(permutations):
        permuted = generator.permuted(np.tile(named, (count, 1)), axis=1)
        above += int((areas(permuted) >= observed).sum())
    return (1 + above) / (1 + permutations)


def _parts(total: int) -> list[int]:
    """Return how many to draw at once: memory grows with rows times draws."""
    whole, rest = divmod(total, _DRAWN_AT_ONCE)
    return [_DRAWN_AT_ONCE] * whole + [rest] * (rest > 0)


def _weights(
    drawn: list[NDArray[np.float64]], order: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    members, non_members = drawn
    return (
        np.concatenate([members, np.zeros_like(non_members)], axis=1)[:, order],
        np.concatenate([np.zeros_like(members), non_members], axis=1)[:, order],
    )


def _estimate(
    value: float, resampled: NDArray[np.float64], confidence: float, *, chance: float
) -> Estimate:
    tail = (1 - confidence) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    return Estimate(value=value, low=float(low), high=float(high), chance=chance)


def _with_exact(estimate: Estimate, groups: int, confidence: float) -> Estimate:
    low, high = exact_interval(round(estimate.value * groups), groups, confidence)
    return Estimate(
        value=estimate.value,
        low=min(low, estimate.low),
        high=max(high, estimate.high),
        chance=estimate.chance,
    )
