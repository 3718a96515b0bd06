"""Episodes of many experts at once, in lock-step, on one and the same environment."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.collection.replay_episodes import as_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.simulators import PerturbedSimulator

Chooser = Callable[[NDArray[np.float32], np.random.Generator], NDArray[np.int64]]
"""Observations (M, O) and a source of chance to actions (M,)."""


class Played(NamedTuple):
    """Episodes, an expert's after another's."""

    trajectories: Trajectories
    log_probabilities: NDArray[np.float32]
    """(N,) of each action, in the order of the rows."""


def play_experts(
    simulator: PerturbedSimulator,
    policies: ExpertPolicies,
    *,
    episodes: int,
    max_length: int,
    streams: Streams,
) -> Played:
    """Return ``episodes`` of each expert; it acts by chance, the unit of its rows is its own.

    Args:
        simulator: where they act.
        policies: E experts.
        episodes: of each (N).
        max_length: steps at most (L).
        streams: public randomness of these episodes.
    """
    experts, count = len(policies), len(policies) * episodes
    generator = torch.Generator().manual_seed(streams.integer("actions"))
    starts = simulator.reset(count, streams.numpy("starts"))
    states, shown = starts, simulator.observe(starts)
    observations = np.empty((count, max_length + 1, shown.shape[1]), np.float32)
    actions = np.zeros((count, max_length), np.int64)
    rewards, logs = (np.zeros((count, max_length), np.float32) for _ in range(2))
    lengths = np.full(count, max_length)
    terminated = np.zeros(count, dtype=bool)
    observations[:, 0] = shown
    for step in range(max_length):
        chosen, odds = policies.act(torch.from_numpy(shown).view(experts, episodes, -1), generator)
        actions[:, step], logs[:, step] = chosen.flatten().numpy(), odds.flatten().numpy()
        states, rewards[:, step], ended = simulator.step(states, actions[:, step])
        shown = simulator.observe(states)
        observations[:, step + 1] = shown
        lengths[ended & ~terminated] = step + 1
        terminated |= ended
        if terminated.all():
            break
        states[terminated] = starts[terminated]
    units = np.repeat(policies.unit_ids, episodes)
    return Played(
        as_trajectories(observations, actions, rewards, lengths, terminated, units),
        logs[np.arange(max_length) < lengths[:, None]],
    )


def mean_return(
    simulator: PerturbedSimulator,
    choose: Chooser,
    *,
    episodes: int,
    max_length: int,
    streams: Streams,
) -> float:
    """Return the mean undiscounted return of whoever chooses.

    Args:
        simulator: where they act.
        choose: who acts.
        episodes: episodes behind the mean.
        max_length: steps at most.
        streams: public randomness.
    """
    generator = streams.numpy("actions")
    states, total = simulator.reset(episodes, streams.numpy("starts")), 0.0
    for _ in range(max_length):
        actions = choose(simulator.observe(states), generator)
        states, rewards, ended = simulator.step(states, actions)
        total += float(rewards.sum())
        states = states[~ended]
        if not len(states):
            break
    return total / episodes


def uniform_chooser(actions: int) -> Chooser:
    """Return who takes each of a number of actions equally often."""
    return lambda shown, generator: generator.integers(actions, size=len(shown))


def greedy_chooser(policy: ExpertPolicies) -> Chooser:
    """Return who always takes the action that one expert prefers."""
    return lambda shown, generator: policy.greedy(torch.from_numpy(shown)[None])[0].numpy()
