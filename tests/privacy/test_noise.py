import copy
import math
import multiprocessing.pool
import os
import pickle
import signal
import subprocess
import sys
from typing import Any
from unittest.mock import Mock

import cloudpickle
import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.privacy import integer_noise
from distributed_privrl.privacy.noise import (
    LATTICE_SLACK,
    NoiseSource,
    SecureNoise,
    SeededNoise,
    lattice_granularity,
)
from distributed_privrl.privacy.noise_kernel import BLOCK, normals_from_words

ALPHA = 1e-6
GRANULARITY = 2.0**-30


def both_tails(statistic: float, distribution: Any) -> float:
    return float(2 * min(distribution.cdf(statistic), distribution.sf(statistic)))


def sources() -> list[NoiseSource]:
    return [SecureNoise(), SeededNoise(5), SecureNoise(draw_ahead=640)]


def gaussian(source: NoiseSource, count: int, std: float = 1.0, tag: int = 0) -> np.ndarray:
    return source.add_gaussian(
        np.zeros(count), standard_deviation=std, granularity=GRANULARITY, tag=tag
    )


@pytest.mark.parametrize("source", sources(), ids=["secure", "seeded", "ahead"])
@pytest.mark.parametrize("std", [0.25, 3.0])
def test_standard_deviation_is_as_asked_and_a_fifth_less_or_more_fails(source, std) -> None:
    noise = np.concatenate([gaussian(source, 640, std, tag) for tag in (0, 1)])
    chi_square = stats.chi2(len(noise))
    assert both_tails(float((noise**2).sum()) / std**2, chi_square) > ALPHA
    assert both_tails(float(((noise * 0.8) ** 2).sum()) / std**2, chi_square) < ALPHA
    assert both_tails(float(((noise * 1.25) ** 2).sum()) / std**2, chi_square) < ALPHA


def test_normals_have_the_normal_law_far_into_the_tails() -> None:
    normals = gaussian(SecureNoise(), 4_000_001)  # as rounds draw them
    assert stats.kstest(normals[:500_000], "norm").pvalue > ALPHA
    for sigmas in (1.0, 2.0, 3.0, 4.0, 4.8):
        for side in (normals, -normals):
            expected = stats.binom(len(normals), stats.norm.sf(sigmas))
            assert both_tails(int((side > sigmas).sum()), expected) > ALPHA / 2
    # the two coordinates of a Box-Muller point, and neighbours in a block, do not tell each other
    half = BLOCK // 2
    first, second = normals[:half], normals[half:BLOCK]
    for left, right in ((first, second), (first[1:], first[:-1]), (first**2, second**2)):
        assert stats.pearsonr(left, right).pvalue > ALPHA


def test_extreme_words_give_finite_normals_and_reach_beyond_nine_sigma() -> None:
    radius = np.array([0, 1, 2**63, 2**64 - 2**11, 2**64 - 1] * 4, np.uint64)
    angle = np.repeat(np.array([0, 1, 2, 2**63], np.uint64), 5)
    first, second = np.empty(20), np.empty(20)
    normals_from_words(radius, angle, first, second)
    sizes = np.hypot(first, second)
    exact = np.sqrt(-2 * np.log((radius.astype(float) + 0.5) * 2.0**-64))
    np.testing.assert_allclose(sizes, exact, rtol=1e-14, atol=1e-15)
    assert sizes.max() == pytest.approx(math.sqrt(2 * math.log(2.0**65)))
    # angle word 0 is 0; bit 0 turns the cosine round, bit 1 swaps the coordinates
    assert first[0] == 0 < second[0]
    assert second[5] == -second[0]
    assert (first[10], second[10]) == (second[0], first[0])


