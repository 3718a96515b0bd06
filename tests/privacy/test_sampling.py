import copy
import hashlib
import math
import os
import pickle
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy.sampling import (
    EMPTY,
    RoundSecret,
    SlotCoins,
    UnitPlacement,
    UnitRandomness,
    slots_of_a_block,
)

ALPHA = 1e-6
UNITS = np.random.default_rng(0).integers(0, 2**63, 40).astype(np.uint64)
ROUNDS = 6000


def both_tails(statistic: float, distribution: Any) -> float:
    return float(2 * min(distribution.cdf(statistic), distribution.sf(statistic)))


def secret(number: int = 0) -> RoundSecret:
    return RoundSecret(hashlib.sha256(bytes([number])).digest())


def placement(blocks: int = 3) -> UnitPlacement:
    return UnitPlacement(secret(), blocks)


def inclusion(probability: float) -> np.ndarray:
    """Return who took part: half of the units in one block, half in another."""
    included = np.zeros((ROUNDS, len(UNITS)), bool)
    coins, half = SlotCoins(RoundSecret(os.urandom(32))), len(UNITS) // 2
    for number in range(ROUNDS):
        for block in (0, 1):
            chosen = coins.draw(half, probability, nonce=f"run/{number}", block=block)
            included[number, block * half + chosen] = True
    return included


@pytest.fixture(scope="module")
def sampled() -> tuple[float, np.ndarray]:
    return 0.15, inclusion(0.15)


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


def test_positions_ascend_without_repeats_within_the_slots() -> None:
    coins, slots = SlotCoins(secret()), 20_000
    for probability in (1e-4, 0.01, 0.3, 0.999):
        positions = coins.draw(slots, probability, nonce="a", block=0)
        assert positions.dtype == np.int64
        assert (np.diff(positions) > 0).all()
        assert ((positions >= 0) & (positions < slots)).all()
        assert both_tails(len(positions), stats.binom(slots, probability)) > ALPHA
    np.testing.assert_array_equal(coins.draw(slots, 1.0, nonce="a", block=0), np.arange(slots))
    assert len(coins.draw(0, 0.5, nonce="a", block=0)) == 0
    for wrong in (0.0, -0.1, 1.1, math.nan):
        with pytest.raises(ConfigError, match="sampling_probability"):
            coins.draw(slots, wrong, nonce="a", block=0)


def test_the_same_nonce_gives_the_same_coins_and_another_gives_others() -> None:
    """A worker that is asked again answers the same; another draw of noise gets other coins."""

    def drawn(number: int = 0, nonce: str = "run/7", block: int = 2) -> tuple[int, ...]:
        return tuple(SlotCoins(secret(number)).draw(500, 0.3, nonce=nonce, block=block))

    assert drawn() == drawn()
    others = {drawn(1), drawn(nonce="run/8"), drawn(block=3), drawn(nonce="run/72", block=0)}
    assert len(others - {drawn()}) == 4


def test_a_coin_of_next_to_no_probability_does_not_fall() -> None:
    """Coins of 16 bits would let 16 of a million slots in."""
    drawn = SlotCoins(secret()).draw(2**20, 1e-13, nonce="a", block=0)
    assert len(drawn) == 0


@pytest.mark.parametrize("make", [lambda: secret(), lambda: SlotCoins(secret()), placement])
def test_secrets_never_leave_their_process(make: Callable[[], Any]) -> None:
    held = make()
    for dump in (pickle.dumps, copy.deepcopy):
        with pytest.raises(UnsafeError, match="never leaves its process"):
            dump(held)
    use = {
        RoundSecret: lambda: held.key("x"),
        SlotCoins: lambda: held.draw(5, 0.5, nonce="a", block=0),
        UnitPlacement: lambda: held.block_of(UNITS),
    }[type(held)]
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a lock or thread that the fork left behind would wait for ever
        try:
            with pytest.raises(UnsafeError, match="forked"):
                use()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(ValueError, match="32 bytes"):
        RoundSecret(b"short")


def test_blocks_and_places_are_uniform_and_follow_from_the_secret() -> None:
    units = np.arange(30_000, dtype=np.uint64)
    blocks = placement(6).block_of(units)
    np.testing.assert_array_equal(placement(6).block_of(units[::-1])[::-1], blocks)
    assert stats.chisquare(np.bincount(blocks, minlength=6)).pvalue > ALPHA
    other = UnitPlacement(secret(1), 6).block_of(units)
    assert stats.chi2_contingency(np.histogram2d(blocks, other, 6)[0]).pvalue > ALPHA
    slots = placement(6).slots(units[:10], block=0, least=0)
    assert sorted(slots) == list(range(10))
    turned = placement(6).slots(units[:10][::-1], block=0, least=0)
    np.testing.assert_array_equal(9 - turned, slots)


def test_units_fill_slots_by_a_random_injection() -> None:
    """Every arrangement of two units in four slots comes equally often: see `UnitPlacement`."""
    units, seen = np.array([5, 9], np.uint64), Counter[tuple[int, ...]]()
    for number in range(3000):
        place = UnitPlacement(RoundSecret(number.to_bytes(32)), 1)
        slots = place.slots(units, block=0, least=4)
        assert sorted(slots) == [EMPTY, EMPTY, 0, 1]
        seen[tuple(slots)] += 1
    assert len(seen) == 12
    assert stats.chisquare(list(seen.values())).pvalue > ALPHA


def test_blocks_have_room_for_their_units() -> None:
    units, blocks = 20_000, 16
    room = slots_of_a_block(units, blocks)
    sizes = np.bincount(placement(blocks).block_of(np.arange(units, dtype=np.uint64)))
    assert sizes.max() < room < 1.5 * units / blocks
    assert stats.binom.logsf(room, units, 1 / blocks) < -64 * math.log(2)
    assert slots_of_a_block(10, 1) == 10


@pytest.mark.parametrize("count", [1, 2, 5])
def test_unit_randomness_does_not_depend_on_sharding(count) -> None:
    units = np.random.default_rng(2).integers(0, 2**63, 500).astype(np.uint64)
    kept = units.copy()
    randomness, same = UnitRandomness(secret(3)), UnitRandomness(secret(3))
    for draw, again in ((randomness.uniforms, same.uniforms), (randomness.normals, same.normals)):
        whole = draw(units, "9", count, 2)
        assert whole.shape == (500, count)
        parts = [again(part, "9", count, 2) for part in np.array_split(units, 7)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(units, kept)


def test_unit_randomness_has_its_law_and_independent_streams() -> None:
    units = np.arange(2000, dtype=np.uint64)
    randomness = UnitRandomness(secret(3))
    uniforms = randomness.uniforms(units, "0", 10)
    normals = randomness.normals(units, "0", 10)
    assert ((uniforms >= 0) & (uniforms < 1)).all()
    assert stats.kstest(uniforms.ravel(), "uniform").pvalue > ALPHA
    assert stats.kstest(normals.ravel(), "norm").pvalue > ALPHA
    assert both_tails(float((normals**2).sum()), stats.chi2(normals.size)) > ALPHA
    for other in (
        randomness.normals(units, "1", 10),
        randomness.normals(units, "0", 10, 1),
        UnitRandomness(secret(4)).normals(units, "0", 10),
        np.roll(normals, 1, 0),
        np.roll(normals, 1, 1),
        uniforms,
    ):
        assert stats.pearsonr(normals.ravel(), other.ravel()).pvalue > ALPHA
        assert not np.array_equal(normals, other)
    empty = randomness.normals(units[:0], "0", 3)
    assert empty.shape == (0, 3)
