import copy
import math
import os
import pickle
import signal
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.sampling import (
    KeyedPoissonSampler,
    PoissonSampler,
    SecurePoissonSampler,
    UnitRandomness,
)

ALPHA = 1e-6
UNITS = np.random.default_rng(0).integers(0, 2**63, 40).astype(np.uint64)
ROUNDS = 6000


def both_tails(statistic: float, distribution: Any) -> float:
    return float(2 * min(distribution.cdf(statistic), distribution.sf(statistic)))


def inclusion(sampler: PoissonSampler, probability: float) -> np.ndarray:
    included = np.zeros((ROUNDS, len(UNITS)), bool)
    for round_index in range(ROUNDS):
        included[round_index, sampler.draw(UNITS, probability, round_index)] = True
    return included


@pytest.fixture(scope="module", params=["secure", "keyed"])
def sampled(request) -> tuple[float, np.ndarray]:
    sampler = SecurePoissonSampler() if request.param == "secure" else KeyedPoissonSampler(11)
    return 0.15, inclusion(sampler, 0.15)


def test_each_unit_takes_part_with_the_probability_asked(sampled) -> None:
    probability, included = sampled
    law = stats.binom(ROUNDS, probability)
    for total in included.sum(0):
        assert both_tails(total, law) > ALPHA / len(UNITS)
    everyone = stats.binom(included.size, probability)
    assert both_tails(included.sum(), everyone) > ALPHA
    assert both_tails(included.sum() * 0.95, everyone) < ALPHA
    assert both_tails(included.sum() * 1.05, everyone) < ALPHA


def test_units_take_part_independently_of_each_other(sampled) -> None:
    probability, included = sampled
    law = stats.binom(ROUNDS, probability**2)
    pairs = included.T.astype(int) @ included.astype(int)
    for left in range(len(UNITS)):
        for right in range(left):
            assert both_tails(pairs[left, right], law) > ALPHA / 780


def test_batch_sizes_vary_as_poisson_sampling_does(sampled) -> None:
    probability, included = sampled
    spread = len(UNITS) * probability * (1 - probability)
    statistic = float(((included.sum(1) - len(UNITS) * probability) ** 2).sum()) / spread
    # kurtosis of a binomial widens the chi-square's variance a little: 2 + (1 - 6pq) / npq
    deviation = math.sqrt(ROUNDS * (2 + (1 - 6 * probability * (1 - probability)) / spread))
    law = stats.norm(ROUNDS, deviation)
    assert both_tails(statistic, law) > ALPHA
    assert both_tails(statistic * 0.8, law) < ALPHA  # truncated batches
    assert both_tails(0.0, law) < ALPHA  # fixed batches
    assert both_tails(statistic * 1.25, law) < ALPHA


def test_rounds_are_independent_of_each_other(sampled) -> None:
    probability, included = sampled
    again = (included[1:] & included[:-1]).sum(1)[::2]
    law = stats.binom(len(again) * len(UNITS), probability**2)
    assert both_tails(again.sum(), law) > ALPHA


@pytest.mark.parametrize("sampler", [SecurePoissonSampler(), KeyedPoissonSampler(1)])
def test_positions_ascend_without_repeats_within_the_units(sampler) -> None:
    units = np.arange(20_000, dtype=np.uint64)
    for probability in (1e-4, 0.01, 0.3, 0.999):
        positions = sampler.draw(units, probability, 0)
        assert positions.dtype == np.int64
        assert (np.diff(positions) > 0).all()
        assert ((positions >= 0) & (positions < len(units))).all()
        assert both_tails(len(positions), stats.binom(len(units), probability)) > ALPHA
    np.testing.assert_array_equal(sampler.draw(units, 1.0, 0), np.arange(len(units)))
    assert len(sampler.draw(units[:0], 0.5, 0)) == 0
    for wrong in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="sampling_probability"):
            sampler.draw(units, wrong, 0)


def test_keyed_coins_belong_to_units_however_these_are_sharded() -> None:
    units = np.random.default_rng(1).permutation(3000).astype(np.uint64)
    sampler = KeyedPoissonSampler(7)
    whole = units[sampler.draw(units, 0.1, 4)]
    shards = np.array_split(units[::-1], 4)
    parts = [shard[KeyedPoissonSampler(7).draw(shard, 0.1, 4)] for shard in shards]
    assert set(np.concatenate(parts)) == set(whole)
    assert set(units[sampler.draw(units, 0.1, 5)]) != set(whole)
    assert set(units[KeyedPoissonSampler(8).draw(units, 0.1, 4)]) != set(whole)


def test_secure_sampling_never_repeats_and_never_leaves_its_process() -> None:
    units = np.arange(1000, dtype=np.uint64)
    sampler = SecurePoissonSampler()
    batches = [tuple(sampler.draw(units, 0.3, 0)) for _ in range(20)]
    batches += [tuple(SecurePoissonSampler().draw(units, 0.3, 0)) for _ in range(20)]
    assert len(set(batches)) == 40
    for dump in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UnsafeError, match="never leaves its process"):
            dump(sampler)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a lock or thread that the fork left behind would wait for ever
        try:
            with pytest.raises(UnsafeError, match="forked"):
                sampler.draw(units, 0.3, 0)
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("count", [1, 2, 5])
def test_unit_randomness_does_not_depend_on_sharding(count) -> None:
    units = np.random.default_rng(2).integers(0, 2**63, 500).astype(np.uint64)
    kept = units.copy()
    randomness, same = UnitRandomness(3), UnitRandomness(3)
    for draw, again in ((randomness.uniforms, same.uniforms), (randomness.normals, same.normals)):
        whole = draw(units, 9, count, 2)
        assert whole.shape == (500, count)
        parts = [again(part, 9, count, 2) for part in np.array_split(units, 7)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(units, kept)


def test_unit_randomness_has_its_law_and_independent_streams() -> None:
    units = np.arange(2000, dtype=np.uint64)
    randomness = UnitRandomness(3)
    uniforms = randomness.uniforms(units, 0, 10)
    normals = randomness.normals(units, 0, 10)
    assert ((uniforms >= 0) & (uniforms < 1)).all()
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > ALPHA
    assert stats.kstest(normals.ravel(), "norm").pvalue > ALPHA
    assert both_tails(float((normals**2).sum()), stats.chi2(normals.size)) > ALPHA
    for other in (
        randomness.normals(units, 1, 10),
        randomness.normals(units, 0, 10, 1),
        UnitRandomness(4).normals(units, 0, 10),
        UnitRandomness(None).normals(units, 0, 10),
        np.roll(normals, 1, 0),
        np.roll(normals, 1, 1),
        uniforms,
    ):
        assert stats.pearsonr(normals.ravel(), other.ravel()).pvalue > ALPHA
        assert not np.array_equal(normals, other)
    empty = randomness.normals(units[:0], 0, 3)
    assert empty.shape == (0, 3)
