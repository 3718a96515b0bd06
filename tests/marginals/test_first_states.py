"""First states that are chosen such that all steps together are as they were counted."""

import numpy as np
import pytest

from distributed_privrl.marginals.balancing import FirstStates

WALKS, CANDIDATES, TURNS = 500, 8, 4


def shares_after(copies: int, *, drawn: float, wanted: float, stays: float = 1.0) -> list[float]:
    """Return the share of walks that begin with 1, turn after turn.

    Args:
        copies: columns that are the same.
        drawn: how often a candidate has 1.
        wanted: how often all steps together should have it.
        stays: probability that a second step is like the first, and not drawn anew.
    """
    random = np.random.default_rng(copies)
    firsts = FirstStates(
        {place: np.array([1 - wanted, wanted]) for place in range(copies)}, np.array([1.0])
    )
    found = []
    for _ in range(TURNS):
        candidates = (random.random((WALKS, CANDIDATES)) < drawn).astype(np.int32)
        rows = firsts.chosen(np.repeat(candidates[:, :, None], copies, axis=2), random)
        found.append(float(rows[:, 0].mean()))
        second = np.where(random.random(WALKS) < stays, rows[:, 0], random.random(WALKS) < drawn)
        kinds, walks = np.zeros(WALKS, np.int64), np.arange(WALKS)
        firsts.see(kinds, walks, rows)
        firsts.see(kinds, walks, np.repeat(second[:, None].astype(np.int32), copies, axis=1))
        firsts.correct()
    return found


@pytest.mark.parametrize("copies", [1, 2, 6, 12])
def test_columns_that_say_the_same_do_not_correct_a_miss_several_times(copies: int) -> None:
    """Dummies beside their category drove a share of .77 to .35."""
    found = shares_after(copies, drawn=0.70, wanted=0.77)
    assert found[-1] == pytest.approx(0.77, abs=0.06)


@pytest.mark.parametrize("copies", [1, 6])
def test_nothing_is_driven_away_from_where_it_should_be(copies: int) -> None:
    for share in shares_after(copies, drawn=0.8, wanted=0.8):
        assert share == pytest.approx(0.8, abs=0.07)


def test_first_states_make_up_for_what_later_ones_become() -> None:
    found = shares_after(3, drawn=0.4, wanted=0.6, stays=0.7)
    assert found[-1] > 0.6


@pytest.mark.filterwarnings("error")
def test_walks_of_a_kind_that_the_model_has_no_rows_of_change_no_factor() -> None:
    """As noise alone may have it: they weigh nothing, and their shares would be no numbers."""
    firsts = FirstStates({0: np.array([0.5, 0.5])}, np.array([0.0, 1.0]))
    firsts.see(np.zeros(4, np.int64), np.arange(4), np.array([[0], [1], [1], [1]], np.int32))
    firsts.correct()
    assert firsts.factors[0].tolist() == [1.0, 1.0]
