"""Odds that are raised alike, so that choices are as frequent as they should be."""

import numpy as np
import pytest

from distributed_privrl.marginals.balancing import Odds


def test_odds_are_raised_until_choices_are_as_frequent_as_they_should_be() -> None:
    source, odds = np.random.default_rng(0), Odds({0: np.zeros((2, 2))})
    shares = np.array([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]] * 1000)
    units, usual = np.arange(3000) % 2, {0: np.array([[0.8, 0.2], [0.6, 0.4]])}
    for _ in range(6):
        raised = odds.raised(0, shares)
        drawn = (source.random(3000) > raised[:, 0]).astype(np.int32)
        odds.count(0, units, drawn)
        odds.correct(usual)
    raised = odds.raised(0, shares)
    assert raised.mean(axis=0) == pytest.approx([0.7, 0.3], abs=0.03)
    ratio = raised[:, 0] / raised[:, 1] / (shares[:, 0] / shares[:, 1])
    assert ratio == pytest.approx(ratio[0])


def test_no_bin_is_raised_by_more_than_eight() -> None:
    odds = Odds({0: np.zeros((1, 2))})
    for _ in range(5):
        odds.count(0, np.zeros(100, np.int64), np.zeros(100, np.int32))
        odds.correct({0: np.array([[0.0, 1.0]])})
    assert odds.factors[0].tolist() == [1 / 8, 8.0]
