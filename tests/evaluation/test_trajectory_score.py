from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation.trajectory_score import (
    TrajectoryScoreConfig,
    WindowEncoder,
    matched_similarity,
    permuted_columns,
    trajectory_score,
    windows_of,
)

CONFIG = TrajectoryScoreConfig(
    window=8, width=64, embedding=8, steps=400, sample=60, permutations=5
)


def waves(count: int, seed: int, *, frequency: float = 0.5) -> np.ndarray:
    """Return windows (N, 8, 3) of sines of any phase: strongly tied over time."""
    source = np.random.default_rng(seed)
    phase = source.uniform(0, 2 * np.pi, size=(count, 1, 3))
    steps = np.arange(8)[None, :, None]
    return np.sin(frequency * steps + phase) + 0.05 * source.normal(size=(count, 8, 3))


@pytest.fixture(scope="module")
def encoder() -> WindowEncoder:
    return WindowEncoder(waves(400, seed=0), CONFIG, Streams(0))


def scored(encoder: WindowEncoder, synthetic: np.ndarray) -> Any:
    return trajectory_score(
        encoder, waves(200, seed=1), synthetic, generator=np.random.default_rng(0), config=CONFIG
    )


def test_matching_by_hand() -> None:
    one = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 3.0]])
    assert matched_similarity(one, 7 * one[[2, 0, 1]]) == pytest.approx(1)
    assert matched_similarity(one[:1], -one[:1]) == pytest.approx(-1)
    assert matched_similarity(one[:2], np.zeros((2, 2))) == 0
    # The best pairs are (1, 0)-(1, 1) and (0, 1)-(0, 1); a greedy choice could not do better.
    assert matched_similarity(one[:2], np.array([[0.0, 1.0], [1.0, 1.0]])) == pytest.approx(
        (1 + 2**-0.5) / 2
    )


def test_windows_by_hand() -> None:
    layout = RowLayout(Box(-np.inf, np.inf, (1,)), Box(-np.inf, np.inf, (1,)))
    trajectories = Trajectories(
        observations=np.arange(9.0)[:, None],  # five steps and two, each with a final observation
        actions=10 + np.arange(7.0)[:, None],
        rewards=20 + np.arange(7.0),
        terminated=np.zeros(7, bool),
        truncated=np.zeros(7, bool),
        offsets=np.array([0, 5, 7]),
        unit_ids=np.array([0, 1]),
    )
    windows = windows_of(trajectories, layout, 2)
    assert windows[:, :, 0].tolist() == [[0, 1], [2, 3], [6, 7]]  # the fifth step is left over
    assert windows[:, :, 1].tolist() == [[10, 11], [12, 13], [15, 16]]
    assert windows[:, :, 2].tolist() == [[20, 21], [22, 23], [25, 26]]
    assert windows_of(trajectories, layout, 6).shape == (0, 6, 3)


def test_permuted_columns_keep_the_marginals_of_each_step() -> None:
    windows = waves(50, seed=3)
    permuted = permuted_columns(windows, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(permuted, axis=0), np.sort(windows, axis=0))
    assert not np.array_equal(permuted, windows)


def test_a_perfect_sample_scores_as_real_windows_do(encoder: WindowEncoder) -> None:
    found = scored(encoder, waves(100, seed=2))
    assert found.windows == 60
    assert found.score == pytest.approx(found.ceiling, abs=0.05)
    assert found.ceiling > found.chance_high + 0.02 >= found.chance + 0.02


def test_windows_with_the_right_marginals_and_no_dynamics_score_by_chance(
    encoder: WindowEncoder,
) -> None:
    shuffled = permuted_columns(waves(100, seed=2), np.random.default_rng(9))
    found = scored(encoder, shuffled)
    assert found.score == pytest.approx(found.chance, abs=0.05)
    assert found.score < found.ceiling - 0.02


def test_a_model_stuck_in_one_place_scores_low(encoder: WindowEncoder) -> None:
    stuck = np.repeat(waves(1, seed=2), 100, axis=0)
    assert scored(encoder, stuck).score < scored(encoder, waves(100, seed=2)).ceiling - 0.3


def test_the_score_repeats(encoder: WindowEncoder) -> None:
    assert scored(encoder, waves(80, seed=2)) == scored(encoder, waves(80, seed=2))
    again = WindowEncoder(waves(400, seed=0), CONFIG, Streams(0))
    np.testing.assert_array_equal(again.embed(waves(9, 1)), encoder.embed(waves(9, 1)))


def test_wrong_inputs_are_named(encoder: WindowEncoder) -> None:
    with pytest.raises(ConfigError, match="window must be"):
        TrajectoryScoreConfig(window=0)
    with pytest.raises(ConfigError, match="public data hold 1 windows"):
        WindowEncoder(waves(1, seed=0), CONFIG, Streams(0))
    with pytest.raises(ConfigError, match="got 200 and 1"):
        scored(encoder, waves(1, seed=2))
