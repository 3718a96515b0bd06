"""What a unit moves, what votes cost, and how many a budget pays for."""

import itertools
import math
import re
from pathlib import Path

import dp_accounting as dp
import numpy as np
import pytest

from distributed_privrl.methods.pate_gan.votes import (
    MAKERS,
    affordable,
    count_sensitivity,
    gaussian_votes,
    laplace_votes,
    least_noise,
)
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from tests.gates.bounds import assert_unit_variance

NULL = Relation.REPLACE_WITH_NULL


def budget(value: float = 1.0, delta: float = 1e-6) -> PrivacyBudget:
    return PrivacyBudget(epsilon=value, delta=delta, unit="patient", relation=NULL)


@pytest.mark.parametrize(
    ("relation", "teachers_that_change"),
    [(NULL, 1), (Relation.ADD_OR_REMOVE, 1), (Relation.REPLACE_ONE, 2)],
)
def test_the_sensitivity_is_the_largest_that_enumeration_finds(
    relation: Relation, teachers_that_change: int
) -> None:
    """All votes of four teachers, and all that as many changed teachers may say instead."""
    of_one, of_both = 0, 0
    for votes in itertools.product((0, 1), repeat=4):
        for changed in itertools.combinations(range(4), teachers_that_change):
            for instead in itertools.product((0, 1), repeat=teachers_that_change):
                other = list(votes)
                for teacher, vote in zip(changed, instead, strict=True):
                    other[teacher] = vote
                moved = abs(sum(other) - sum(votes))
                of_one, of_both = max(of_one, moved), max(of_both, 2 * moved)
    assert count_sensitivity(relation) == of_one
    assert of_both == 2 * of_one, "both counts of the paper move by twice as much together"


def test_few_laplace_votes_cost_the_sum_and_gaussian_ones_one_gaussian() -> None:
    """The published formulas, at three points each."""
    for deviation, counts in ((10.0, 1), (40.0, 2), (300.0, 3)):
        atom = math.sqrt(2) / deviation
        found = epsilon(laplace_votes(deviation, NULL).events(counts), delta=1e-9, relation=NULL)
        assert found == pytest.approx(counts * atom, rel=1e-4)
    for deviation, counts in ((15.0, 40), (100.0, 1000), (400.0, 16_000)):
        event = dp.GaussianDpEvent(math.sqrt((deviation**2 - 9) / counts))  # the lattice's share
        accountant = dp.pld.PLDAccountant().compose(event)
        found = epsilon(gaussian_votes(deviation, NULL).events(counts), delta=1e-6, relation=NULL)
        assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


def test_a_unit_that_may_change_two_teachers_pays_twice() -> None:
    for make in MAKERS.values():
        one = make(40.0, NULL).events(1)
        two = make(80.0, Relation.REPLACE_ONE).events(1)
        costs = [
            epsilon(events, delta=1e-6, relation=relation)
            for events, relation in ((one, NULL), (two, Relation.REPLACE_ONE))
        ]
        assert costs[0] == pytest.approx(costs[1], rel=5e-3)


@pytest.mark.parametrize("name", MAKERS)
def test_as_many_steps_are_paid_for_as_there_can_be(name: str) -> None:
    release, asked = MAKERS[name](30.0, NULL), budget(3.0)
    steps = affordable(release, asked, votes=4, most=10_000)
    costs = [
        epsilon(release.events(4 * count), delta=asked.delta, relation=NULL)
        for count in (steps, steps + 1)
    ]
    assert costs[0] <= asked.epsilon < costs[1]
    assert affordable(release, asked, votes=4, most=steps - 2) == steps - 2
    assert affordable(MAKERS[name](4.0, NULL), budget(0.1), votes=4, most=9) == 0


def test_laplace_pays_for_more_of_few_votes_and_gaussian_of_many() -> None:
    paid = {
        (name, deviation): affordable(make(deviation, NULL), budget(), votes=1, most=10_000)
        for name, make in MAKERS.items()
        for deviation in (6.0, 200.0)
    }
    assert paid["laplace", 6.0] > paid["gaussian", 6.0]
    assert paid["gaussian", 200.0] > 1.5 * paid["laplace", 200.0]


@pytest.mark.parametrize("name", MAKERS)
def test_the_least_noise_leaves_nothing_of_the_budget(name: str) -> None:
    release, asked = least_noise(MAKERS[name], budget(5.0), 60), budget(5.0)
    cost = epsilon(release.events(60), delta=asked.delta, relation=NULL)
    assert 0.995 * asked.epsilon < cost <= asked.epsilon


@pytest.mark.parametrize("name", MAKERS)
def test_each_count_has_noise_of_its_own_of_the_stated_deviation(name: str) -> None:
    """A scale that is too small fails, and so does one that is too large."""
    release = MAKERS[name](25.0, NULL)
    counts = np.full(4000, 7)
    noisy = release.release(counts, SecureNoise(), tag=0)
    noise = (noisy - counts) / release.deviation
    if name == "gaussian":
        assert_unit_variance(noise, what="noise of votes")
    else:  # of exponential law, whose absolute values tell the scale
        mean = np.abs(noisy - counts).mean() / (release.deviation / math.sqrt(2))
        assert abs(mean - 1) < 5.5 / math.sqrt(len(counts))
    assert len(np.unique(noise)) > 50


def test_the_page_says_how_many_votes_there_are() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pate_gan.md").read_text()
    rows = re.findall(r"^\| (\d+)[^|]*\| ([\d,]+) \| ([\d,]+) \|$", page, re.MULTILINE)
    assert [int(teachers) for teachers, *_ in rows] == [15, 100, 400]
    for teachers, *cells in rows:
        for value, cell in zip((1.0, 10.0), cells, strict=True):
            noise = gaussian_votes(float(teachers), NULL)
            paid = affordable(noise, budget(value), votes=1, most=10**6)
            assert f"{paid:,}" == cell