def test_normals_agree_with_the_library_functions_of_their_words() -> None:
    words = np.frombuffer(np.random.default_rng(3).bytes(16 * 10_000), np.uint64).reshape(2, -1)
    first, second = np.empty(10_000), np.empty(10_000)
    normals_from_words(words[0].copy(), words[1].copy(), first, second)
    radius = np.sqrt(-2 * np.log((words[0].astype(float) + 0.5) * 2.0**-64))
    angle = (words[1].view(np.int64) >> 2) * (math.pi / 2 * 2.0**-62)
    cosine = np.cos(angle) * np.where(words[1] & 1, -1, 1)
    swap = (words[1] & 2) != 0
    np.testing.assert_allclose(first, radius * np.where(swap, cosine, np.sin(angle)), rtol=1e-14)
    np.testing.assert_allclose(second, radius * np.where(swap, np.sin(angle), cosine), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [0, 1, 2, 7, BLOCK - 1, BLOCK, 2 * BLOCK + 5])
def test_results_lie_on_the_lattice_and_centre_on_the_values(dtype, count) -> None:
    source = SeededNoise(1)
    values = np.random.default_rng(0).normal(size=count).astype(dtype)
    for noisy in (
        source.add_gaussian(values, standard_deviation=1e-3, granularity=2.0**-13),
        source.add_laplace(values, scale=1e-3, granularity=2.0**-13),
    ):
        assert noisy.dtype == np.float64
        np.testing.assert_array_equal(noisy * 2.0**13, np.rint(noisy * 2.0**13))
        assert np.abs(noisy - values).max(initial=0) < 0.05
    # rounding is of the sum and of the noise apart: the noise does not depend on the values
    at_zero = source.add_gaussian(
        np.zeros(count, dtype), standard_deviation=1e-3, granularity=2.0**-13
    )
    noisy = source.add_gaussian(values, standard_deviation=1e-3, granularity=2.0**-13)
    np.testing.assert_array_equal(noisy - at_zero, np.rint(values.astype(float) * 2**13) / 2**13)


def test_a_zero_has_no_sign_that_tells_the_value_below_the_lattice() -> None:
    below = np.full(1000, -0.25)
    for noisy in (
        SeededNoise(0).add_gaussian(below, standard_deviation=0.2, granularity=1.0),
        SeededNoise(0).add_laplace(below, scale=0.2, granularity=1.0),
    ):
        assert (noisy == 0).sum() > 500
        assert not np.signbit(noisy[noisy == 0]).any()


def test_out_may_be_the_values_themselves() -> None:
    values = np.linspace(-1, 1, 100)
    arguments = {"standard_deviation": 1.0, "granularity": GRANULARITY}
    expected = SeededNoise(1).add_gaussian(values, **arguments)
    assert SeededNoise(1).add_gaussian(values, **arguments, out=values) is values
    np.testing.assert_array_equal(values, expected)
    strided = np.linspace(-1, 1, 200)[::2]
    SeededNoise(1).add_gaussian(strided, **arguments)
    for out in (np.empty(99), np.empty(100, np.float32), np.empty(200)[::2]):
        with pytest.raises(ConfigError, match="out must be"):
            SeededNoise(1).add_gaussian(strided, **arguments, out=out)


@pytest.mark.parametrize("dimension", [1, 2, 3, 4, 17, 6_460_000])
@pytest.mark.parametrize("sensitivity", [1e-3, 0.1, 1.0, 2.0, 1234.5])
def test_granularity_is_the_largest_power_of_two_within_the_slack(dimension, sensitivity) -> None:
    granularity = lattice_granularity(sensitivity, dimension)
    assert math.frexp(granularity)[0] == 0.5
    rounding = math.sqrt(dimension) * granularity
    assert rounding <= LATTICE_SLACK * sensitivity < 2 * rounding


