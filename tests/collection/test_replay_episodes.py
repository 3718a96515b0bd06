import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from distributed_privrl.agents.normalisation import Normalisation
from distributed_privrl.agents.policy import ActionScale, Policy
from distributed_privrl.collection.replay_episodes import (
    Actor,
    mean_returns,
    mode_actor,
    play,
    sampling_actor,
    uniform_actor,
)
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.pendulum import Pendulum
from distributed_privrl.models.layers import mlp
from tests.collection.countdown import Countdown

SCALE = ActionScale(low=np.array([-2.0], np.float32), high=np.array([2.0], np.float32))


def constant(value: float) -> Actor:
    return lambda observations, generator: np.full((len(observations), 1), value, np.float32)


def policy() -> Policy:
    return Policy(
        mlp((3, 8, 2), torch.Generator().manual_seed(0)),
        normalisation=Normalisation.identity(3),
        observation_space=Box(-np.inf, np.inf, (3,)),
        action_space=Box(-2.0, 2.0, (1,)),
    )


def test_episodes_end_where_they_terminate_or_at_the_horizon() -> None:
    data = play(Countdown(), [constant(1.0)], numbers=range(7, 11), horizon=3, streams=Streams(0))
    assert data.lengths.tolist() == [1, 2, 3, 3]
    assert data.terminated.tolist() == [True, False, True, False, False, True, *[False] * 3]
    assert np.flatnonzero(data.truncated).tolist() == [8]
    assert data.observations[:, 0].tolist() == [1, 0, 2, 1, 0, 3, 2, 1, 0, 4, 3, 2, 1]
    assert data.rewards.tolist() == [0, 1, 0, 2, 1, 0, 3, 2, 1]
    assert data.unit_ids.tolist() == [7, 8, 9, 10]


def test_actors_take_turns_by_the_episodes_number() -> None:
    actors = [constant(value) for value in (1.0, 2.0, 3.0)]
    data = play(Pendulum(), actors, numbers=range(4, 9), horizon=2, streams=Streams(0))
    assert data.actions[::2, 0].tolist() == [2.0, 3.0, 1.0, 2.0, 3.0]


def test_after_some_have_ended_the_others_keep_their_actor() -> None:
    actors = [constant(1.0), constant(0.5)]
    data = play(Countdown(), actors, numbers=range(4), horizon=6, streams=Streams(0))
    assert data.lengths.tolist() == [1, 4, 3, 6]
    for number, length in enumerate(data.lengths):
        start = data.offsets[number]
        expected = (1.0, 0.5)[number % 2]
        assert (data.actions[start : start + length] == expected).all()


def test_mean_returns_are_each_actors_own() -> None:
    # rows have 1, 2, 3, 4 left; actor 0 has those of 1 and 3, actor 1 those of 2 and 4
    means = mean_returns(
        Countdown(), [constant(1.0), constant(2.0)], episodes=2, horizon=9, streams=Streams(0)
    )
    assert means == [(0 + (2 + 1 + 0)) / 2, (0 + (2 + 0)) / 2]


def test_the_streams_decide() -> None:
    first, again, other = (
        play(Pendulum(), [uniform_actor(SCALE)], numbers=range(3), horizon=5, streams=Streams(seed))
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.observations, again.observations)
    np.testing.assert_array_equal(first.actions, again.actions)
    assert (first.actions != other.actions).all()
    assert (first.observations[::6] != other.observations[::6]).any(axis=1).all()


def test_random_actions_are_uniform_between_the_bounds() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = uniform_actor(SCALE)(np.zeros((20_000, 3), np.float32), generator)
    assert drawn.shape == (20_000, 1)
    assert -2 <= drawn.min() < -1.99
    assert 1.99 < drawn.max() <= 2
    assert drawn.std() == pytest.approx(4 / np.sqrt(12), rel=0.02)
    assert abs(drawn.mean()) < 0.04


def test_a_policy_acts_by_chance_or_by_its_mode() -> None:
    generator = torch.Generator().manual_seed(0)
    row = np.array([[0.3, -0.2, 1.0]], np.float32)
    drawn = np.concatenate([sampling_actor(policy())(row, generator) for _ in range(2000)])
    mode = mode_actor(policy())(row, generator)
    np.testing.assert_array_equal(mode, policy().act(row))
    assert abs(np.median(drawn) - mode[0, 0]) < 0.15
    assert 0.2 < drawn.std() < 2
    assert np.abs(drawn).max() <= 2
