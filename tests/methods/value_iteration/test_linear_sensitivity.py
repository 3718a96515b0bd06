"""Each sensitivity against the worst neighbouring pair of a tiny problem, found by enumeration."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
from scipy import stats

from benchmarks.linear_figure import noise_multiplier_of_rho
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear_sensitivity import (
    gram_sensitivity,
    vector_sensitivity,
    vector_to_symmetric,
)
from distributed_privrl.methods.value_iteration.linear_settings import (
    VARIANCE_STATISTICS,
    LinearSettings,
    Statistic,
    releases,
)
from distributed_privrl.methods.value_iteration.statistics import StatisticsSpec, StatisticsWorker
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import Relation
from tests.methods.value_iteration.linear_data import (
    Given,
    trajectories_of,
    value_sums,
    variance_sums,
)
from tests.worlds.matrices import symmetric_to_vector

HORIZON = 2
TABLE = np.array([[[1.0, 0.0], [-1.0, 0.0]], [[0.0, 1.0], [0.0, -1.0]]])
FEATURES = FeatureMap(table=TABLE)
RELATIONS = [Relation.REPLACE_ONE, Relation.ADD_OR_REMOVE, Relation.REPLACE_WITH_NULL]
STEPS = list(itertools.product(range(2), range(2), (0.0, 1.0)))


def contributions(cap: int) -> Iterator[list]:
    """Everything that one unit may contribute: up to ``cap`` trajectories of up to two steps."""
    one = [([], 0)]
    one += [([step], last) for step in STEPS for last in range(2)]
    firsts = STEPS if cap == 1 else STEPS[:1]
    one += [([first, second], 1) for first in firsts for second in STEPS]
    for count in range(cap + 1):
        for choice in itertools.combinations_with_replacement(one, count):
            yield [(5, steps, last) for steps, last in choice]


def sums(episodes: list, cap: int, index: int, centred: bool) -> dict[Statistic, np.ndarray]:
    bystander = (6, [(0, 0, 0.5), (1, 1, 0.25)], 0)
    spec = StatisticsSpec(
        source=Given(trajectories_of([*episodes, bystander])),
        features=FEATURES,
        horizon=HORIZON,
        split=False,
        max_trajectories_per_unit=cap,
    )
    worker = StatisticsWorker(spec)
    time = 0 if index else 1
    given = worker, FEATURES, time
    ahead = np.array([0.0, index]) - (index / 2 if centred else 0.0)
    variances = np.array([[1.0, 4.0], [1.0, 1.0]])
    reward_shift = 0.5 if centred else 0.0
    gram, squares, values = variance_sums(*given, ahead, None)
    weighted, targets = value_sums(*given, ahead - reward_shift, None, variances=variances)
    plain = value_sums(*given, ahead - reward_shift, None)
    return {
        Statistic.VARIANCE_GRAM: symmetric_to_vector(gram),
        Statistic.SQUARES: squares[0],
        Statistic.VALUES: values[0],
        Statistic.GRAM: symmetric_to_vector(weighted),
        Statistic.TARGETS: np.concatenate([targets[0], plain.targets[0]]),
    }


def worst(cap: int, relation: Relation, index: int, centred: bool) -> dict[Statistic, float]:
    """The largest distance between the sums of neighbours; targets: weighted or not."""
    found = [sums(episodes, cap, index, centred) for episodes in contributions(cap)]
    largest = {}
    for statistic in Statistic:
        vectors = np.unique(np.stack([sums[statistic] for sums in found]), axis=0)
        others = vectors
        if relation is not Relation.REPLACE_ONE:
            others = sums([], cap, index, centred)[statistic][None]
        differences = vectors[:, None] - others[None]
        if statistic is Statistic.TARGETS:
            differences = differences.reshape(*differences.shape[:2], 2, 2)
        largest[statistic] = float(np.linalg.norm(differences, axis=-1).max())
    return largest


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(
    ("cap", "centred", "index", "share"),
    [
        (1, False, 0, 2),
        (1, False, 1, 5),
        (2, False, 0, 2),
        (2, False, 1, 5),
        (1, True, 0, 2),
        (1, True, 1, 2),
        (1, True, 3, 5),
    ],
)
def test_noise_is_that_of_the_worst_neighbouring_pair(
    relation: Relation, cap: int, centred: bool, index: int, share: int
) -> None:
    rho = 0.7
    horizon = 4 if centred else HORIZON
    settings = LinearSettings(
        features=FEATURES,
        horizon=horizon,
        units=2,
        relation=relation,
        max_trajectories_per_unit=cap,
        split=False,
        centre_values=centred,
        noise_multiplier=noise_multiplier_of_rho(rho, horizon),
    )
    found = worst(cap, relation, index, centred)
    listed = releases(settings, index)
    assert len(listed) == share
    rho_of_one = rho / (share * horizon)
    for statistic, release in listed.items():
        variance = (release.sensitivity * release.noise_multiplier) ** 2
        assert variance == pytest.approx(found[statistic] ** 2 / (2 * rho_of_one), rel=3e-5 * cap)
    if index == 0 and not centred:  # the values ahead are 0: nothing to release
        assert found[Statistic.SQUARES] == found[Statistic.VALUES] == 0


@pytest.mark.parametrize(("split", "families"), [(False, (5, 5)), (True, (3, 2))])
def test_as_published_each_step_has_the_papers_noise_with_what_holds_corrected(
    split: bool, families: tuple[int, int]
) -> None:
    """Lines 1 and 2 of algorithm 2; rho_0 = rho / (5 H), or / (3 H) and / (2 H) in halves."""
    horizon, rho = 20, 3.0
    settings = LinearSettings(
        features=FEATURES,
        horizon=horizon,
        units=2,
        split=split,
        uniform_bounds=True,
        noise_multiplier=noise_multiplier_of_rho(rho, horizon),
    )
    for index in range(horizon):
        listed = releases(settings, index)
        assert set(listed) == set(Statistic)
        for statistic, release in listed.items():
            rho_0 = rho / (families[statistic not in VARIANCE_STATISTICS] * horizon)
            variance = (release.sensitivity * release.noise_multiplier) ** 2
            printed = {
                Statistic.SQUARES: 2 * horizon**4 / rho_0,  # printed: 2 H^2
                Statistic.VALUES: 2 * horizon**2 / rho_0,
                Statistic.TARGETS: 2 * horizon**2 / rho_0,
                # (Z + Z^T) / sqrt 2 with Var Z = 1 / (2 rho_0), printed: 1 / (4 rho_0)
                Statistic.GRAM: 1 / rho_0,
                Statistic.VARIANCE_GRAM: 1 / rho_0,
            }
            assert variance == pytest.approx(printed[statistic])


def test_bounds_are_those_of_each_time_step_where_they_may_be() -> None:
    settings = LinearSettings(
        features=FEATURES, horizon=20, units=2, split=False, noise_multiplier=2.0
    )
    tight = releases(settings, 5)  # H - h and H - h + 1, here h = H - 5
    assert tight[Statistic.SQUARES].sensitivity == 2 * 25
    assert tight[Statistic.VALUES].sensitivity == 2 * 5
    assert tight[Statistic.TARGETS].sensitivity == 2 * 6


@pytest.mark.parametrize(("blocks", "width"), [(1, 1), (1, 4), (3, 2)])
def test_the_vector_of_a_matrix_keeps_its_norm_and_comes_back(blocks: int, width: int) -> None:
    matrices = np.random.default_rng(0).normal(size=(blocks, width, width))
    matrices += matrices.transpose(0, 2, 1)
    vector = symmetric_to_vector(matrices)
    assert vector.shape == (blocks * width * (width + 1) // 2,)
    assert np.linalg.norm(vector) == pytest.approx(np.linalg.norm(matrices))
    np.testing.assert_allclose(vector_to_symmetric(vector, blocks), matrices)


def test_matrix_noise_is_half_as_varied_beside_the_diagonal() -> None:
    settings = LinearSettings(
        features=FeatureMap(table=np.eye(20)[:, None]),
        horizon=1,
        units=2,
        noise_multiplier=noise_multiplier_of_rho(0.5, 1),
    )
    release = releases(settings, 0)[Statistic.GRAM]
    nothing = np.zeros(210, np.int64)
    draws = [release.release(nothing, SeededNoise(0), tag=tag) for tag in range(200)]
    matrices = vector_to_symmetric(np.concatenate(draws), 200)
    np.testing.assert_array_equal(matrices, matrices.transpose(0, 2, 1))
    rho_of_one = 0.5 / 2
    on = matrices[:, range(20), range(20)]
    beside = matrices[:, *np.triu_indices(20, 1)]
    for noise, variance in ((on, 1 / rho_of_one), (beside, 1 / (2 * rho_of_one))):
        chi_square = stats.chi2(noise.size)
        for scale, fits in ((1, True), (0.9, False), (1.1, False)):
            statistic = float((noise**2).sum()) / variance * scale**2
            tail = 2 * min(chi_square.cdf(statistic), chi_square.sf(statistic))
            assert bool(tail > 1e-6) is fits


def test_relations_without_trajectories_and_senseless_numbers_are_refused() -> None:
    with pytest.raises(ConfigError, match="relation must be"):
        gram_sensitivity(Relation.POLICY_LEVEL)
    with pytest.raises(ConfigError, match="relation must be"):
        vector_sensitivity(Relation.POLICY_LEVEL, bound=1.0)
    with pytest.raises(ConfigError, match="bound must be"):
        vector_sensitivity(Relation.REPLACE_ONE, bound=0.0)
    with pytest.raises(ConfigError, match="max_trajectories_per_unit must be"):
        gram_sensitivity(Relation.REPLACE_ONE, max_trajectories_per_unit=0)
    assert gram_sensitivity(Relation.REPLACE_ONE) == math.sqrt(2)