def test_rounding_moves_neighbouring_sums_apart_by_no_more_than_the_slack() -> None:
    generator = np.random.default_rng(4)
    granularity = lattice_granularity(1.0, 1000)
    for _ in range(50):
        total, unit = generator.normal(size=(2, 1000)) * 10
        unit /= np.linalg.norm(unit)
        apart = np.rint((total + unit) / granularity) - np.rint(total / granularity)
        assert np.linalg.norm(apart * granularity) <= 1 + LATTICE_SLACK


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"standard_deviation": 0.0}, "standard_deviation"),
        ({"standard_deviation": math.nan}, "standard_deviation"),
        ({"granularity": 0.3}, "power of two"),
        ({"granularity": -1.0}, "granularity"),
        ({"granularity": 2.0**-600}, "power of two"),
        ({"standard_deviation": 2.0**48, "granularity": 1.0}, "2\\*\\*47"),
        ({"values": np.zeros((2, 2))}, "values"),
        ({"values": np.zeros(2, np.int64)}, "values"),
    ],
)
def test_arguments_out_of_range_are_refused_by_name(changed, message) -> None:
    arguments = {"values": np.zeros(2), "standard_deviation": 1.0, "granularity": 1.0} | changed
    with pytest.raises(ConfigError, match=message):
        SecureNoise().add_gaussian(arguments.pop("values"), **arguments)


@pytest.mark.parametrize("sensitivity", [0.0, math.inf, 1e-300, 1e300])
def test_granularity_refuses_what_has_no_lattice(sensitivity) -> None:
    with pytest.raises(ConfigError):
        lattice_granularity(sensitivity, 2)


def test_secure_noise_never_repeats() -> None:
    vectors = [gaussian(SecureNoise(), 300) for _ in range(2)]
    source, ahead = SecureNoise(), SecureNoise(draw_ahead=300)
    vectors += [gaussian(each, 300, tag=7) for _ in range(5) for each in (source, ahead)]
    vectors.append(gaussian(ahead, 301)[:300])  # another dimension: drawn when asked
    for left in range(len(vectors)):
        for right in range(left):
            assert len(np.intersect1d(vectors[left], vectors[right])) <= 1
    assert (source.draws, ahead.draws) == (5, 6)
    calls = np.stack([gaussian(source, 5000) for _ in range(2)])
    assert stats.pearsonr(*calls).pvalue > ALPHA


