from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.shards import shard_of
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    Statistic,
    ValueBounds,
    releases,
)
from distributed_privrl.methods.value_iteration.statistics import (
    StatisticsSpec,
    StatisticsWorker,
    ValueLattices,
    variance_half,
)
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease
from distributed_privrl.privacy.units import Relation
from tests.methods.value_iteration.linear_data import (
    Given,
    trajectories_of,
    value_sums,
    variance_sums,
)

RNG = np.random.default_rng(0)
TABLE = RNG.normal(size=(3, 2, 4)) / 5
FEATURES = FeatureMap(table=TABLE)
VALUES = np.array([0.5, 1.5, 2.5])
VARIANCES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def worker(trajectories: Trajectories, **given: object) -> StatisticsWorker:
    settings = {"features": FEATURES, "horizon": 3, "split": False, **given}
    return StatisticsWorker(StatisticsSpec(source=Given(trajectories), **settings))  # type: ignore[arg-type]


def random_episodes(count: int = 40) -> list[tuple[int, list[tuple[int, int, float]], int]]:
    rng = np.random.default_rng(1)
    return [
        (
            unit,
            [(rng.integers(3), rng.integers(2), rng.random()) for _ in range(rng.integers(1, 6))],
            int(rng.integers(3)),
        )
        for unit in range(count)
    ]


def naive(episodes: list, time: int, *, half: bool | None, low: float = 0.0, high: float = 1.0):
    gram, squares, values = np.zeros((4, 4)), np.zeros(4), np.zeros(4)
    weighted, targets = np.zeros((4, 4)), np.zeros(4)
    for unit, steps, last in episodes:
        mine = bool(variance_half(np.array([unit], np.uint64))[0])
        if time >= len(steps) or (half is not None and mine != half):
            continue
        state, action, reward = steps[time]
        reached = steps[time + 1][0] if time + 1 < len(steps) else last
        phi, value, weight = TABLE[state, action], VALUES[reached], 1 / VARIANCES[state, action]
        scaled = (np.clip(np.float32(reward), low, high) - low) / (high - low)
        gram += np.outer(phi, phi)
        squares += phi * value**2
        values += phi * value
        weighted += weight * np.outer(phi, phi)
        targets += weight * phi * (scaled + value)
    return gram, squares, values, weighted, targets


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("time", [0, 1, 2])
def test_sums_are_those_of_a_loop(time: int, split: bool) -> None:
    episodes = random_episodes()
    found = worker(trajectories_of(episodes), split=split, reward_range=(-1.0, 0.5))
    first = naive(episodes, time, half=True if split else None)
    second = naive(episodes, time, half=False if split else None, low=-1.0, high=0.5)
    answer = variance_sums(found, FEATURES, time, VALUES, 0.0)
    for mine, other in zip(answer, first[:3], strict=True):
        np.testing.assert_allclose(mine[0], other, atol=1e-8)
    weighted = value_sums(found, FEATURES, time, VALUES, 0.0, variances=VARIANCES)
    for mine, other in zip(weighted, second[3:], strict=True):
        np.testing.assert_allclose(mine[0], other, atol=1e-8)
    plain = value_sums(found, FEATURES, time, VALUES, 0.0)
    np.testing.assert_allclose(plain.gram[0], second[0], atol=1e-8)
    assert np.abs(first[0]).max() > 0


def test_halves_are_fair_fixed_and_independent_of_the_shards() -> None:
    units = np.arange(40_000, dtype=np.uint64)
    half = variance_half(units)
    assert abs(half.mean() - 0.5) < 0.0125  # five standard deviations
    np.testing.assert_array_equal(half, variance_half(units[::-1])[::-1])
    for shard in range(4):
        assert abs(half[shard_of(units, 4) == shard].mean() - 0.5) < 0.025


def test_no_unit_enters_both_halves_and_every_unit_one() -> None:
    for unit in range(20):
        found = worker(
            trajectories_of([(unit, [(0, 0, 1.0)], 1)] * 3),
            split=True,
            max_trajectories_per_unit=3,
        )
        first = np.abs(variance_sums(found, FEATURES, 0, VALUES, 0.0).gram).sum() > 0
        second = np.abs(value_sums(found, FEATURES, 0, VALUES, 0.0).gram).sum() > 0
        assert first != second


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_unit_adds_its_first_trajectories_alone(most: int) -> None:
    episodes = [(7, [(0, 0, 0.1 * number)], 1) for number in range(3)] + [(8, [(1, 1, 1.0)], 1)]
    found = worker(trajectories_of(episodes), max_trajectories_per_unit=most)
    kept = trajectories_of([*episodes[: min(most, 3)], episodes[3]])
    expected = worker(kept, max_trajectories_per_unit=5)
    for mine, other in zip(
        value_sums(found, FEATURES, 0, VALUES, 0.0),
        value_sums(expected, FEATURES, 0, VALUES, 0.0),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other)


