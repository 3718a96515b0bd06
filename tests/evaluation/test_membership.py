from itertools import combinations
from math import comb

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.membership import (
    attack_figures,
    by_group,
    exact_interval,
)
from distributed_privrl.evaluation.roc import roc_curve


def test_points_of_a_curve_by_hand() -> None:
    # By falling score: member, non-member, both (a tie), member, non-member.
    roc = roc_curve(np.array([9.0, 5.0, 3.0]), np.array([7.0, 5.0, 1.0]))
    np.testing.assert_allclose(roc.false_positive_rates, [0, 0, 1 / 3, 2 / 3, 2 / 3, 1])
    np.testing.assert_allclose(roc.true_positive_rates, [0, 1 / 3, 1 / 3, 2 / 3, 1, 1])
    # Pairs won: 9 beats all three, 5 beats one and ties one, 3 beats one.
    assert roc.area == pytest.approx((3 + 1.5 + 1) / 9)
    assert roc.true_positive_rate(0.0) == pytest.approx(1 / 3)
    assert roc.true_positive_rate(0.66) == pytest.approx(1 / 3)  # no point between is reached
    assert roc.true_positive_rate(2 / 3) == 1


def test_members_are_the_positives() -> None:
    high, low = np.array([2.0, 3.0]), np.array([0.0, 1.0])
    assert roc_curve(high, low).area == 1
    assert roc_curve(high, low).true_positive_rate(0.01) == 1
    assert roc_curve(low, high).area == 0
    assert roc_curve(low, high).true_positive_rate(0.01) == 0


def test_equal_scores_say_nothing() -> None:
    roc = roc_curve(np.zeros(4), np.zeros(7))
    assert roc.area == 0.5
    assert roc.true_positive_rate(0.1) == 0


@pytest.mark.parametrize("bad", [np.empty(0), np.array([np.nan]), np.zeros((2, 2))])
def test_wrong_scores_are_named(bad: np.ndarray) -> None:
    with pytest.raises(ConfigError, match=r"^members"):
        roc_curve(bad, np.zeros(2))
    with pytest.raises(ConfigError, match=r"^non_members"):
        roc_curve(np.zeros(2), bad)


def test_clopper_pearson_by_hand() -> None:
    # k = 0: 1 - (alpha/2)^(1/n); k = n: (alpha/2)^(1/n).
    assert exact_interval(0, 20, 0.95) == pytest.approx((0, 1 - 0.025**0.05))
    assert exact_interval(20, 20, 0.95) == pytest.approx((0.025**0.05, 1))
    assert exact_interval(5, 10, 0.95) == pytest.approx((0.1871, 0.8129), abs=1e-4)


def test_a_group_counts_once_with_its_mean() -> None:
    losses = np.array([[1.0, 10.0], [3.0, 30.0], [8.0, 80.0]])
    means, names = by_group(losses, np.array([5, 5, 2], dtype=np.uint64))
    np.testing.assert_allclose(means, [[8, 80], [2, 20]])
    assert names.tolist() == [2, 5]


def test_figures_of_shifted_scores() -> None:
    source = np.random.default_rng(0)
    members, others = source.normal(size=(2, 1500))
    found = attack_figures(members + 1, others, generator=source)
    # N(1, 1) against N(0, 1): area Phi(1 / sqrt 2) = .760, rate Phi(1 - 1.2816) = .389 at .1.
    assert found.area.low < 0.760 < found.area.high
    assert found.area.high - found.area.low < 0.06
    assert found.true_positive_rates[0.1].low < 0.389 < found.true_positive_rates[0.1].high
    assert found.true_positive_rates[0.01].low < 0.092 < found.true_positive_rates[0.01].high
    assert all(rate.high - rate.low < 0.15 for rate in found.true_positive_rates.values())
    assert (found.true_positive_rates[0.1].chance, found.area.chance) == (0.1, 0.5)
    assert found.fires()
    assert (found.members, found.non_members) == (1500, 1500)
    assert (found.member_groups, found.non_member_groups) == (1500, 1500)
    assert found.p_value == 1 / 2000  # 1,999 permutations, of which none is as large
    assert not attack_figures(members, others, generator=source).fires()


def test_intervals_of_the_area_cover_and_are_not_too_wide() -> None:
    source, covered = np.random.default_rng(1), 0
    for _ in range(100):
        scores = source.normal(size=(2, 60))
        area = attack_figures(*scores, generator=source, confidence=0.8, resamples=200).area
        covered += area.low <= 0.5 <= area.high
    assert 58 <= covered <= 96  # 80 of 100: binomial, alpha 1e-6 on either side