@pytest.mark.parametrize("interrupted", ["add_on_lattice", "DrawnAhead._prepare"])
def test_a_vector_drawn_ahead_is_used_once_even_when_interrupted(monkeypatch, interrupted) -> None:
    source = SecureNoise(draw_ahead=BLOCK + 1)
    ahead = source._ahead
    assert ahead is not None
    ahead._ready.result()
    prepared = ahead._normals.copy()
    target = f"distributed_privrl.privacy.noise_kernel.{interrupted}"
    monkeypatch.setattr(target, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        gaussian(source, BLOCK + 1)
    monkeypatch.undo()
    noise = gaussian(source, BLOCK + 1)
    assert stats.kstest(noise, "norm").pvalue > ALPHA
    assert len(np.intersect1d(noise, np.rint(prepared / GRANULARITY) * GRANULARITY)) <= 2
    source.close()
    assert not ahead._normals.any()


def test_a_vector_drawn_ahead_is_wiped_before_the_next(monkeypatch) -> None:
    source = SecureNoise(draw_ahead=100)
    prepare, left = source._ahead._prepare, []
    monkeypatch.setattr(
        source._ahead, "_prepare", lambda: left.append(source._ahead._normals.any()) or prepare()
    )
    gaussian(source, 100)
    assert left == [False]


def test_seeded_noise_depends_on_seed_and_tag_alone() -> None:
    first = gaussian(SeededNoise(1), 100, tag=3)
    used = SeededNoise(1)
    gaussian(used, 100, tag=2)
    np.testing.assert_array_equal(gaussian(used, 100, tag=3), first)
    assert used.draws == 2
    for other in (gaussian(used, 100, tag=4), gaussian(SeededNoise(2), 100, tag=3)):
        assert len(np.intersect1d(other, first)) == 0
    assert pickle.loads(pickle.dumps(used)).draws == 3
    integers = np.zeros(50, np.int64)
    np.testing.assert_array_equal(
        used.add_discrete_laplace(integers, scale=9.0, tag=1),
        SeededNoise(1).add_discrete_laplace(integers, scale=9.0, tag=1),
    )
    np.testing.assert_array_equal(
        used.add_discrete_gaussian(integers, standard_deviation=9.0, tag=1),
        SeededNoise(1).add_discrete_gaussian(integers, standard_deviation=9.0, tag=1),
    )


def test_only_secure_noise_is_certifiable_and_says_what_it_assumes() -> None:
    assert (SecureNoise.certifiable, SeededNoise.certifiable) == (True, False)
    assert (SecureNoise.name, SeededNoise.name) == ("float64_lattice", "insecure_seeded")
    assert SecureNoise.assumptions == ("float64_lattice_noise",)


@pytest.mark.parametrize("dump", [pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy])
def test_secure_noise_is_neither_pickled_nor_copied(dump) -> None:
    with pytest.raises(UnsafeError, match="never leaves its process"):
        dump(SecureNoise())


def test_a_forked_or_closed_source_refuses() -> None:
    source = SecureNoise(draw_ahead=10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a lock or thread that the fork left behind would wait for ever
        try:
            for draw in (
                lambda: gaussian(source, 10),
                lambda: gaussian(source, 3),
                lambda: source.add_laplace(np.zeros(2), scale=1.0, granularity=1.0),
                lambda: source.add_discrete_laplace(np.zeros(2, np.int64), scale=1.0),
                lambda: source.add_discrete_gaussian(np.zeros(2, np.int64), standard_deviation=1.0),
            ):
                with pytest.raises(UnsafeError, match="forked"):
                    draw()
            assert gaussian(SecureNoise(), 3).any()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert gaussian(source, 10).any()
    source.close()
    source.close()
    with pytest.raises(UnsafeError, match="closed"):
        gaussian(source, 10)


_DRAW = """
import numpy as np
from distributed_privrl.privacy.noise import SecureNoise
print(SecureNoise().add_gaussian(np.zeros(20), standard_deviation=1, granularity=2.0**-30).tolist())
"""


def test_two_processes_draw_different_noise() -> None:
    outputs = [subprocess.check_output([sys.executable, "-c", _DRAW]) for _ in range(2)]
    assert len(set(outputs)) == 2


def test_threads_share_a_source_without_repeating_noise() -> None:
    source = SecureNoise()
    with multiprocessing.pool.ThreadPool(4) as pool:
        vectors = pool.map(lambda _: gaussian(source, 20_000), range(8))
    values = np.concatenate(vectors)
    assert len(np.unique(values)) > len(values) - 50


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(2)], ids=["secure", "seeded"])
def test_laplace_has_its_law(source) -> None:
    noise = source.add_laplace(np.full(20_000, 3.0), scale=2.0, granularity=2.0**-20) - 3.0
    assert stats.kstest(noise, stats.laplace(scale=2.0).cdf).pvalue > ALPHA
    sizes = float(np.abs(noise).sum()) / 2.0
    law = stats.gamma(20_000)
    assert both_tails(sizes, law) > ALPHA
    assert both_tails(sizes * 0.9, law) < ALPHA
    assert both_tails(sizes * 1.1, law) < ALPHA


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(2)], ids=["secure", "seeded"])
@pytest.mark.parametrize("scale", [0.4, 3.0])
def test_discrete_laplace_has_its_probabilities(source, scale) -> None:
    draws, largest = 20_000, 8
    noise = source.add_discrete_laplace(np.full(draws, 10), scale=scale) - 10
    decay = math.exp(-1 / scale)
    size = np.arange(-largest, largest + 1)
    assert_frequencies(noise, size, (1 - decay) / (1 + decay) * decay ** np.abs(size))


