"""Trajectories of a finite MDP under its behaviour, all trajectories of a chunk at once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.environments.tabular import TabularMdp

CHUNK_TRAJECTORIES = 8192
"""Trajectories that are drawn at a time, from one stream; another number gives other data."""


class RowSampler:
    """Draws from many distributions at once, in the logarithm of their numbers of values.

    Only values that can happen are held. The cumulative sums of row r lie in (r, r + 1], so that
    one sorted array serves all rows; a probability is exact up to 2e-16 times the number of rows.

    Args:
        probabilities: ``(R, C)``; rows that are off 1 by a rounding are scaled.
    """

    def __init__(self, probabilities: NDArray[np.floating[Any]]) -> None:
        rows, self._values = np.nonzero(probabilities)
        sums = np.cumsum(probabilities[rows, self._values], dtype=np.float64)
        self._ends = np.searchsorted(rows, np.arange(len(probabilities)), side="right")
        totals = sums[self._ends - 1]
        before = np.concatenate([[0.0], totals[:-1]])
        self._sums = rows + (sums - before[rows]) / (totals - before)[rows]
        self._sums[self._ends - 1] = np.arange(1, len(probabilities) + 1)

    def draw(self, rows: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return a value for each row.

        Args:
            rows: ``(N,)`` rows to draw from.
            uniforms: ``(N,)`` numbers in [0, 1).

        Returns:
            ``(N,)`` columns.
        """
        found = np.searchsorted(self._sums, rows + uniforms, side="right")
        return self._values[np.minimum(found, self._ends[rows] - 1)]


def sample_trajectories(
    mdp: TabularMdp, *, trajectories: int, streams: Streams
) -> Iterator[Trajectories]:
    """Yield trajectories of an MDP's behaviour in chunks.

    A trajectory terminates when it arrives at a terminal state and is truncated at the horizon.
    Trajectory i depends on the MDP, its horizon, the seed and i alone, so that fewer trajectories
    are a beginning of more. Units are trajectories, numbered.

    Args:
        mdp: the MDP.
        trajectories: their number.
        streams: public randomness, one stream a chunk.
    """
    states = mdp.states
    initial = RowSampler(mdp.initial[None])
    behaviour = RowSampler(mdp.behaviour.reshape(-1, mdp.actions))
    transitions = RowSampler(mdp.transitions.reshape(-1, states))
    for first in range(0, trajectories, CHUNK_TRAJECTORIES):
        count = min(CHUNK_TRAJECTORIES, trajectories - first)
        rng = streams.numpy(f"chunk/{first // CHUNK_TRAJECTORIES}")
        uniforms = rng.random((count, 2 * mdp.horizon + 1))
        observations = np.zeros((count, mdp.horizon + 1), dtype=np.int64)
        actions = np.zeros((count, mdp.horizon), dtype=np.int64)
        rewards = np.zeros((count, mdp.horizon))
        lengths = np.full(count, mdp.horizon)
        observations[:, 0] = initial.draw(np.zeros(count, dtype=np.int64), uniforms[:, 0])
        going = np.arange(count)
        for step in range(mdp.horizon):
            stage = step % len(mdp.transitions)
            before = observations[going, step]
            rules = step % len(mdp.behaviour) * states + before
            chosen = behaviour.draw(rules, uniforms[going, 2 * step + 1])
            cells = (stage * states + before) * mdp.actions + chosen
            after = transitions.draw(cells, uniforms[going, 2 * step + 2])
            observations[going, step + 1] = after
            actions[going, step] = chosen
            rewards[going, step] = mdp.rewards[stage, before, chosen] + mdp.arrival_rewards[after]
            ended = mdp.terminal[after]
            lengths[going[ended]] = step + 1
            going = going[~ended]
        yield _as_trajectories(mdp, observations, actions, rewards, lengths, first)


def _as_trajectories(
    mdp: TabularMdp,
    observations: NDArray[np.int64],
    actions: NDArray[np.int64],
    rewards: NDArray[np.float64],
    lengths: NDArray[np.int64],
    first: int,
) -> Trajectories:
    """Return rows of equal length ``(K, H + 1)`` and ``(K, H)``, of which ``lengths`` are real."""
    taken = np.arange(mdp.horizon) < lengths[:, None]
    seen = np.arange(mdp.horizon + 1) <= lengths[:, None]
    offsets = offsets_of(lengths)
    terminated = np.zeros(offsets[-1], dtype=bool)
    terminated[offsets[1:] - 1] = mdp.terminal[observations[np.arange(len(lengths)), lengths]]
    truncated = np.zeros(offsets[-1], dtype=bool)
    truncated[offsets[1:] - 1] = ~terminated[offsets[1:] - 1]
    return Trajectories(
        observations=observations[seen],
        actions=actions[taken],
        rewards=rewards[taken].astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        offsets=offsets,
        unit_ids=np.arange(first, first + len(lengths), dtype=np.uint64),
    )