def test_rows_of_a_group_widen_the_interval() -> None:
    source = np.random.default_rng(2)
    shifts = source.normal(size=(2, 10))
    scores = np.repeat(shifts, 50, axis=1) + 0.1 * source.normal(size=(2, 500))
    groups = np.repeat(np.arange(10), 50)
    alone = attack_figures(*scores, generator=source).area
    together = attack_figures(
        *scores, generator=source, member_groups=groups, non_member_groups=groups
    ).area
    assert together.value == alone.value
    assert together.high - together.low > 4 * (alone.high - alone.low)
    with pytest.raises(ConfigError, match="like the scores"):
        attack_figures(*scores, generator=source, member_groups=groups[:3])


def test_the_p_value_is_the_share_of_namings_with_as_large_an_area() -> None:
    """Groups of unequal size, and a tie: every naming of two of four groups is tried here."""
    parts = [np.array(one) for one in ([5.0, 4.0, 2.0], [2.0], [3.0, 0.0], [1.0])]

    def area(named: tuple[int, ...]) -> float:
        sides = [[], []]
        for i, part in enumerate(parts):
            sides[i in named].append(part)
        return roc_curve(np.concatenate(sides[True]), np.concatenate(sides[False])).area

    observed = area((0, 1))
    exact = np.mean([area(named) >= observed - 1e-12 for named in combinations(range(4), 2)])
    assert 0 < exact < 1
    found = attack_figures(
        np.concatenate(parts[:2]),
        np.concatenate(parts[2:]),
        generator=np.random.default_rng(0),
        member_groups=np.array([7, 7, 7, 3]),
        non_member_groups=np.array([7, 7, 1]),
        permutations=4000,
    )
    assert found.area.value == pytest.approx(observed)
    assert found.p_value == pytest.approx(exact, abs=5 * 0.5 / 4000**0.5)


@pytest.mark.parametrize(("groups", "convicts"), [(1, False), (2, False), (3, False), (6, True)])
def test_a_few_groups_cannot_convict(groups: int, convicts: bool) -> None:
    """Each member's score is above each non-member's, of as many rows as one likes."""
    scores = np.arange(1000.0)
    numbers = np.arange(1000) * groups // 1000
    found = attack_figures(
        scores + 1000,
        scores,
        generator=np.random.default_rng(0),
        member_groups=numbers,
        non_member_groups=numbers,
        resamples=100,
    )
    assert found.area.low > 0.99
    assert found.p_value > 0.5 / comb(2 * groups, groups)
    assert found.fires() == convicts


def test_an_innocent_model_of_few_groups_is_not_convicted() -> None:
    """Of two groups a side the interval alone lies above guessing about once in six times."""
    source, intervals, fired = np.random.default_rng(3), 0, 0
    numbers = np.repeat(np.arange(2), 20)
    for _ in range(100):
        scores = np.repeat(source.normal(size=(2, 2)), 20, axis=1) + source.normal(size=(2, 40)) / 3
        found = attack_figures(
            *scores,
            generator=source,
            member_groups=numbers,
            non_member_groups=numbers,
            resamples=100,
            permutations=199,
        )
        intervals += found.area.low > 0.5
        fired += found.fires()
    assert intervals > 3
    assert fired == 0


def test_a_rate_needs_a_group_that_could_be_a_false_positive() -> None:
    source = np.random.default_rng(4)
    members, others = source.normal(size=(2, 100))
    rates = attack_figures(members, others, generator=source).true_positive_rates
    assert rates[0.01] is not None
    rates = attack_figures(members, others[:99], generator=source).true_positive_rates
    assert rates[0.01] is None
    assert rates[0.1] is not None
    numbers = np.repeat(np.arange(9), 11)  # many rows, few groups
    rates = attack_figures(
        members, others[:99], generator=source, non_member_groups=numbers
    ).true_positive_rates
    assert rates == {0.01: None, 0.1: None}


def test_rows_of_a_group_are_one_trial() -> None:
    scores, numbers = np.arange(500.0), np.repeat(np.arange(10), 50)
    found = attack_figures(
        scores + 500, scores, generator=np.random.default_rng(0), member_groups=numbers
    )
    rate = found.true_positive_rates[0.1]
    assert rate is not None
    assert (rate.value, rate.low) == (1, pytest.approx(0.005**0.1))


def test_a_rate_of_one_has_an_interval() -> None:
    found = attack_figures(
        np.arange(20.0) + 50, np.arange(20.0), generator=np.random.default_rng(0)
    )
    rate = found.true_positive_rates[0.1]
    assert rate is not None
    assert (rate.value, rate.high) == (1, 1)
    assert rate.low == pytest.approx(0.005**0.05)