def assert_frequencies(noise: np.ndarray, size: np.ndarray, probability: np.ndarray) -> None:
    """Integers are drawn as often as they must be, and a tenth more of some would show."""
    observed = np.array([(noise == k).sum() for k in size])
    observed = np.append(observed, len(noise) - observed.sum())
    expected = np.append(probability, 1 - probability.sum()) * len(noise)
    common = expected > 5
    statistic = float(((observed - expected)[common] ** 2 / expected[common]).sum())
    assert both_tails(statistic, stats.chi2(common.sum() - 1)) > ALPHA
    wrong = np.append(observed[:-1][::-1] * 1.1, observed[-1])
    statistic = float(((wrong - expected)[common] ** 2 / expected[common]).sum())
    assert stats.chi2(common.sum() - 1).sf(statistic) < ALPHA


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(2)], ids=["secure", "seeded"])
@pytest.mark.parametrize("deviation", [0.7, 1.0, 3.0])
def test_discrete_gaussians_have_their_probabilities(source, deviation) -> None:
    noise = source.add_discrete_gaussian(np.full(25_000, 10), standard_deviation=deviation) - 10
    every = np.exp(-(np.arange(-60, 61) ** 2) / (2 * deviation**2)).sum()
    size = np.arange(-8, 9)
    assert_frequencies(noise, size, np.exp(-(size**2) / (2 * deviation**2)) / every)


@pytest.mark.parametrize("source", [SecureNoise(), SeededNoise(2)], ids=["secure", "seeded"])
@pytest.mark.parametrize("deviation", [2.0**20, 1e6 + 0.1, 2.0**40])
def test_wide_discrete_gaussians_are_gaussian_and_a_fifth_less_or_more_fails(
    source, deviation
) -> None:
    noise = source.add_discrete_gaussian(np.zeros(2_000, np.int64), standard_deviation=deviation)
    law, squares = stats.chi2(2_000), float(((noise / deviation) ** 2).sum())
    assert both_tails(squares, law) > ALPHA
    assert both_tails(squares * 0.64, law) < ALPHA
    assert both_tails(squares * 1.5625, law) < ALPHA
    assert stats.kstest(noise / deviation, "norm").pvalue > ALPHA


def test_integer_noise_stops_at_the_ends_of_the_integers() -> None:
    ends = np.array([np.iinfo(np.int64).max, np.iinfo(np.int64).min])
    noisy = SecureNoise().add_discrete_laplace(np.repeat(ends, 20), scale=5.0)
    assert (noisy[:20] > 0).all()
    assert (noisy[20:] < 0).all()
    noisy = SecureNoise().add_discrete_gaussian(np.repeat(ends, 20), standard_deviation=5.0)
    assert (noisy[:20] > 0).all()
    assert (noisy[20:] < 0).all()
    with pytest.raises(ConfigError, match="scale"):
        SecureNoise().add_discrete_laplace(ends, scale=-1.0)
    with pytest.raises(ConfigError, match="standard_deviation"):
        SecureNoise().add_discrete_gaussian(ends, standard_deviation=0.0)
    with pytest.raises(ConfigError, match="int64"):
        SecureNoise().add_discrete_gaussian(np.zeros(3), standard_deviation=1.0)  # type: ignore[arg-type]


def test_long_vectors_are_drawn_in_parts_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part at its place, with noise of its own."""
    monkeypatch.setattr(integer_noise, "_PART", 100)
    values = np.arange(0, 1_000_000_000, 1_000_000)
    noisy = SecureNoise().add_discrete_gaussian(values, standard_deviation=1000.0)
    noise = noisy - values
    assert np.abs(noise).max() < 10_000
    parts = noise.reshape(10, 100)
    assert (np.abs(np.corrcoef(parts)[np.triu_indices(10, 1)]) < 0.6).all()
    assert noisy.dtype == np.int64
