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


def kept_in_rows(
    rows: Transitions, lasting: Sequence[int], orders: Sequence[Order] = ()
) -> Transitions:
    """Return rows whose next observations have the lasting numbers of the observations, in order.

    Args:
        rows: N of them, of observations ``(N, O)``.
        lasting: places of numbers.
        orders: of observations and next observations; a lasting number's limit lasts, too.
    """
    if not (lasting or orders):
        return rows
    following, places = rows.next_observations.copy(), list(lasting)
    following[:, places] = rows.observations[:, places]
    return replace(
        rows,
        observations=in_order(rows.observations, orders),
        next_observations=in_order(following, orders),
    )


def kept_in_trajectories(
    trajectories: Trajectories, lasting: Sequence[int], orders: Sequence[Order] = ()
) -> Trajectories:
    """Return trajectories whose observations have the lasting numbers of the first, in order.

    Args:
        trajectories: K of them, of observations ``(.., O)``.
        lasting: places of numbers.
        orders: of each observation; a lasting number's limit lasts, too.
    """
    if not (lasting or orders):
        return trajectories
    observations, places = trajectories.observations.copy(), list(lasting)
    lengths = trajectories.lengths + 1
    first = trajectories.offsets[:-1] + np.arange(len(trajectories))
    observations[:, places] = np.repeat(observations[first][:, places], lengths, axis=0)
    return replace(trajectories, observations=in_order(observations, orders))
