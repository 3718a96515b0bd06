"""A judge without seeds: rows on a grid, value iteration on them, the policy driven for real.

States are cells of position and velocity, actions cells of force. The empirical model has the
transitions and mean rewards of the rows; state and action must have been seen together. Value
iteration gives each state its best cell of actions; the policy's force is the mean of the recorded
ones there. A state that no row has acts like the nearest that some row has.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.spatial import KDTree

from benchmarks.protocol.rows import Rows
from benchmarks.protocol.starts import Score, mean_score, score
from distributed_privrl.collection.runs import Policy
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments.mazes import SPEED_LIMIT, Maze

Cells = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class GridSettings:
    """How fine the grid is, and how far value iteration looks.

    Args:
        position: width of a cell in metres.
        speed: width of a cell in metres a second.
        forces: cells of each force in [-1, 1].
        discount: a step.
        fewest: rows that a pair of state and action must have.
        sweeps: of value iteration, at most.
        tolerance: largest change of a value at which it ends.
        shifts: of the grid, in cells; the judge's score is the mean over them.
    """

    position: float = 0.2
    speed: float = 0.5
    forces: int = 3
    discount: float = 0.99
    fewest: int = 1
    sweeps: int = 3000
    tolerance: float = 1e-3
    shifts: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75)


@dataclass(frozen=True, kw_only=True)
class GridPolicy:
    """A force for each state of the grid.

    Args:
        settings: of the grid.
        shift: of the grid, in cells.
        states: ``(S, 4)`` cells that have one.
        forces: ``(S, 2)``.
        values: ``(S,)`` discounted values by the empirical model.
    """

    settings: GridSettings
    shift: float
    states: Cells
    forces: NDArray[np.float64]
    values: NDArray[np.float64]

    def policy(self) -> Policy:
        """Return the policy: state to two forces."""
        forces = self.forces.tolist()
        places = {tuple(cell): index for index, cell in enumerate(self.states.tolist())}
        nearest = KDTree(self.states)

        def act(state: tuple[float, float, float, float]) -> list[float]:
            cell = _state_cells(np.array([state]), self.settings, self.shift)[0]
            key = tuple(cell.tolist())
            if key not in places:
                places[key] = int(nearest.query(cell)[1])
            return list(forces[places[key]])

        return act


def solve(rows: Rows, settings: GridSettings, *, shift: float = 0.0) -> GridPolicy:
    """Return the best policy of the rows' empirical model.

    Args:
        rows: of one maze.
        settings: of the grid.
        shift: of the grid, in cells.

    Raises:
        ConfigError: no row is finite, or no pair of state and action has enough of them.
    """
    rows = rows.finite()
    here, there = (
        _state_cells(part, settings, shift) for part in (rows.observations, rows.next_observations)
    )
    states, index = np.unique(np.concatenate([here, there]), axis=0, return_inverse=True)
    source, target = index.reshape(2, -1)
    acts = _action_cells(rows.actions, settings)
    pairs, pair = np.unique(source * settings.forces**2 + acts, return_inverse=True)
    counts = np.bincount(pair)
    if not (counts >= settings.fewest).any():
        raise ConfigError(f"no state and action has {settings.fewest} rows: widen the grid")
    model = sparse.csr_matrix((1 / counts[pair], (pair, target)), shape=(len(pairs), len(states)))
    means = [
        np.bincount(pair, weights=column) / counts for column in (rows.rewards, *rows.actions.T)
    ]
    known = counts >= settings.fewest
    owner = (pairs // settings.forces**2)[known]
    values, scores = _iterate(model[known], means[0][known], owner, len(states), settings)
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    best = np.array([lo + scores[lo:hi].argmax() for lo, hi in _spans(first, len(owner))])
    forces = np.stack([means[1][known], means[2][known]], axis=1)[best]
    return GridPolicy(
        settings=settings,
        shift=shift,
        states=states[owner[first]],
        forces=forces,
        values=values[owner[first]],
    )


def judge(rows: Rows, maze: Maze, settings: GridSettings) -> tuple[Score, list[Score]]:
    """Return what the rows' best policies earn in the true simulator: the mean, and each shift's.

    Where cells begin is nothing that rows say, and moves a single score by tens of points.
    """
    policies = [solve(rows, settings, shift=shift).policy() for shift in settings.shifts]
    scores = [score(policy, maze) for policy in policies]
    return mean_score(scores), scores


def _iterate(
    model: sparse.csr_matrix,
    rewards: NDArray[np.float64],
    owner: Cells,
    states: int,
    settings: GridSettings,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return values ``(S,)`` and those of pairs; pairs are sorted by the state that owns them."""
    first = np.flatnonzero(np.r_[True, owner[1:] != owner[:-1]])
    values = np.zeros(states)
    scores = rewards
    for _ in range(settings.sweeps):
        scores = rewards + settings.discount * (model @ values)
        updated = np.zeros(states)
        updated[owner[first]] = np.maximum.reduceat(scores, first)
        change = np.abs(updated - values).max()
        values = updated
        if change < settings.tolerance:
            break
    return values, scores


def _spans(first: Cells, end: int) -> list[tuple[int, int]]:
    return list(zip(first.tolist(), [*first[1:].tolist(), end], strict=True))


def _state_cells(observations: NDArray[np.floating], settings: GridSettings, shift: float) -> Cells:
    widths = np.array([settings.position] * 2 + [settings.speed] * 2)
    limited = observations.astype(np.float64)
    limited[:, 2:] = np.clip(limited[:, 2:], -SPEED_LIMIT, SPEED_LIMIT)
    return np.asarray(np.floor(limited / widths + shift), dtype=np.int64)


def _action_cells(actions: NDArray[np.floating], settings: GridSettings) -> Cells:
    share = (np.clip(actions, -1, 1).astype(np.float64) + 1) / 2
    cells = np.minimum((share * settings.forces).astype(np.int64), settings.forces - 1)
    return np.asarray(cells[:, 0] * settings.forces + cells[:, 1])
