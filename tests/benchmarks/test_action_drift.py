"""What `benchmarks.action_drift` measures, by hand; its runs are the product's own."""

import numpy as np
import pytest

from benchmarks import action_drift


def test_shares_of_actions_are_counted_by_time() -> None:
    people = action_drift.people(400, "test")
    assert people.lengths.min() >= 15
    assert people.lengths.max() <= action_drift.LONGEST
    assert people.terminated.sum() == 400
    found = action_drift.shares(people)
    assert found.sum(axis=1) == pytest.approx(1)
    first = people.actions[people.offsets[:-1]]
    assert found[0] == pytest.approx(np.bincount(first, minlength=action_drift.ACTIONS) / 400)
    assert found[-1, 3:].sum() < 0.01, "rare actions are rarer later"


def test_the_rule_is_what_people_follow_but_for_chance() -> None:
    people = action_drift.people(400, "test")
    asked = action_drift.rule(people.transitions("trajectory").observations)
    assert 0.7 < (asked == people.actions).mean() < 0.95
