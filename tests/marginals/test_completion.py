"""Counts of the rows that something follows, as counts of all rows."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals.bins import Bins
from distributed_privrl.marginals.completion import Completion
from distributed_privrl.marginals.loss import Measured
from tests.marginals.fields import model_of
from tests.marginals.rows import few_columns

COLUMNS = replace(few_columns(ends=3), ends_unseen=True)
STATE, ACTION, REWARD, AFTER, END = range(5)
TOTAL, FOLLOWED = 1000.0, 575.0
CASES = np.array([250.0, 250.0, 250.0, 250.0])
GOES_ON = np.array([0.9, 0.8, 0.5, 0.1])
LEADS_TO = np.array([[0.2, 0.8, 0, 0], [0, 0.2, 0.8, 0], [0, 0, 0.2, 0.8], [0.8, 0, 0, 0.2]])
EXACT = 1e-6


def completion() -> Completion:
    shapes = model_of(COLUMNS).shapes
    bins = Bins(COLUMNS, shapes, TOTAL, followed=FOLLOWED)
    masses = [TOTAL * np.ones(one.size) / one.size for one in shapes]
    return Completion(bins, masses)


def measured(clique: tuple[int, ...], counts: NDArray[np.float64]) -> Measured:
    return Measured(clique, counts, EXACT)


def counted() -> NDArray[np.float64]:
    """Return the counts of states and what they lead to, in the rows that go on."""
    return (CASES * GOES_ON)[:, None] * LEADS_TO


def test_each_case_has_as_much_more_as_there_are_more_rows_of_it() -> None:
    (found,) = completion().of_all([measured((STATE, AFTER), counted())])
    np.testing.assert_allclose(found.counts, CASES[:, None] * LEADS_TO, rtol=1e-4, atol=1e-3)
    deviations = np.broadcast_to(found.deviations, found.counts.shape)
    np.testing.assert_allclose(deviations[:, 0], EXACT / GOES_ON, rtol=1e-4)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_all_counts_are_of_the_same_rows_whatever_their_order(order: tuple[int, int]) -> None:
    """By itself the count with the action would have a next state as who goes on has it."""
    pair = counted()
    acted = np.outer([0.3, 0.7], pair.sum(axis=0))
    both = [measured((STATE, AFTER), pair), measured((ACTION, AFTER), acted)]
    found = completion().of_all([both[i] for i in order])
    sums = [one.counts.sum(axis=0) for one in found]
    np.testing.assert_allclose(sums[0], sums[1], rtol=1e-3)
    np.testing.assert_allclose(sums[0], CASES @ LEADS_TO, rtol=1e-3)
    with_action = found[order.index(1)].counts
    np.testing.assert_allclose(with_action.sum(axis=1), TOTAL / 2, rtol=1e-3)


def test_a_case_that_never_goes_on_has_what_follows_any() -> None:
    pair = counted()
    pair[3] = 0.0
    (found,) = completion().of_all([measured((STATE, AFTER), pair)])
    usual = pair.sum(axis=0) / pair.sum()
    np.testing.assert_allclose(found.counts[3], CASES[3] * usual, rtol=1e-6)
    assert np.broadcast_to(found.deviations, pair.shape)[3].min() > 1e3 * EXACT


def test_other_counts_are_as_they_were() -> None:
    one = measured((STATE, ACTION), np.ones((4, 2)))
    assert completion().of_all([one]) == [one]


def test_what_is_told_of_a_step_has_columns_as_frequent_as_counts_say() -> None:
    """Nobody comes to a state that many begin in: the association stays, the state goes."""
    made = completion()
    pair = counted()
    pair[:, 0] = 0.0
    made.of_all([measured((STATE, AFTER), pair)])
    told = measured((ACTION, AFTER), np.array([[400.0, 50, 50, 50], [100, 150, 100, 100]]))
    found = made.fitted(told).counts
    assert found[:, 0].sum() < 1.0
    ratio = (found[0, 1] / found[1, 1]) / (found[0, 2] / found[1, 2])
    assert ratio == pytest.approx((50 / 150) / (50 / 100), rel=1e-3)
    other = measured((STATE, ACTION), np.ones((4, 2)))
    assert made.fitted(other) is other
