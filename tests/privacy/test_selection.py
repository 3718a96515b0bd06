"""Calibrated choices: the event never states less than the scale that is drawn.

Their odds are enumerated, and drawn, in `tests/gates/selections.py`.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.choosing import LARGEST_SCORE, SeededChooser
from distributed_privrl.privacy.events import BoundedRangeEvent
from distributed_privrl.privacy.selection import ExponentialSelection


class Spy:
    """Takes the best candidate, and keeps what it was asked for."""

    def __init__(self):
        self.asked = []

    def choose_exponential(self, scores, *, scale, tag=0):
        self.asked.append((scores, scale, tag))
        return scores.index(max(scores))


def test_scale_and_event_agree():
    selection, chooser = ExponentialSelection(span=4, epsilon=0.5, count=3), Spy()
    assert selection.choose([1, 9, -4], chooser, tag=7) == 1
    assert chooser.asked == [([1, 9, -4], 8.0, 7)]
    assert selection.event == BoundedRangeEvent(epsilon=0.5, count=3)


@given(
    span=st.integers(1, 2**62),
    epsilon=st.floats(1e-9, 1e6, exclude_min=True),
)
def test_the_event_never_states_less_than_what_is_drawn(span, epsilon):
    selection = ExponentialSelection(span=span, epsilon=epsilon)
    drawn = Fraction(span) / Fraction(selection.scale)
    assert drawn <= Fraction(selection.event.epsilon) == Fraction(epsilon)
    assert drawn >= Fraction(epsilon) * (1 - Fraction(1, 2**51))


def test_scores_that_are_too_large_are_cut():
    selection, chooser = ExponentialSelection(span=2, epsilon=1.0), Spy()
    selection.choose([-(2**70), 3, 2**63], chooser)
    assert chooser.asked[0][0] == [-LARGEST_SCORE, 3, LARGEST_SCORE]


def test_a_larger_epsilon_finds_the_best_oftener():
    scores = [0, 10, 20, 30]
    best = [
        np.mean([selection.choose(scores, SeededChooser(0), tag=tag) == 3 for tag in range(300)])
        for selection in (ExponentialSelection(span=2, epsilon=value) for value in (1e-3, 0.1, 2.0))
    ]
    assert best[0] < 0.4 < best[1] < 0.8 < best[2]


@pytest.mark.parametrize(
    "changed",
    [
        {"span": 0},
        {"span": 1.5},
        {"epsilon": 0.0},
        {"epsilon": math.inf},
        {"count": 0},
    ],
)
def test_selections_refuse_impossible_values(changed):
    with pytest.raises(ConfigError, match=next(iter(changed))):
        ExponentialSelection(**{"span": 2, "epsilon": 1.0, **changed})


def test_a_choice_among_no_candidates_is_refused():
    with pytest.raises(ConfigError, match="scores"):
        ExponentialSelection(span=2, epsilon=1.0).choose([], SeededChooser(0))
