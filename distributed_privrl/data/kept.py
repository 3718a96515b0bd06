"""What its owner declares to hold in every row: what a person keeps, and which number is the less.

Releases of any method keep it: rows are changed where they do not.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Trajectories, Transitions


class Order(NamedTuple):
    """Places of two numbers of an observation, the first of which is never above the second."""

    lower: int
    upper: int
    gaps: tuple[int, ...] = ()
    """Of indicators: where one is 1, one of the numbers is missing."""


def above(observations: NDArray[Any], order: Order) -> NDArray[np.bool_]:
    """Return where a number is above its limit, and neither is missing, ``(..,)``.

    Args:
        observations: ``(.., O)``.
        order: of both.
    """
    known = ~np.any(observations[..., list(order.gaps)] == 1, axis=-1)
    found: NDArray[np.bool_] = known & (
        observations[..., order.lower] > observations[..., order.upper]
    )
    return found


def in_order(observations: NDArray[Any], orders: Sequence[Order]) -> NDArray[Any]:
    """Return observations in which numbers that are above their limits are lowered to them.

    Args:
        observations: ``(.., O)``.
        orders: those of a number's limit before those of the number.

    Example:
        >>> in_order(np.array([[5.0, 3.0]]), [Order(lower=0, upper=1)])
        array([[3., 3.]])
    """
    if not orders:
        return observations
    lowered = observations.copy()
    for one in orders:
        wrong = above(lowered, one)
        lowered[wrong, one.lower] = lowered[wrong, one.upper]
    return lowered


class Kept(NamedTuple):
    """Places of an observation's numbers that do as their owner declares."""

    lasting: Sequence[int] = ()
    """They stay for a whole trajectory."""
    rising: Sequence[int] = ()
    """They never fall within a trajectory."""
    orders: Sequence[Order] = ()
    """Those of a number's limit before those of the number. What lasts has limits that last, and
    what rises has limits that rise or last.
    """


def kept_in_rows(rows: Transitions, kept: Kept) -> Transitions:
    """Return rows that do as is declared.

    Next observations have the lasting numbers of the observations, and rising ones that are not
    below theirs.

    Args:
        rows: N of them, of observations ``(N, O)``.
        kept: what is declared.
    """
    if not any(kept):
        return rows
    following, stays, rising = rows.next_observations.copy(), list(kept.lasting), list(kept.rising)
    following[:, stays] = rows.observations[:, stays]
    following[:, rising] = np.maximum(following[:, rising], rows.observations[:, rising])
    return replace(
        rows,
        observations=in_order(rows.observations, kept.orders),
        next_observations=in_order(following, kept.orders),
    )


def kept_in_trajectories(trajectories: Trajectories, kept: Kept) -> Trajectories:
    """Return trajectories that do as is declared.

    Observations have the lasting numbers of the first one, and rising ones that are the largest so
    far.

    Args:
        trajectories: K of them, of observations ``(.., O)``.
        kept: what is declared.
    """
    if not any(kept):
        return trajectories
    observations, stays = trajectories.observations.copy(), list(kept.lasting)
    lengths = trajectories.lengths + 1
    first = trajectories.offsets[:-1] + np.arange(len(trajectories))
    observations[:, stays] = np.repeat(observations[first][:, stays], lengths, axis=0)
    for place in kept.rising:
        observations[:, place] = largest_so_far(observations[:, place], lengths)
    return replace(trajectories, observations=in_order(observations, kept.orders))


def largest_so_far(numbers: NDArray[Any], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the largest number up to each one, within each trajectory.

    Args:
        numbers: ``(N,)``, those of one trajectory after those of the other.
        lengths: ``(K,)`` how many each of them has, N in all.

    Example:
        >>> largest_so_far(np.array([1.0, 3.0, 2.0, 0.0, 1.0]), np.array([3, 2]))
        array([1., 3., 3., 0., 1.])
    """
    values, ranks = np.unique(numbers, return_inverse=True)
    base = np.repeat(np.arange(len(lengths)) * len(values), lengths)  # above all ranks before
    largest: NDArray[Any] = values[np.maximum.accumulate(ranks + base) - base]
    return largest
