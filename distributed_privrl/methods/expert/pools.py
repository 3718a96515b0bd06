"""Experts' trajectories for draws: what may be used of them, and in which form they travel.

Reference: Expert-level DP, algorithm 2; who is drawn must not depend on what a trajectory holds.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Trajectories

PoolSource: TypeAlias = Callable[[NDArray[np.uint64]], Trajectories]
"""Loads units' trajectories for draws, each unit's in a fixed order; picklable."""


def cut_before_bad_rows(trajectories: Trajectories, actions: int) -> Trajectories:
    """Return trajectories that end before the first step that no environment gives.

    Such a step has an action that does not exist, or a reward, or a state before or after it, that
    is not finite. A trajectory is cut by its own rows alone and stays in its pool, however short:
    to leave it out, or its expert, would change the law of the others' trajectories.

    Args:
        trajectories: K of them, with positions of Discrete actions.
        actions: number A of actions.
    """
    finite = np.isfinite(trajectories.observations)
    finite = finite.all(axis=tuple(range(1, finite.ndim)))
    owner = np.repeat(np.arange(len(trajectories)), trajectories.lengths)
    before = np.arange(len(owner)) + owner
    sound = (trajectories.actions >= 0) & (trajectories.actions < actions)
    sound &= np.isfinite(trajectories.rewards) & finite[before] & finite[before + 1]
    bad, lengths = np.flatnonzero(~sound), trajectories.lengths.copy()
    np.minimum.at(lengths, owner[bad], bad - trajectories.offsets[owner[bad]])
    return trajectories.cut(lengths)


def pools_of(
    trajectories: Trajectories, units: NDArray[np.uint64], release_pool: int
) -> list[list[int]]:
    """Return the positions of each expert's trajectories, none where it has too few.

    Args:
        trajectories: of all these experts.
        units: (E,) the experts.
        release_pool: a.
    """
    found: dict[int, list[int]] = {unit: [] for unit in units.tolist()}
    for position, unit in enumerate(trajectories.unit_ids.tolist()):
        found[unit].append(position)
    return [
        found[unit][:release_pool] if len(found[unit]) >= release_pool else []
        for unit in units.tolist()
    ]


class ExpertPools:
    """Trajectories that draws may use, of some experts; raw, for the process that reads them.

    Args:
        source: reads units' trajectories.
        experts: (E,) numbers among all experts.
        units: (E,) their units.
        actions: number A of actions.
        release_pool: trajectories a of each expert.
    """

    def __init__(
        self,
        source: PoolSource,
        experts: NDArray[np.int64],
        units: NDArray[np.uint64],
        *,
        actions: int,
        release_pool: int,
    ) -> None:
        self._trajectories = cut_before_bad_rows(source(units), actions)
        found = pools_of(self._trajectories, units, release_pool)
        self._positions = dict(zip(experts.tolist(), found, strict=True))
        self.live = np.array([len(one) > 0 for one in found], np.bool_)

    def drawn(self, expert: int | None, number: int) -> Trajectories:
        """Return one trajectory of an expert's pool; none if it is not there.

        Args:
            expert: its number among all; None: there is none.
            number: position in the pool, from 0 on.
        """
        pool = [] if expert is None else self._positions.get(expert, [])
        return self._trajectories.select(pool[number : number + 1])


def padded(
    trajectory: Trajectories, max_length: int
) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
    """Return a trajectory's states and actions as if it had ``max_length`` steps.

    Its last state stands for those after it, so that counts of its own prefixes stay as they are.
    Message and work have the same size for every trajectory, and where there is none.

    Args:
        trajectory: one of at most ``max_length`` steps, or none.
        max_length: L.

    Returns:
        states ``(L + 1, O)`` and actions ``(L,)``.
    """
    held, steps = trajectory.observations, len(trajectory.actions)
    states = np.zeros((max_length + 1, *held.shape[1:]), held.dtype)
    states[: len(held)] = held
    if len(held):
        states[len(held) :] = held[-1]
    actions = np.zeros(max_length, np.int64)
    actions[:steps] = trajectory.actions
    return states, actions
