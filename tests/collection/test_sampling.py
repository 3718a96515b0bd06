import numpy as np
import pytest

from distributed_privrl.collection import sampling
from distributed_privrl.collection.sampling import RowSampler, sample_trajectories
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import gridworld, random_mdp, tabular_problem
from distributed_privrl.environments.tabular import TabularMdp, policy_value, with_horizon


def sample(mdp: TabularMdp, count: int, seed: int = 0) -> Trajectories:
    chunks = sample_trajectories(mdp, trajectories=count, streams=Streams(seed))
    return Trajectories.concatenate(list(chunks))


def _within(counts: np.ndarray, chances: np.ndarray, draws: int) -> bool:
    spread = np.sqrt(draws * chances * (1 - chances))
    return bool((np.abs(counts - draws * chances) <= 5 * spread).all())


def test_rows_are_drawn_with_their_probabilities() -> None:
    probabilities = np.array([[0.2, 0.0, 0.8], [0.0, 1.0, 0.0], [0.5, 0.25, 0.25]])
    sampler = RowSampler(probabilities)
    uniforms = np.random.default_rng(0).random(100_000)
    for row, chances in enumerate(probabilities):
        drawn = sampler.draw(np.full(100_000, row), uniforms)
        counts = np.bincount(drawn, minlength=3)
        assert _within(counts, chances, 100_000)
        assert not _within(counts, np.roll(chances, 1), 100_000)


def test_the_ends_of_the_unit_interval_stay_in_their_row() -> None:
    rows = 1_000_000
    probabilities = np.tile([0.0, 0.5, 0.5, 0.0], (rows, 1))
    sampler = RowSampler(probabilities)
    last = np.array([0, 1, rows - 1])
    assert sampler.draw(last, np.zeros(3)).tolist() == [1, 1, 1]
    assert sampler.draw(last, np.full(3, np.nextafter(1, 0))).tolist() == [2, 2, 2]
    assert sampler.draw(last, np.full(3, 0.4999)).tolist() == [1, 1, 1]
    assert sampler.draw(last, np.full(3, 0.5001)).tolist() == [2, 2, 2]


def test_trajectories_follow_the_mdp() -> None:
    mdp = gridworld(horizon=9)
    data = sample(mdp, 3000)
    steps = data.transitions("trajectory")
    assert mdp.initial[data.observations[data.offsets[:-1] + np.arange(3000)]].all()
    assert mdp.transitions[0, steps.observations, steps.actions, steps.next_observations].all()
    np.testing.assert_array_equal(steps.rewards, mdp.arrival_rewards[steps.next_observations])
    np.testing.assert_array_equal(steps.terminated, mdp.terminal[steps.next_observations])
    last = np.zeros(len(steps), dtype=bool)
    last[data.offsets[1:] - 1] = True
    np.testing.assert_array_equal(steps.terminated | steps.truncated, last)
    np.testing.assert_array_equal(steps.truncated, last & ~steps.terminated)
    assert set(data.lengths[data.truncated[data.offsets[1:] - 1]]) == {9}
    assert data.lengths.min() < 9
    assert data.unit_ids.tolist() == list(range(3000))


def test_states_actions_and_rewards_have_the_mdps_distribution_at_every_step() -> None:
    mdp = random_mdp(3, 2, 4, np.random.default_rng(5))
    behaviour = np.random.default_rng(6).dirichlet(np.ones(2), size=(4, 3))
    mdp = TabularMdp(
        transitions=mdp.transitions,
        rewards=mdp.rewards,
        arrival_rewards=np.array([0.0, 1.0, 2.0]),
        initial=mdp.initial,
        horizon=4,
        behaviour=behaviour,
    )
    count = 40_000
    data = sample(mdp, count)
    states = data.observations.reshape(count, 5)
    actions, rewards = (part.reshape(count, 4) for part in (data.actions, data.rewards))
    at_step = mdp.initial
    for step in range(4):
        cells = at_step[:, None] * behaviour[step]
        counts = np.bincount(2 * states[:, step] + actions[:, step], minlength=6)
        assert _within(counts, cells.ravel(), count)
        at_step = np.einsum("sa,sat->t", cells, mdp.transitions[step])
        expected = mdp.rewards[step][states[:, step], actions[:, step]] + states[:, step + 1]
        np.testing.assert_allclose(rewards[:, step], expected, rtol=1e-6)
    returns = rewards.sum(axis=1)
    error = abs(returns.mean() - policy_value(mdp, behaviour))
    assert error < 5 * returns.std() / np.sqrt(count)


def test_patients_survive_as_often_as_the_clinicians_value_says() -> None:
    mdp = tabular_problem("privrl/ICU-Sepsis-v0")
    assert mdp is not None
    data = sample(mdp, 20_000)
    survived = data.rewards.sum() / 20_000
    value = policy_value(mdp, mdp.behaviour)
    assert abs(survived - value) < 5 * np.sqrt(value * (1 - value) / 20_000)
    assert data.lengths.max() == 20


def test_fewer_trajectories_are_a_beginning_of_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "CHUNK_TRAJECTORIES", 100)
    mdp = gridworld()
    few, many = sample(mdp, 130), sample(mdp, 250)
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "unit_ids"):
        np.testing.assert_array_equal(
            getattr(few, name), getattr(many.select(range(130)), name), err_msg=name
        )
    chunks = list(sample_trajectories(mdp, trajectories=250, streams=Streams(0)))
    assert [len(chunk) for chunk in chunks] == [100, 100, 50]
    assert not np.array_equal(chunks[0].observations[:500], chunks[1].observations[:500])
    other = sample(mdp, 130, seed=1)
    assert not np.array_equal(few.lengths, other.lengths)


def test_the_horizon_truncates() -> None:
    mdp = tabular_problem("privrl/LinearMDP-a-v0")
    assert mdp is not None
    data = sample(with_horizon(mdp, 3), 50)
    assert set(data.lengths) == {3}
    assert data.truncated.reshape(50, 3).tolist() == [[False, False, True]] * 50
