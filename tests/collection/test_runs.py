import gymnasium
import numpy as np
import pytest

from distributed_privrl.collection import runs
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments import environment_id
from distributed_privrl.environments.mazes import MAZES


def _collect(
    maze: str = "umaze",
    *,
    dense: bool = False,
    steps: int = 1000,
    steps_per_run: int = 300,
    noise: float = 0.5,
    seed: int = 0,
) -> Trajectories:
    return Trajectories.concatenate(
        list(
            runs.planner_runs(
                MAZES[maze],
                dense=dense,
                steps=steps,
                steps_per_run=steps_per_run,
                noise=noise,
                streams=Streams(seed),
            )
        )
    )


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.parametrize("maze", list(MAZES))
def test_replayed_in_the_environment_the_actions_give_the_same_data(maze: str, dense: bool) -> None:
    limit = MAZES[maze].time_limit
    data = _collect(maze, dense=dense, steps=3 * limit, steps_per_run=limit)
    env = gymnasium.make(environment_id(maze, dense=dense))
    row = 0
    for number, length in enumerate(data.lengths.tolist()):
        observation, _ = env.reset(options={"state": data.observations[row + number]})
        for _ in range(length):
            np.testing.assert_array_equal(observation, data.observations[row + number])
            observation, reward, terminated, truncated, _ = env.step(data.actions[row])
            assert (terminated, truncated) == (data.terminated[row], data.truncated[row])
            assert reward == pytest.approx(data.rewards[row], abs=1e-6)
            row += 1
        np.testing.assert_array_equal(observation, data.observations[row + number])
    assert row == 3 * limit


def test_runs_are_truncated_at_their_end_and_the_last_is_the_rest() -> None:
    data = _collect(steps=1000, steps_per_run=300)
    assert data.lengths.tolist() == [300, 300, 300, 100]
    assert np.flatnonzero(data.truncated).tolist() == [299, 599, 899, 999]
    assert not data.terminated.any()
    assert data.unit_ids.tolist() == [0, 1, 2, 3]


def test_the_seed_decides_and_runs_are_independent_of_their_number() -> None:
    short, long, other = _collect(steps=500), _collect(steps=1200), _collect(steps=500, seed=1)
    np.testing.assert_array_equal(short.actions, long.actions[:500])
    np.testing.assert_array_equal(short.observations, long.observations[:502])
    assert (short.observations != other.observations).any()
    assert (short.observations[0] != short.observations[301]).any()


def test_chunks_do_not_change_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _collect(steps=1000)
    monkeypatch.setattr(runs, "CHUNK_STEPS", 500)
    chunks = list(
        runs.planner_runs(
            MAZES["umaze"],
            dense=False,
            steps=1000,
            steps_per_run=300,
            noise=0.5,
            streams=Streams(0),
        )
    )
    assert [len(chunk) for chunk in chunks] == [2, 2]
    joined = Trajectories.concatenate(chunks)
    np.testing.assert_array_equal(joined.observations, whole.observations)
    np.testing.assert_array_equal(joined.unit_ids, whole.unit_ids)


def test_both_rewards_are_of_the_same_runs() -> None:
    sparse, dense = _collect(dense=False), _collect(dense=True)
    np.testing.assert_array_equal(sparse.observations, dense.observations)
    within = dense.rewards >= np.exp(-0.5)
    np.testing.assert_array_equal(sparse.rewards == 1, within)


def test_noise_on_each_force_has_the_stated_standard_deviation() -> None:
    # the first steps of 3000 runs, far enough from the limits that nothing is clipped
    quiet = _collect(noise=0.0, steps=3000, steps_per_run=1).actions
    noisy = _collect(noise=0.1, steps=3000, steps_per_run=1).actions
    for axis in (0, 1):
        noise = (noisy - quiet)[np.abs(quiet[:, axis]) < 0.5, axis]
        assert len(noise) > 400
        assert abs(noise.mean()) < 0.015
        assert 0.09 < noise.std() < 0.11


def test_forces_stay_in_bounds_and_are_recorded_as_applied() -> None:
    actions = _collect(noise=0.5, steps=3000).actions
    assert np.abs(actions).max() == 1.0


@pytest.mark.parametrize("maze", list(MAZES))
def test_random_goals_bring_the_ball_to_every_free_cell(maze: str) -> None:
    steps = 1500 * len(MAZES[maze].free_cells)
    data = _collect(maze, steps=steps, steps_per_run=steps)
    assert len(data) == 1
    visited = {MAZES[maze].cell(x, y) for x, y in data.observations[:, :2].tolist()}
    assert visited == set(MAZES[maze].free_cells)


def test_large_noise_still_ends() -> None:
    assert len(_collect("medium", steps=2000, noise=20.0).rewards) == 2000
