"""Whole episodes of several policies at once, in lock-step in a simulator."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.agents.sampled_actions import sample_actions
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.environments.simulators import Simulator

Actor = Callable[[NDArray[np.float32], torch.Generator], NDArray[np.float32]]
"""Observations (M, O) and a source of chance to actions (M, A), raw and inside their bounds."""


def uniform_actor(scale: ActionScale) -> Actor:
    """Return what acts at random, uniformly between the bounds."""

    def act(observations: NDArray[np.float32], generator: torch.Generator) -> NDArray[np.float32]:
        shape = (len(observations), len(scale.low))
        return scale.from_unit(2 * torch.rand(shape, generator=generator).numpy() - 1)

    return act


def sampling_actor(policy: Policy) -> Actor:
    """Return what acts by draws from a stochastic policy."""

    def act(observations: NDArray[np.float32], generator: torch.Generator) -> NDArray[np.float32]:
        drawn: Tensor = sample_actions(policy, torch.from_numpy(observations), generator)
        return drawn.numpy()

    return act


def mode_actor(policy: Policy) -> Actor:
    """Return what acts by a policy's modes."""
    return lambda observations, generator: policy.act(observations)


def play(
    simulator: Simulator,
    actors: Sequence[Actor],
    *,
    numbers: range,
    horizon: int,
    streams: Streams,
) -> Trajectories:
    """Return an episode for each number; episode i is of actor i mod the number of actors.

    An episode ends where it terminates, and is truncated at the horizon. Its unit is its number.

    Args:
        simulator: where they act.
        actors: who acts.
        numbers: the episodes.
        horizon: steps at most (T).
        streams: public randomness of these episodes.
    """
    count = len(numbers)
    generator = torch.Generator().manual_seed(streams.integer("actions"))
    states = simulator.reset(count, streams.numpy("starts"))
    shown = simulator.observe(states)
    observations = np.empty((count, horizon + 1, shown.shape[1]), np.float32)
    actions: NDArray[np.float32] | None = None
    rewards = np.empty((count, horizon), np.float32)
    lengths = np.full(count, horizon)
    terminated = np.zeros(count, dtype=bool)
    rows, turn = np.arange(count), np.arange(numbers.start, numbers.stop) % len(actors)
    observations[:, 0] = shown
    for step in range(horizon):
        chosen = _chosen(actors, shown, turn[rows], generator)
        if actions is None:
            actions = np.empty((count, horizon, chosen.shape[1]), np.float32)
        states, earned, ended = simulator.step(states, chosen)
        shown = simulator.observe(states)
        actions[rows, step], rewards[rows, step] = chosen, earned
        observations[rows, step + 1] = shown
        if ended.any():
            lengths[rows[ended]], terminated[rows[ended]] = step + 1, True
            states, shown, rows = states[~ended], shown[~ended], rows[~ended]
            if not len(rows):
                break
    assert actions is not None
    units = np.array(numbers, dtype=np.uint64)
    return as_trajectories(observations, actions, rewards, lengths, terminated, units)


def mean_returns(
    simulator: Simulator,
    actors: Sequence[Actor],
    *,
    episodes: int,
    horizon: int,
    streams: Streams,
) -> list[float]:
    """Return each actor's mean undiscounted return over ``episodes`` episodes of its own."""
    numbers = range(episodes * len(actors))
    played = play(simulator, actors, numbers=numbers, horizon=horizon, streams=streams)
    earned = np.add.reduceat(played.rewards, played.offsets[:-1], dtype=np.float64)
    means: list[float] = earned.reshape(episodes, len(actors)).mean(axis=0).tolist()
    return means


def _chosen(
    actors: Sequence[Actor],
    shown: NDArray[np.float32],
    turn: NDArray[np.int64],
    generator: torch.Generator,
) -> NDArray[np.float32]:
    """Return the actions of the actor whose turn each row is, ``(M, A)``."""
    parts = [np.flatnonzero(turn == index) for index in range(len(actors))]
    acted = [
        actor(shown[part], generator)
        for actor, part in zip(actors, parts, strict=True)
        if len(part)
    ]
    chosen = np.empty((len(shown), acted[0].shape[1]), np.float32)
    chosen[np.concatenate(parts)] = np.concatenate(acted)
    return chosen


def as_trajectories(
    observations: NDArray[np.float32],
    actions: NDArray[Any],
    rewards: NDArray[np.float32],
    lengths: NDArray[np.int64],
    terminated: NDArray[np.bool_],
    unit_ids: NDArray[np.uint64],
) -> Trajectories:
    """Return padded episodes as trajectories of their lengths.

    Args:
        observations: (K, T + 1, O).
        actions: (K, T, A), or (K, T) of a Discrete space.
        rewards: (K, T).
        lengths: (K,) steps of each that count.
        terminated: (K,) whether it ended in a state without a future; else it was truncated.
        unit_ids: (K,).
    """
    horizon = rewards.shape[1]
    kept = np.arange(horizon) < lengths[:, None]
    last = np.arange(horizon) == lengths[:, None] - 1
    return Trajectories(
        observations=observations[np.arange(horizon + 1) <= lengths[:, None]],
        actions=actions[kept],
        rewards=rewards[kept],
        terminated=(last & terminated[:, None])[kept],
        truncated=(last & ~terminated[:, None])[kept],
        offsets=offsets_of(lengths),
        unit_ids=unit_ids,
    )