@pytest.mark.parametrize(
    "episode",
    [
        [(3, 0, 0.5)],
        [(-1, 0, 0.5)],
        [(0, 2, 0.5)],
        [(0, -1, 0.5)],
        [(0, 0, np.nan)],
        [(0, 0, np.inf)],
        [],
    ],
)
def test_malformed_rows_add_nothing_and_nothing_tells(episode: list) -> None:
    good = (1, [(0, 1, 0.5), (1, 1, 0.5)], 2)
    found = worker(trajectories_of([good, (2, episode, 1)]))
    expected = worker(trajectories_of([good]))
    for mine, other in zip(
        value_sums(found, FEATURES, 0, VALUES, 0.0),
        value_sums(expected, FEATURES, 0, VALUES, 0.0),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)


def test_a_next_state_out_of_range_and_steps_beyond_the_horizon_add_nothing() -> None:
    found = worker(trajectories_of([(1, [(0, 0, 0.5)], 3), (2, [(0, 0, 0.5)] * 5, 1)]))
    assert variance_sums(found, FEATURES, 0, VALUES, 0.0).gram[0, 0, 0] == pytest.approx(
        TABLE[0, 0, 0] ** 2
    )
    only_late = worker(trajectories_of([(2, [(9, 0, 0.5)] * 3 + [(0, 0, 0.5)] * 2, 1)]))
    for time in range(3):
        assert not value_sums(only_late, FEATURES, time, VALUES, 0.0).gram.any()


def test_nothing_follows_a_terminated_step_unless_the_flag_is_ignored() -> None:
    trajectories = trajectories_of([(1, [(0, 0, 0.25)], 2)], terminated=[True])
    found = worker(trajectories)
    targets = value_sums(found, FEATURES, 0, VALUES, 0.125).targets[0]
    np.testing.assert_allclose(targets, TABLE[0, 0] * 0.375)
    ignored = value_sums(found, FEATURES, 0, VALUES, None).targets[0]
    np.testing.assert_allclose(ignored, TABLE[0, 0] * 2.75)


@pytest.mark.parametrize(("reward", "scaled"), [(-7.0, 0.0), (7.0, 1.0), (0.5, 0.75), (-1.0, 0.0)])
def test_rewards_are_clipped_to_the_declared_range(reward: float, scaled: float) -> None:
    found = worker(trajectories_of([(1, [(0, 0, reward)], 0)]), reward_range=(-1.0, 1.0))
    targets = value_sums(found, FEATURES, 0, np.zeros(3), 0.0).targets[0]
    np.testing.assert_allclose(targets, TABLE[0, 0] * scaled)


def test_what_would_break_the_sensitivity_or_makes_no_sense_is_refused() -> None:
    trajectories = trajectories_of([(1, [(0, 0, 0.5)], 0)])
    with pytest.raises(ConfigError, match="at least 1"):
        value_sums(worker(trajectories), FEATURES, 0, VALUES, 0.0, variances=VARIANCES * 0.99)
    with pytest.raises(ConfigError, match="at least 1"):
        value_sums(worker(trajectories), FEATURES, 0, VALUES, 0.0, variances=VARIANCES * np.nan)
    with pytest.raises(ConfigError, match=r"reward_range.*\(1\.0, 1\.0\)"):
        worker(trajectories, reward_range=(1.0, 1.0))
    with pytest.raises(ConfigError, match="horizon must be"):
        worker(trajectories, horizon=0)
    box = Trajectories(
        observations=np.zeros((2, 1), np.float32),
        actions=np.zeros(1, np.int64),
        rewards=np.zeros(1),
        terminated=np.zeros(1),
        truncated=np.zeros(1),
        offsets=np.array([0, 1]),
        unit_ids=np.zeros(1),
    )
    with pytest.raises(ConfigError, match="Discrete"):
        worker(box)


def one_step(rewards: np.ndarray, pairs: np.ndarray | None = None) -> Trajectories:
    """A trajectory of one step each: state pair // 2, action pair % 2, then state 0."""
    count = len(rewards)
    pairs = np.zeros(count, np.int64) if pairs is None else pairs
    return Trajectories(
        observations=np.stack([pairs // 2, np.zeros_like(pairs)], axis=1).reshape(-1),
        actions=pairs % 2,
        rewards=rewards,
        terminated=np.zeros(count, bool),
        truncated=np.ones(count, bool),
        offsets=np.arange(count + 1),
        unit_ids=np.arange(count).astype(np.uint64),
    )


def steps_of(data: Trajectories, release: DiscreteGaussianRelease, **given: Any) -> np.ndarray:
    """Return the summed integers of r + V(s') and of the Gram matrix, V(s') = 1/3."""
    found = worker(data, horizon=1, **given)
    answer = found.value_statistics(
        0, np.full(3, 1 / 3), None, ValueLattices(release, release), VARIANCES
    )
    return np.concatenate(answer)


@pytest.mark.parametrize("order", ["random", "rising", "huge and tiny", "thirds"])
def test_a_unit_moves_integers_by_its_own_term_and_nothing_else(order: str) -> None:
    """On orders that round badly in float64: there one row more changes what others add."""
    count = 200_000
    rewards = {
        "random": np.random.default_rng(0).uniform(size=count),
        "rising": np.sort(np.random.default_rng(0).uniform(size=count)),
        "huge and tiny": np.tile([1.0, 2.0**-30], count // 2),
        "thirds": np.full(count, 1 / 3),
    }[order].astype(np.float32)
    pairs = np.arange(count) * 7 % 6
    release = DiscreteGaussianRelease(sensitivity=2 * 4 / 3, noise_multiplier=1.0, dimension=4)
    everybody = steps_of(one_step(rewards, pairs), release)
    for removed in (0, count // 2, count - 1):
        others = np.arange(count) != removed
        without = steps_of(one_step(rewards[others], pairs[others]), release)
        alone = steps_of(one_step(rewards[[removed]], pairs[[removed]]), release)
        np.testing.assert_array_equal(everybody - without, alone)
    backwards = steps_of(one_step(rewards[::-1].copy(), pairs[::-1].copy()), release)
    np.testing.assert_array_equal(everybody, backwards)


@pytest.mark.parametrize(
    ("relation", "factor"), [(Relation.REPLACE_ONE, 2), (Relation.REPLACE_WITH_NULL, 1)]
)
def test_where_rounding_is_worst_it_moves_sums_by_what_is_charged(
    relation: Relation, factor: int
) -> None:
    """Each coordinate of phi y is half a step and a hair beyond a whole one, and rounds up."""
    features = FeatureMap(table=np.array([[[0.5] * 4, [-0.5] * 4]]))
    settings = LinearSettings(
        features=features,
        horizon=1,
        units=2,
        split=False,
        relation=relation,
        noise_multiplier=1.0,
    )
    release = releases(settings, 0, ValueBounds(values=1.0, targets=1.0))[Statistic.TARGETS]
    bound = release.lattice * (2 * round(0.5 / release.lattice) + 1 + 1e-6)  # of |y|
    release = releases(settings, 0, ValueBounds(values=1.0, targets=bound))[Statistic.TARGETS]
    answers = []
    for action in (0, 1):
        data = trajectories_of([(1, [(0, action, 0.0)], 0)])
        found = worker(data, features=features, horizon=1)
        lattices = ValueLattices(release, release)
        answers.append(found.value_statistics(0, np.array([bound]), None, lattices).targets)
    one, other = answers if factor == 2 else (answers[0], np.zeros(4))
    moved = float(np.linalg.norm(one - other))
    unrounded = factor * bound / release.lattice
    assert moved == pytest.approx(unrounded + factor, abs=1e-4)  # sqrt(4) / 2 a unit
    assert moved <= release.sensitivity_steps
    if factor == 2:
        assert moved >= release.sensitivity_steps - 1e-3


@pytest.mark.parametrize("cap", [1, 3, 50])
def test_each_of_a_units_trajectories_may_be_rounded_for_itself(cap: int) -> None:
    features = FeatureMap(table=np.array([[[0.5] * 4, [-0.5] * 4]]))
    settings = LinearSettings(
        features=features,
        horizon=1,
        units=2,
        split=False,
        noise_multiplier=1.0,
        max_trajectories_per_unit=cap,
    )
    release = releases(settings, 0, ValueBounds(values=1.0, targets=1.0))[Statistic.TARGETS]
    step = release.lattice
    bound = step * (2 * round(0.5 / step) + 1 + 1e-6)
    release = releases(settings, 0, ValueBounds(values=1.0, targets=bound))[Statistic.TARGETS]
    assert release.lattice == step
    answers = []
    for action in (0, 1):
        data = trajectories_of([(1, [(0, action, 0.0)], 0)] * cap)
        found = worker(data, features=features, horizon=1, max_trajectories_per_unit=cap)
        lattices = ValueLattices(release, release)
        answers.append(found.value_statistics(0, np.array([bound]), None, lattices).targets)
    moved = float(np.linalg.norm(answers[0] - answers[1]))
    assert moved == pytest.approx(2 * cap * (bound / step + 1), rel=1e-9)
    assert moved <= release.sensitivity_steps
